"""kubemend is installed on a real API server, used, and uninstalled: the remains are those that the docs name."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from kubemend.common.kube import client, errors, paths
from kubemend.controller.certificates.keeper import Keeper, KeeperOptions
from kubemend.controller.restarts import names
from tests.contract.api import admission_calls, installation, objects, restarts
from tests.contract.api.installation import Cluster
from tests.unit.daemonset import manifests

Json = dict[str, Any]

COMPONENTS = sorted(manifests.COMPONENTS.keys() - {"device-taints", "gangs", "monitoring"})
"""Those that ``daemonset/default`` lacks; the Prometheus Operator's resources do not exist on this API server."""
OVERLAYS = sorted(path.name for path in (installation.DAEMONSET / "overlays").iterdir())

NODE_CONDITION = "kubemend.io/DevicesHealthy"
TAINT = {"key": "kubemend.io/device-failure", "value": "Xid79", "effect": "NoSchedule"}

FORGET = (
    ("delete", "devicetaintrules", "--selector", "app.kubernetes.io/managed-by=kubemend"),
    ("taint", "nodes", "node-a", "kubemend.io/device-failure-"),
    ("patch", "node", "node-a", "--subresource", "status", "--patch",
     '{"status":{"conditions":[{"type":"kubemend.io/DevicesHealthy","$patch":"delete"}]}}'),
)  # fmt: skip
"""The steps of docs/operations.md, "Uninstall", for everything that is not an object of the manifests."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The server accepts all of it without a warning: kubectl would print it, and fail here."""
    options = ("--runtime-config=resource.k8s.io/v1beta2=true", "--feature-gates=DRADeviceTaintRules=true")
    with installation.installed(tmp_path_factory.mktemp("uninstall"), *COMPONENTS, options=options) as made:
        yield made


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[client.KubeClient]:
    async with cluster.administrator() as connected:
        yield connected


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_server_accepts_every_overlay_without_a_warning(cluster: Cluster, overlay: str) -> None:
    directory = installation.DAEMONSET / "overlays" / overlay
    applied = cluster.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--output=name",
        "--kustomize",
        str(directory),
    )
    assert len(applied.splitlines()) == len(manifests.build(directory))


async def test_uninstall_leaves_only_what_the_docs_name(cluster: Cluster, api: client.KubeClient) -> None:
    await use(cluster, api)
    assert await traces(api) > {"configmaps/kubemend/kubemend-hub-ca", "secrets/kubemend/kubemend-hub-tls"}
    cluster.kubectl("delete", "--kustomize", str(cluster.directory))
    of_workloads = {"pods/default/a: condition kubemend.io/DevicesHealthy", "events/default/reported"}
    of_nodes = {
        "nodes/node-a: condition kubemend.io/DevicesHealthy",
        "nodes/node-a: taint kubemend.io/device-failure",
        "devicetaintrules/kubemend-1",
    }
    assert await traces(api) == of_workloads | of_nodes
    for command in FORGET:
        cluster.kubectl(*command)
    assert await traces(api) == of_workloads


async def use(cluster: Cluster, api: client.KubeClient) -> None:
    """Have agent and controller write everything that they ever write."""
    pod = await installation.agent_pod(api, "node-a")
    await api.create(objects.pods("default"), objects.pod("a", node="node-a"))
    condition = {"status": {"conditions": [objects.condition(NODE_CONDITION)]}}
    async with cluster.account(installation.AGENT, pod=pod) as agent:
        await agent.patch_status(paths.pod("default", "a"), condition)
        await agent.patch_status(f"{paths.NODES}/node-a", condition)
        event = admission_calls.event(admission_calls.Scene("default", api), node="node-a")
        await agent.create(paths.collection("events", namespace="default"), named(event, "reported"))
        await agent.create(admission_calls.RULES, named(admission_calls.taint_rule("node-a"), "kubemend-1"))
    async with cluster.account(installation.CONTROLLER) as controller:
        await Keeper(controller, KeeperOptions(namespace="kubemend")).refresh()
        leases = paths.collection("leases", namespace="kubemend", group="coordination.k8s.io")
        await controller.create(leases, {"metadata": {"name": "kubemend-controller"}})
        await controller.create(names.collection("default"), restarts.new_round("default").body("train-1"))
        taints = (await api.get(f"{paths.NODES}/node-a"))["spec"].get("taints", [])
        await controller.patch(f"{paths.NODES}/node-a", {"spec": {"taints": [*taints, TAINT]}})
    ended = paths.pod("kubemend", pod["metadata"]["name"])
    await api.delete(ended, options={"gracePeriodSeconds": 0})  # as kubelet does at the end


def named(obj: Json, name: str) -> Json:
    """Return an object with a name of its own."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "generateName"}
    return {**obj, "metadata": {**metadata, "name": name}}


async def traces(api: client.KubeClient) -> set[str]:
    """Return everything of kubemend on the API server: objects that name it, its conditions and taints on others."""
    found: set[str] = set()
    for path in await collections(api):
        try:
            items = (await api.list(path)).items
        except (errors.NotFoundError, errors.InvalidError):  # cannot be listed, or has just been removed
            continue
        for item in items:
            found |= marks(item, resource=path.rpartition("/")[2])
    return found


def marks(item: Json, *, resource: str) -> set[str]:
    """Return kubemend's part of an object."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    where = "/".join(filter(None, (resource, metadata.get("namespace"), metadata["name"])))
    source = (item.get("source") or {}).get("component")
    if "kubemend" in str(metadata) or source == "kubemend":
        return {where}
    conditions = [each["type"] for each in (item.get("status") or {}).get("conditions") or () if "type" in each]
    taints = [each["key"] for each in (item.get("spec") or {}).get("taints") or ()]
    return {
        f"{where}: {kind} {name}"
        for kind, those in (("condition", conditions), ("taint", taints))
        for name in those
        if "kubemend" in name
    }


async def collections(api: client.KubeClient) -> list[str]:
    """Return the paths of everything that can be listed, each resource in one version."""
    groups = (await api.get("/apis"))["groups"]
    roots = ["/api/v1", *(f"/apis/{version['groupVersion']}" for group in groups for version in group["versions"])]
    found: dict[tuple[str, str], str] = {}
    for root, document in zip(roots, await asyncio.gather(*map(api.get, roots)), strict=True):
        group = document["groupVersion"].rpartition("/")[0]
        for resource in document["resources"]:
            if "list" in resource["verbs"] and group != "events.k8s.io":  # the core's Events by another name
                found.setdefault((group, resource["name"]), f"{root}/{resource['name']}")
    return [*found.values()]
