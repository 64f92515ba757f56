"""Creating, reading, listing and updating objects."""

import asyncio
import re
from pathlib import Path

import pytest
import yaml

from common import aio
from common.kube import client, errors, paths
from hack.devnode.api import ApiServer
from tests.contract.api import objects


async def test_created_object_gets_identity_and_version(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("a"))
    metadata = created["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
    assert int(metadata["resourceVersion"]) > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert (metadata["namespace"], metadata["generation"]) == (namespace, 1)
    assert await api.get(paths.pod(namespace, "a")) == created


async def test_generated_names_begin_with_their_prefix(api: client.KubeClient, namespace: str) -> None:
    body = objects.pod("")
    body["metadata"] = {"generateName": "trainer-"}
    created = await api.create(objects.pods(namespace), body)
    assert re.fullmatch(r"trainer-[a-z0-9]{5}", created["metadata"]["name"])


async def test_pod_defaults_that_the_agent_reads(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("a"))
    spec = created["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    container = spec["containers"][0]
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert (container["terminationMessagePolicy"], container["imagePullPolicy"]) == ("File", "IfNotPresent")


async def test_status_is_not_taken_from_a_creation(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), {**objects.pod("a"), "status": {"phase": "Running"}})
    assert created["status"]["phase"] == "Pending"


async def test_second_object_of_a_name_is_a_conflict(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    with pytest.raises(errors.ConflictError) as caught:
        await api.create(objects.pods(namespace), objects.pod("a"))
    assert caught.value.reason == "AlreadyExists"


async def test_creation_with_a_resource_version_is_refused(api: client.KubeClient, namespace: str) -> None:
    with pytest.raises(errors.KubeError) as caught:
        await api.create(objects.pods(namespace), objects.pod("a", resourceVersion="1"))
    assert caught.value.status in (400, 500)  # the real one answers 500


async def test_creation_without_any_name_is_refused(api: client.KubeClient, namespace: str) -> None:
    with pytest.raises(errors.InvalidError, match="name or generateName is required"):
        await api.create(objects.pods(namespace), objects.pod(""))


async def test_missing_namespace_is_not_found(api: client.KubeClient) -> None:
    with pytest.raises(errors.NotFoundError, match="nowhere"):
        await api.create(objects.pods("nowhere"), objects.pod("a"))


async def test_missing_object_and_unknown_resource_are_not_found(api: client.KubeClient, namespace: str) -> None:
    with pytest.raises(errors.NotFoundError, match='pods "a" not found'):
        await api.get(paths.pod(namespace, "a"))
    with pytest.raises(errors.NotFoundError):
        await api.list("/apis/example.com/v1/things")


async def test_wrong_token_is_unauthorized(server: ApiServer, tmp_path: Path) -> None:
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    path = tmp_path / "wrong"
    path.write_text(yaml.safe_dump(config))
    async with client.connect(kubeconfig=path) as stranger:
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


async def test_items_of_builtin_lists_have_no_kind_of_their_own(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    listing = await api.get(objects.pods(namespace))
    assert (listing["kind"], listing["apiVersion"]) == ("PodList", "v1")
    assert "kind" not in listing["items"][0]


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


async def test_update_that_changes_nothing_keeps_the_version(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("a"))
    updated = await api.update(paths.pod(namespace, "a"), created)
    assert updated["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_leases_are_updated_only_with_their_version(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.leases(namespace), {"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}})
    taken = {**created, "spec": {"holderIdentity": "y"}}
    assert (await api.update(f"{objects.leases(namespace)}/a", taken))["spec"]["holderIdentity"] == "y"
    unconditional = {**taken, "metadata": {"name": "a", "namespace": namespace}}
    with pytest.raises(errors.InvalidError, match="must be specified for an update"):
        await api.update(f"{objects.leases(namespace)}/a", unconditional)


async def test_spec_and_status_are_written_apart(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("a"))
    path = paths.pod(namespace, "a")
    running = {**created, "status": {"phase": "Running"}, "metadata": {**created["metadata"], "labels": {"n": "1"}}}
    updated = await api.update(path, running)
    assert (updated["status"]["phase"], updated["metadata"]["labels"]) == ("Pending", {"n": "1"})
    running["metadata"]["resourceVersion"] = updated["metadata"]["resourceVersion"]
    running["spec"] = {}
    status = await api.update(f"{path}/status", running)
    assert status["status"]["phase"] == "Running"
    assert status["spec"] == updated["spec"]


async def test_nodes_and_events_can_be_created(api: client.KubeClient, namespace: str, node: str) -> None:
    await api.create(paths.NODES, {"metadata": {"name": node}})
    patch = {"status": {"conditions": [objects.condition("kubemend.io/DevicesHealthy")]}}
    patched = await api.patch(paths.node_status(node), patch)
    assert [c["type"] for c in patched["status"]["conditions"]] == ["kubemend.io/DevicesHealthy"]
    event = {
        "metadata": {"generateName": "e-"},
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": namespace},
        "reason": "Restarted",
        "type": "Normal",
    }
    await api.create(paths.collection("events", namespace=namespace), event)
    selected = await api.list(
        paths.collection("events", namespace=namespace), params={"fieldSelector": "involvedObject.name=a"}
    )
    assert [item["reason"] for item in selected.items] == ["Restarted"]


async def test_custom_resources_follow_their_definition(api: client.KubeClient, namespace: str, node: str) -> None:
    group = f"{node}.example.com"
    names = {"plural": "things", "singular": "thing", "kind": "Thing"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    definition = {
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    definitions = paths.collection("customresourcedefinitions", group="apiextensions.k8s.io")
    await api.create(definitions, definition)
    things = paths.collection("things", namespace=namespace, group=group)
    async with asyncio.timeout(60):
        async for _ in aio.ticks(period=0.1):  # the real one serves it some time after it says Established
            if await _is_served(api, things):
                break
    created = await api.create(
        things, {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"x": 1}}
    )
    patched = await api.patch_status(
        f"{things}/a", {"status": {"y": 2}, "spec": {"x": 9}}, content_type=client.Patch.MERGE
    )
    assert (patched["spec"], patched["status"], patched["metadata"]["generation"]) == ({"x": 1}, {"y": 2}, 1)
    changed = await api.patch(f"{things}/a", {"spec": {"x": 2}}, content_type=client.Patch.MERGE)
    assert (changed["metadata"]["generation"], created["metadata"]["generation"]) == (2, 1)
    with pytest.raises(errors.InvalidError) as caught:
        await api.patch(f"{things}/a", {"spec": {"x": 3}})
    assert caught.value.status == 415


async def _is_served(api: client.KubeClient, path: str) -> bool:
    try:
        await api.list(path)
    except errors.NotFoundError:
        return False
    return True


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


async def test_objects_survive_an_outage(own_server: ApiServer, own_api: client.KubeClient) -> None:
    created = await own_api.create(objects.pods("default"), objects.pod("a"))
    await own_server.stop()
    with pytest.raises(errors.ApiUnavailableError):
        await own_api.get(paths.pod("default", "a"))
    await own_server.start()
    assert await own_api.get(paths.pod("default", "a")) == created
