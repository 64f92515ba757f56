"""The other objects that JobSets are made of: headless Services, claims, gated pods, events, custom defaults."""

import asyncio
import contextlib
from typing import Any

import pytest

from common import aio
from common.kube import client, errors, paths
from tests.contract.api import objects

Json = dict[str, Any]

DEFINITIONS = paths.collection("customresourcedefinitions", group="apiextensions.k8s.io")
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer", "default": 1},
                "policy": {
                    "type": "object",
                    "properties": {"strategy": {"type": "string", "default": "Recreate"}},
                },
                "parts": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"group": {"type": "string", "default": "default"}}},
                },
                "network": {
                    "type": "object",
                    "default": {},
                    "properties": {"dns": {"type": "boolean", "default": True}},
                },
            },
        }
    },
}


@pytest.fixture
async def things(api: client.KubeClient, namespace: str) -> str:
    """The collection of a resource whose definition has defaults."""
    names = {"plural": "things", "singular": "thing", "kind": "Thing"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    with contextlib.suppress(errors.ConflictError):
        await api.create(DEFINITIONS, {"metadata": {"name": "things.example.com"}, "spec": spec})
    path = paths.collection("things", namespace=namespace, group="example.com")
    async with asyncio.timeout(60):
        async for _ in aio.ticks(period=0.1):  # the real one serves it some time after it says Established
            try:
                await api.list(path)
            except errors.NotFoundError:
                continue
            break
    return path


async def test_defaults_of_custom_resources_are_filled_in(api: client.KubeClient, things: str) -> None:
    body = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}
    spec: Json = {"policy": {}, "parts": [{}, {"group": "x"}], "replicas": None}
    created = await api.create(things, {**body, "spec": spec})
    assert created["spec"] == {
        "policy": {"strategy": "Recreate"},
        "parts": [{"group": "default"}, {"group": "x"}],
        "replicas": 1,
        "network": {"dns": True},
    }
    assert (await api.get(f"{things}/a"))["spec"] == created["spec"]
    changed = await api.patch(
        f"{things}/a", {"spec": {"parts": [{}], "network": None}}, content_type=client.Patch.MERGE
    )
    assert (changed["spec"]["parts"], changed["spec"]["network"]) == ([{"group": "default"}], {"dns": True})


async def test_defaults_come_only_where_what_is_around_them_is_there(api: client.KubeClient, things: str) -> None:
    body = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}
    assert "spec" not in await api.create(things, body)


async def test_headless_service(api: client.KubeClient, namespace: str) -> None:
    services = paths.collection("services", namespace=namespace)
    spec = {"clusterIP": "None", "selector": {"app": "x"}, "publishNotReadyAddresses": True}
    created = await api.create(services, {"metadata": {"name": "train"}, "spec": spec})
    assert {key: created["spec"][key] for key in spec} == spec
    assert created["spec"]["type"] == "ClusterIP"
    assert "generation" not in created["metadata"]
    await api.delete(f"{services}/train")
    assert (await api.list(services)).items == []


async def test_claim_waits_for_its_volume(api: client.KubeClient, namespace: str) -> None:
    claims = paths.collection("persistentvolumeclaims", namespace=namespace)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    created = await api.create(claims, {"metadata": {"name": "data-train"}, "spec": spec})
    assert {key: created["spec"][key] for key in spec} == spec
    assert "generation" not in created["metadata"]
    assert (created["spec"]["volumeMode"], created["status"]["phase"]) == ("Filesystem", "Pending")


async def test_event_of_the_new_kind(api: client.KubeClient, namespace: str) -> None:
    events = paths.collection("events", namespace=namespace, group="events.k8s.io")
    body = {
        "metadata": {"generateName": "train-"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "jobset",
        "reportingInstance": "jobset-0",
        "action": "Reconciling",
        "type": "Warning",
        "reason": "FailedJobs",
        "note": "jobset failed",
        "regarding": {"kind": "Pod", "namespace": namespace, "name": "train"},
    }
    await api.create(events, body)
    (told,) = (await api.list(events)).items
    assert {key: told[key] for key in ("reason", "note", "type", "action")} == {
        key: body[key] for key in ("reason", "note", "type", "action")
    }


async def test_gated_pod_gets_a_place_and_loses_its_gate(api: client.KubeClient, namespace: str) -> None:
    pod = objects.pod("a")
    pod["spec"] |= {"schedulingGates": [{"name": "example.com/wait"}], "nodeSelector": {"zone": "1"}}
    await api.create(objects.pods(namespace), pod)
    path = paths.pod(namespace, "a")
    with pytest.raises(errors.InvalidError, match="nodeSelector"):
        await api.patch(path, {"spec": {"nodeSelector": {"zone": "2"}}}, content_type=client.Patch.MERGE)
    placed = {"nodeSelector": {"rack": "7"}, "schedulingGates": None}
    changed = await api.patch(path, {"spec": placed}, content_type=client.Patch.MERGE)
    assert changed["spec"]["nodeSelector"] == {"zone": "1", "rack": "7"}
    assert not changed["spec"].get("schedulingGates")
    with pytest.raises(errors.InvalidError, match=r"nodeSelector|may not change"):
        await api.patch(path, {"spec": {"nodeSelector": {"rack": "8"}}}, content_type=client.Patch.MERGE)
    with pytest.raises(errors.InvalidError, match=r"schedulingGates|may not change"):
        await api.patch(path, {"spec": {"schedulingGates": [{"name": "x.y/z"}]}}, content_type=client.Patch.MERGE)
