"""The three patch types, on objects and on their status."""

import pytest

from common.kube import client, errors, paths
from tests.contract.api import objects


async def test_conditions_merge_by_type(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    path = paths.pod(namespace, "a")
    foreign = objects.condition("example.com/Mine", reason="R", lastTransitionTime="2026-01-01T00:00:00Z")
    ours = objects.condition("kubemend.io/X", lastTransitionTime="2026-01-02T00:00:00Z", message="one")
    await api.patch_status(path, {"status": {"conditions": [foreign, ours]}})
    patched = await api.patch_status(
        path, {"status": {"conditions": [objects.condition("kubemend.io/X", message="two")]}}
    )
    found = {item["type"]: item for item in patched["status"]["conditions"]}
    assert found["example.com/Mine"]["reason"] == "R"
    assert found["kubemend.io/X"]["message"] == "two"
    assert found["kubemend.io/X"]["lastTransitionTime"] == "2026-01-02T00:00:00Z"


async def test_conditions_can_be_taken_away_by_type(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    path = paths.pod(namespace, "a")
    await api.patch_status(path, {"status": {"conditions": [objects.condition("a"), objects.condition("b")]}})
    gone = {"status": {"conditions": [{"$patch": "delete", "type": "a"}]}}
    assert [item["type"] for item in (await api.patch_status(path, gone))["status"]["conditions"]] == ["b"]


async def test_element_order_directive_sorts(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    path = paths.pod(namespace, "a")
    await api.patch_status(path, {"status": {"conditions": [objects.condition("a"), objects.condition("b")]}})
    order = {"$setElementOrder/conditions": [{"type": "b"}, {"type": "a"}], "conditions": [objects.condition("b")]}
    patched = await api.patch_status(path, {"status": order})
    assert [item["type"] for item in patched["status"]["conditions"]] == ["b", "a"]


async def test_container_statuses_are_replaced_as_a_whole(api: client.KubeClient, namespace: str) -> None:
    """The list has no merge key, though one might think so: kubelet always sends all of it."""
    body = objects.pod("a")
    body["spec"]["containers"].append({"name": "side", "image": "busybox:1"})
    await api.create(objects.pods(namespace), body)
    path = paths.pod(namespace, "a")

    def status(name: str) -> dict[str, object]:
        return {"name": name, "ready": True, "restartCount": 0, "image": "busybox:1", "imageID": ""}

    await api.patch_status(path, {"status": {"containerStatuses": [status("trainer"), status("side")]}})
    patched = await api.patch_status(path, {"status": {"containerStatuses": [status("side")]}})
    assert [item["name"] for item in patched["status"]["containerStatuses"]] == ["side"]


async def test_status_patch_for_another_uid_is_refused(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    patch = {
        "metadata": {"uid": "00000000-0000-0000-0000-000000000000"},
        "status": {"conditions": [objects.condition("kubemend.io/X")]},
    }
    with pytest.raises(errors.KubeError) as caught:
        await api.patch_status(paths.pod(namespace, "a"), patch)
    assert caught.value.status == 422
    assert "conditions" not in (await api.get(paths.pod(namespace, "a")))["status"]


async def test_status_patch_with_the_right_uid_is_taken(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("a"))
    patch = {"metadata": {"uid": created["metadata"]["uid"]}, "status": {"phase": "Running"}}
    assert (await api.patch_status(paths.pod(namespace, "a"), patch))["status"]["phase"] == "Running"


async def test_patch_with_an_old_version_is_a_conflict(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("a"))
    await api.patch(paths.pod(namespace, "a"), {"metadata": {"labels": {"n": "1"}}})
    old = {"resourceVersion": created["metadata"]["resourceVersion"], "labels": {"n": "2"}}
    with pytest.raises(errors.ConflictError):
        await api.patch(paths.pod(namespace, "a"), {"metadata": old})


async def test_merge_patch_removes_with_null_and_replaces_lists(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a", annotations={"x": "1", "y": "2"}, finalizers=["e.io/a"]))
    patch = {"metadata": {"annotations": {"x": None, "z": "3"}, "finalizers": ["e.io/b"]}}
    patched = await api.patch(paths.pod(namespace, "a"), patch, content_type=client.Patch.MERGE)
    assert patched["metadata"]["annotations"] == {"y": "2", "z": "3"}
    assert patched["metadata"]["finalizers"] == ["e.io/b"]


async def test_strategic_patch_merges_finalizers_and_owners(api: client.KubeClient, namespace: str) -> None:
    def owner(uid: str) -> dict[str, str]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid}

    await api.create(objects.pods(namespace), objects.pod("a", finalizers=["e.io/a"], ownerReferences=[owner("1")]))
    patch = {"metadata": {"finalizers": ["e.io/b"], "ownerReferences": [owner("2")]}}
    metadata = (await api.patch(paths.pod(namespace, "a"), patch))["metadata"]
    assert sorted(metadata["finalizers"]) == ["e.io/a", "e.io/b"]
    assert sorted(item["uid"] for item in metadata["ownerReferences"]) == ["1", "2"]


async def test_json_patch_adds_tests_and_removes(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a", labels={"x": "1", "y": "2"}))
    path = paths.pod(namespace, "a")
    good = [
        {"op": "test", "path": "/metadata/labels/x", "value": "1"},
        {"op": "replace", "path": "/metadata/labels/x", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/y"},
    ]
    patched = await api.patch(path, good, content_type=client.Patch.JSON)
    assert patched["metadata"]["labels"] == {"x": "2"}
    with pytest.raises(errors.InvalidError) as caught:
        await api.patch(path, good, content_type=client.Patch.JSON)
    assert caught.value.status == 422


async def test_generation_follows_the_spec_only(api: client.KubeClient, namespace: str) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox:1"}]}}
    await api.create(
        objects.jobs(namespace), {"metadata": {"name": "j"}, "spec": {"template": template, "suspend": True}}
    )
    path = f"{objects.jobs(namespace)}/j"
    labelled = await api.patch(path, {"metadata": {"labels": {"n": "1"}}})
    assert labelled["metadata"]["generation"] == 1
    status = await api.patch_status(path, {"status": {"active": 1}})
    assert (status["status"]["active"], status["metadata"]["generation"]) == (1, 1)
    resumed = await api.patch(path, {"spec": {"suspend": False}})
    assert resumed["metadata"]["generation"] == 2
