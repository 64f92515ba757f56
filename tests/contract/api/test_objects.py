"""The client's results of a real API server's answers."""

from pathlib import Path

import pytest
import yaml

from kubemend.common.kube import client, errors, paths
from tests.contract.api import objects
from tests.control_plane import DEADLINES, Tenant


async def test_second_object_of_a_name_is_a_conflict(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    with pytest.raises(errors.ConflictError) as caught:
        await api.create(objects.pods(namespace), objects.pod("a"))
    assert caught.value.reason == "AlreadyExists"


async def test_missing_namespace_is_not_found(api: client.KubeClient) -> None:
    with pytest.raises(errors.NotFoundError, match="nowhere"):
        await api.create(objects.pods("nowhere"), objects.pod("a"))


async def test_missing_object_and_unknown_resource_are_not_found(api: client.KubeClient, namespace: str) -> None:
    with pytest.raises(errors.NotFoundError, match='pods "a" not found'):
        await api.get(paths.pod(namespace, "a"))
    with pytest.raises(errors.NotFoundError):
        await api.list("/apis/example.com/v1/things")


async def test_wrong_token_is_unauthorized(tenant: Tenant, tmp_path: Path) -> None:
    config = yaml.safe_load(tenant.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    path = tmp_path / "wrong"
    path.write_text(yaml.safe_dump(config))
    async with client.connect(kubeconfig=path, deadlines=DEADLINES) as stranger:
        with pytest.raises(errors.UnauthorizedError, match="check the token"):
            await stranger.list(paths.PODS)


async def test_lists_are_narrowed_by_labels(api: client.KubeClient, namespace: str) -> None:
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y", "tier": "1"}), ("c", {})):
        await api.create(objects.pods(namespace), objects.pod(name, labels=labels))

    async def found(selector: str) -> list[str]:
        listing = await api.list(objects.pods(namespace), params={"labelSelector": selector})
        return objects.names(listing.items)

    assert await found("app=x") == ["a"]
    assert await found("app==y,tier") == ["b"]
    assert await found("app!=x") == ["b", "c"]
    assert await found("app in (x, y)") == ["a", "b"]
    assert await found("app notin (x)") == ["b", "c"]
    assert await found("!app") == ["c"]


async def test_lists_are_narrowed_by_fields(api: client.KubeClient, namespace: str, node: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a", node=node))
    await api.create(objects.pods(namespace), objects.pod("b"))

    async def found(selector: str) -> list[str]:
        return objects.names((await api.list(paths.PODS, params={"fieldSelector": selector})).items)

    assert await found(f"spec.nodeName={node}") == ["a"]
    assert await found(f"metadata.namespace={namespace},spec.nodeName!={node}") == ["b"]
    assert await found(f"metadata.namespace={namespace},metadata.name=b,status.phase=Pending") == ["b"]
    with pytest.raises(errors.InvalidError, match="field label not supported"):
        await found("spec.priority=0")


async def test_update_with_an_old_version_is_a_conflict(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("a"))
    first = {**created, "metadata": {**created["metadata"], "labels": {"n": "1"}}}
    second = {**created, "metadata": {**created["metadata"], "labels": {"n": "2"}}}
    updated = await api.update(paths.pod(namespace, "a"), first)
    assert int(updated["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])
    with pytest.raises(errors.ConflictError):
        await api.update(paths.pod(namespace, "a"), second)


async def test_update_of_another_uid_is_a_conflict(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("a"))
    stranger = {**created["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}
    del stranger["resourceVersion"]
    with pytest.raises(errors.ConflictError, match="UID in precondition"):
        await api.update(paths.pod(namespace, "a"), {**created, "metadata": stranger})


async def test_leases_are_updated_only_with_their_version(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.leases(namespace), {"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}})
    taken = {**created, "spec": {"holderIdentity": "y"}}
    assert (await api.update(f"{objects.leases(namespace)}/a", taken))["spec"]["holderIdentity"] == "y"
    unconditional = {**taken, "metadata": {"name": "a", "namespace": namespace}}
    with pytest.raises(errors.InvalidError, match="must be specified for an update"):
        await api.update(f"{objects.leases(namespace)}/a", unconditional)


async def test_access_reviews_and_discovery_answer(api: client.KubeClient) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "patch", "resource": "pods", "subresource": "status"}},
    }
    answer = await api.create(paths.collection("selfsubjectaccessreviews", group="authorization.k8s.io"), review)
    assert answer["status"]["allowed"] is True
    assert (await api.get("/version"))["gitVersion"].startswith("v1.")
    assert "v1" in (await api.get("/api"))["versions"]
    assert "batch" in [group["name"] for group in (await api.get("/apis"))["groups"]]
    kinds = {item["name"]: item["kind"] for item in (await api.get("/api/v1"))["resources"]}
    assert (kinds["pods"], kinds["pods/status"], kinds["nodes"]) == ("Pod", "Pod", "Node")
