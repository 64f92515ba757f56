"""The controller's manifests on a real API server: accepted without a warning, with exactly the rights it needs."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hack.devnode import kubeconfig as kubeconfigs
from kubemend.agent.doctor.api_rights import Right
from kubemend.common.kube import client, errors, paths, transport
from kubemend.controller.restarts import names
from tests import eventually
from tests.contract.api import objects, restarts
from tests.control_plane import DEADLINES, ControlPlane
from tests.unit.daemonset import controller_manifests, manifests

_RESOURCES = {
    "Namespace": "namespaces",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "Deployment": "deployments",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "NetworkPolicy": "networkpolicies",
}

FORBIDDEN = (
    (Right("get", "secrets"), "default"),
    (Right("list", "secrets"), "kubemend"),
    (Right("deletecollection", "pods"), "default"),
    (Right("create", "pods", subresource="eviction"), "default"),
    (Right("create", "pods"), "kubemend"),
    (Right("delete", "nodes"), "default"),
    (Right("patch", "nodes", subresource="status"), "default"),
    (Right("create", "jobsets", group="jobset.x-k8s.io"), "default"),
    (Right("delete", "services"), "default"),
    (Right("delete", "persistentvolumeclaims"), "default"),
    (Right("update", "leases", group="coordination.k8s.io"), "kube-system"),
    (Right("update", "configmaps"), "default"),
)
"""Rights that it must not have, each with the namespace.

Those that admission refuses are in ``admission_controllers``.
"""


@pytest.fixture
async def applied(control_plane: ControlPlane) -> list[str]:
    """All objects, applied as ``kubectl apply --server-side --validate=strict`` does; the server's warnings."""
    sender = transport.Transport(kubeconfig=control_plane.kubeconfig, connect_timeout=DEADLINES.connect)
    warnings: list[str] = []
    for obj in [manifests.one("Namespace"), *controller_manifests.render()]:
        request = transport.Request(
            "PATCH",
            _path(obj),
            params={"fieldManager": "tests", "fieldValidation": "Strict", "force": True},
            body=obj,
            content_type="application/apply-patch+yaml",
        )
        async with asyncio.timeout(DEADLINES.call), await sender.send(request) as answer:
            await answer.read()
        warnings += answer.headers.getall("Warning", [])
    await sender.close()
    return warnings


@pytest.fixture
async def as_controller(
    applied: list[str], api: client.KubeClient, control_plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[client.KubeClient]:
    """A client with the token that the controller's pods get."""
    account = paths.collection("serviceaccounts", namespace="kubemend") + "/kubemend-controller"
    token = await api.create(f"{account}/token", {"spec": {"expirationSeconds": 600}})
    (cluster,) = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"]
    kubeconfig = kubeconfigs.write(
        tmp_path / "as-controller",
        server=cluster["cluster"]["server"],
        token=token["status"]["token"],
        certificate_authority=Path(cluster["cluster"]["certificate-authority"]),
    )
    deadlines = replace(DEADLINES, watch=1.0)  # the server ends each watch after a second
    async with client.connect(kubeconfig=kubeconfig, deadlines=deadlines) as connected:
        yield connected


async def test_the_server_takes_every_object_without_a_warning(applied: list[str]) -> None:
    assert {obj["kind"] for obj in controller_manifests.render()} == _RESOURCES.keys() - {"Namespace"}
    assert applied == []


async def test_the_pod_is_admitted_and_would_be_in_a_restricted_namespace(
    applied: list[str], api: client.KubeClient, namespace: str
) -> None:
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await api.patch(f"{paths.collection('namespaces')}/{namespace}", restricted, content_type=client.Patch.MERGE)

    async def is_restricted() -> bool:
        try:
            await api.create(f"{objects.pods(namespace)}?dryRun=All", objects.pod("unconfined"))
        except errors.ForbiddenError:
            return True
        return False

    await eventually.true(is_restricted)
    template = controller_manifests.one("Deployment")["spec"]["template"]
    body = {"metadata": {**template["metadata"], "name": "controller"}, "spec": template["spec"]}
    made = await api.create(objects.pods(namespace), body)
    assert made["spec"]["priority"] == 2_000_000_000  # system-cluster-critical


async def test_the_account_can_do_what_the_controller_does(
    as_controller: client.KubeClient, api: client.KubeClient, namespace: str
) -> None:
    await restarts.install(api)
    await api.create(objects.pods(namespace), objects.pod("a", node="node-1"))
    for path in (paths.PODS, paths.NODES, names.WHOLE):
        listing = await as_controller.list(path)
        async for _ in as_controller.watch(path, resource_version=listing.resource_version):
            pass  # until the server ends it: only the right to watch matters
    evictions = paths.collection("evictionrequests", group="lifecycle.k8s.io", version="v1alpha1")
    with pytest.raises(errors.NotFoundError):  # this server has none; without the right it would be ForbiddenError
        await as_controller.list(evictions)
    with pytest.raises(errors.NotFoundError):
        async for _ in as_controller.watch(evictions, resource_version="0"):
            pass
    pod = paths.pod(namespace, "a")
    await as_controller.patch_status(pod, {"status": {"conditions": [objects.condition("DisruptionTarget")]}})
    await as_controller.delete(pod)
    new = restarts.new_round(namespace)
    await as_controller.create(names.collection(namespace), new.body("train-1-abcd"))
    await as_controller.patch_status(
        names.path(namespace, "train-1-abcd"), {"status": restarts.done(new)}, content_type=client.Patch.MERGE
    )
    await as_controller.delete(names.path(namespace, "train-1-abcd"))
    await as_controller.create(paths.TOKEN_REVIEWS, {"spec": {"token": "x"}})
    for group, resource, name in (
        ("coordination.k8s.io", "leases", "kubemend-controller"),
        ("", "secrets", "kubemend-hub-tls"),
        ("", "configmaps", "kubemend-hub-ca"),
    ):
        collection = paths.collection(resource, namespace="kubemend", group=group)
        made = await as_controller.create(collection, {"metadata": {"name": name}})
        await as_controller.update(f"{collection}/{name}", made)
        await api.delete(f"{collection}/{name}")


@pytest.mark.parametrize(("right", "where"), FORBIDDEN, ids=str)
async def test_the_account_is_allowed_no_more(
    applied: list[str], api: client.KubeClient, right: Right, where: str
) -> None:
    assert not await _allowed(api, right, where)
    assert await _allowed(api, Right("delete", "pods"), where)


def _path(obj: manifests.Json) -> str:
    group, _, version = obj["apiVersion"].rpartition("/")
    kind, namespace, name = manifests.identity(obj)
    collection = paths.collection(_RESOURCES[kind], namespace=namespace or None, group=group, version=version)
    return f"{collection}/{name}"


async def _allowed(api: client.KubeClient, right: Right, namespace: str) -> bool:
    """Check as an administrator what the controller's account may do."""
    attributes = {"verb": right.verb, "resource": right.resource, "group": right.group}
    review = await api.create(
        paths.collection("subjectaccessreviews", group="authorization.k8s.io"),
        {
            "spec": {
                "user": "system:serviceaccount:kubemend:kubemend-controller",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:kubemend", "system:authenticated"],
                "resourceAttributes": {**attributes, "subresource": right.subresource, "namespace": namespace},
            }
        },
    )
    return bool(review["status"]["allowed"])
