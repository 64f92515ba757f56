"""The manifests on a real API server: accepted without a warning, and their account can do its work."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import yaml

from hack.devnode import kubeconfig as kubeconfigs
from kubemend.agent.doctor import api_rights, checks
from kubemend.agent.doctor.api_rights import Right
from kubemend.common.kube import client, errors, paths, transport
from tests.contract.api import objects
from tests.control_plane import DEADLINES, ControlPlane
from tests.unit.daemonset import manifests

Apply = Callable[[Sequence[manifests.Json]], Awaitable[list[str]]]

_RESOURCES = {
    "Namespace": "namespaces",
    "ResourceQuota": "resourcequotas",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "DaemonSet": "daemonsets",
    "ConfigMap": "configmaps",
}
_FOREIGN = "monitoring.coreos.com/"  # custom resources of others, which this API server does not know
_POLICIES = "admissionregistration.k8s.io/"  # would apply to all tests here: ``test_admission`` has a server of its own

FORBIDDEN = (
    Right("delete", "pods"),
    Right("patch", "pods"),
    Right("update", "pods", subresource="status"),
    Right("create", "pods", subresource="eviction"),
    Right("create", "pods", subresource="exec"),
    Right("get", "secrets"),
    Right("patch", "nodes"),
    Right("update", "nodes", subresource="status"),
    Right("delete", "nodes"),
    Right("delete", "events"),
)
"""Rights that an agent must not have, though some of them would be convenient."""

every_variant = pytest.mark.parametrize("variant", [(), tuple(manifests.COMPONENTS)], ids="+".join)


@pytest.fixture
async def apply(control_plane: ControlPlane) -> AsyncIterator[Apply]:
    """Returns a function that applies objects as ``kubectl apply --server-side --validate=strict`` does."""
    sender = transport.Transport(kubeconfig=control_plane.kubeconfig, connect_timeout=DEADLINES.connect)

    async def apply_all(wanted: Sequence[manifests.Json]) -> list[str]:
        """Apply and return the server's warnings."""
        warnings: list[str] = []
        for obj in wanted:
            request = transport.Request(
                "PATCH",
                _path(obj),
                params={"fieldManager": "tests", "fieldValidation": "Strict"},
                body=obj,
                content_type="application/apply-patch+yaml",
            )
            async with asyncio.timeout(DEADLINES.call), await sender.send(request) as answer:
                await answer.read()
            warnings += answer.headers.getall("Warning", [])
        return warnings

    yield apply_all
    await sender.close()


@pytest.fixture
async def as_agent(
    apply: Apply, api: client.KubeClient, control_plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[client.KubeClient]:
    """A client with the token that the agent's pods get."""
    await apply(_known(()))
    account = paths.collection("serviceaccounts", namespace="kubemend") + "/kubemend-agent"
    token = await api.create(f"{account}/token", {"spec": {"expirationSeconds": 600}})
    (cluster,) = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"]
    kubeconfig = kubeconfigs.write(
        tmp_path / "as-agent",
        server=cluster["cluster"]["server"],
        token=token["status"]["token"],
        certificate_authority=Path(cluster["cluster"]["certificate-authority"]),
    )
    async with client.connect(kubeconfig=kubeconfig, deadlines=DEADLINES) as connected:
        yield connected


@every_variant
async def test_the_server_takes_every_object_without_a_warning(apply: Apply, variant: Sequence[str]) -> None:
    wanted = _known(variant)
    assert {obj["kind"] for obj in wanted} >= _RESOURCES.keys() - {"ResourceQuota", "ConfigMap"}
    assert await apply(wanted) == []


async def test_a_field_that_does_not_exist_would_be_refused(apply: Apply) -> None:
    (daemon_set,) = [obj for obj in _known(()) if obj["kind"] == "DaemonSet"]
    spec = {**daemon_set["spec"], "maxUnavailable": 1}
    with pytest.raises(errors.KubeError, match="maxUnavailable"):
        await apply([{**daemon_set, "metadata": {**daemon_set["metadata"], "name": "wrong"}, "spec": spec}])


async def test_the_agents_pod_is_admitted(apply: Apply, api: client.KubeClient) -> None:
    await apply(_known(()))
    template = manifests.one("DaemonSet")["spec"]["template"]
    made = await api.create(
        objects.pods("kubemend"), {"metadata": {**template["metadata"], "name": "agent"}, "spec": template["spec"]}
    )
    await api.delete(paths.pod("kubemend", "agent"), options={"gracePeriodSeconds": 0})
    assert made["spec"]["priority"] == 2_000_001_000  # system-node-critical


async def test_the_account_is_allowed_what_the_agent_needs(as_agent: client.KubeClient) -> None:
    for found in (
        *await api_rights.needed(as_agent),
        *await api_rights.for_groups(as_agent),
        *await api_rights.for_training(as_agent),
    ):
        assert found.result is checks.Result.OK, found.what


@pytest.mark.parametrize("right", FORBIDDEN, ids=str)
async def test_the_account_is_allowed_no_more(
    as_agent: client.KubeClient, api: client.KubeClient, right: Right
) -> None:
    assert not await _allowed(api, right)
    assert await _allowed(api, Right("patch", "pods", subresource="status"))


async def test_the_account_reports_on_a_pod_but_cannot_delete_it(
    as_agent: client.KubeClient, api: client.KubeClient, namespace: str
) -> None:
    await api.create(objects.pods(namespace), objects.pod("a", node="node-1"))
    path = paths.pod(namespace, "a")
    listed = await as_agent.list(paths.PODS, params={"fieldSelector": "spec.nodeName=node-1"})
    assert "a" in objects.names(listed.items)
    await as_agent.patch_status(path, {"status": {"conditions": [objects.condition("kubemend.io/X")]}})
    with pytest.raises(errors.ForbiddenError):
        await as_agent.delete(path)


def _known(variant: Sequence[str]) -> list[manifests.Json]:
    return [obj for obj in manifests.render(variant) if not obj["apiVersion"].startswith((_FOREIGN, _POLICIES))]


def _path(obj: manifests.Json) -> str:
    group, _, version = obj["apiVersion"].rpartition("/")
    kind, namespace, name = manifests.identity(obj)
    collection = paths.collection(_RESOURCES[kind], namespace=namespace or None, group=group, version=version)
    return f"{collection}/{name}"


async def _allowed(api: client.KubeClient, right: Right) -> bool:
    """Check as an administrator what the agent's account may do."""
    attributes = {"verb": right.verb, "resource": right.resource, "group": right.group}
    review = await api.create(
        paths.collection("subjectaccessreviews", group="authorization.k8s.io"),
        {
            "spec": {
                "user": "system:serviceaccount:kubemend:kubemend-agent",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kubemend", "system:authenticated"],
                "resourceAttributes": {**attributes, "subresource": right.subresource, "namespace": "default"},
            }
        },
    )
    return bool(review["status"]["allowed"])
