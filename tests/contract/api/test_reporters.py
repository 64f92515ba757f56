"""The node's condition, Events and device taints as a real API server accepts them.

Only server-dependent behaviour is tested here; the reporters' own behaviour is in ``tests/unit/reporters``.
"""

import asyncio
import functools
import json
from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.event_messages import EventMessage
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.model.workloads import PodRef, PodUid
from kubemend.agent.reporters import events, node_condition, taint_rules
from kubemend.agent.reporters.device_taints import DeviceTaintReporter
from kubemend.agent.reporters.events import EventReporter
from kubemend.agent.reporters.node_condition import NodeConditionReporter
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, paths
from tests import background
from tests.contract.api import objects
from tests.control_plane import Tenant

KIND = "kubemend.io/DevicesHealthy"


class Attempts:
    """Record the component status that a reporter reports, and wait for it."""

    def __init__(self) -> None:
        self.outcomes: asyncio.Queue[Any] = asyncio.Queue()

    def took(self, outcome: object, _occurrences: int = 1) -> None:
        self.outcomes.put_nowait(outcome)

    def reported(self, status: ComponentStatus) -> None:
        self.outcomes.put_nowait(status.state)

    async def until(self, outcome: object) -> None:
        async with asyncio.timeout(60):
            while await self.outcomes.get() is not outcome:
                pass


async def stored(api: client.KubeClient, node: str) -> dict[str, dict[str, Any]]:
    found = await api.get(f"{paths.NODES}/{node}")
    return {item["type"]: item for item in found["status"].get("conditions", ())}


async def test_nodes_condition_is_written_changed_and_survives_the_nodes_own(api: client.KubeClient, node: str) -> None:
    await api.create(paths.NODES, {"metadata": {"name": node}})
    attempts = Attempts()
    now = [1_000.0]
    reporter = NodeConditionReporter(
        api=api,
        node_name=node,
        report=lambda _: None,
        on_outcome=attempts.took,
        clock=lambda: now[0],
        intervals=node_condition.Intervals(changed=0.0, reworded=0.0),
    )
    async with background.running(reporter.run()):
        reporter.set(Condition(KIND, ConditionStatus.TRUE, "Healthy", "8 of 8 devices healthy"))
        await attempts.until(node_condition.Outcome.WRITTEN)
        ready = {"status": {"conditions": [objects.condition("Ready", reason="KubeletReady")]}}  # as kubelet patches
        await api.patch(f"{paths.NODES}/{node}/status", ready)
        now[0] = 2_000.0
        reporter.set(Condition(KIND, ConditionStatus.FALSE, "Xid79", "lost"))
        await attempts.until(node_condition.Outcome.WRITTEN)
        now[0] = 3_000.0
        reporter.set(Condition(KIND, ConditionStatus.FALSE, "Xid48", "worse"))
        await attempts.until(node_condition.Outcome.WRITTEN)
    found = await stored(api, node)
    assert found["Ready"]["reason"] == "KubeletReady"
    assert found[KIND] == {
        "type": KIND,
        "status": "False",
        "reason": "Xid48",
        "message": "worse",
        "lastTransitionTime": "1970-01-01T00:33:20Z",
        "lastHeartbeatTime": "1970-01-01T00:50:00Z",
    }


async def test_late_and_recreated_nodes_get_the_condition(api: client.KubeClient, node: str) -> None:
    attempts = Attempts()
    reporter = NodeConditionReporter(
        api=api,
        node_name=node,
        report=lambda _: None,
        on_outcome=attempts.took,
        intervals=node_condition.Intervals(changed=0.0, reworded=0.0),
        backoff=aio.Backoff(first=0.01, limit=0.1),
    )
    async with background.running(reporter.run()):
        reporter.set(Condition(KIND, ConditionStatus.FALSE, "Xid79", "one"))
        await attempts.until(node_condition.Outcome.NODE_GONE)
        await api.create(paths.NODES, {"metadata": {"name": node}})
        await attempts.until(node_condition.Outcome.WRITTEN)
        await api.delete(f"{paths.NODES}/{node}")
        await api.create(paths.NODES, {"metadata": {"name": node}})
        reporter.set(Condition(KIND, ConditionStatus.FALSE, "Xid79", "two"))
        await attempts.until(node_condition.Outcome.WRITTEN)
        assert (await stored(api, node))[KIND]["message"] == "two"


async def test_events_are_found_by_the_query_of_kubectl_describe(
    api: client.KubeClient, namespace: str, node: str
) -> None:
    created = await api.create(objects.pods(namespace), objects.pod("trainer-0", node=node))
    pod = PodRef(namespace, "trainer-0", PodUid(created["metadata"]["uid"]))
    attempts = Attempts()
    limits = events.Limits(spacing=0.0)
    reporter = EventReporter(api=api, node_name=node, report=lambda _: None, on_outcome=attempts.took, limits=limits)
    async with background.running(reporter.run()):
        for message, at in (("once", 1_000.0), ("twice", 2_000.0)):
            reporter.record(EventMessage(pod, "DeviceUnhealthy", message, at, subject="GPU-a", container="trainer"))
            await attempts.until(events.Outcome.WRITTEN)
        reporter.record(EventMessage(None, "DeviceUnhealthy", "on the node", 1_000.0, subject="GPU-a"))
        await attempts.until(events.Outcome.WRITTEN)
    selector = f"involvedObject.kind=Pod,involvedObject.name=trainer-0,involvedObject.uid={pod.uid}"
    in_namespace = paths.collection("events", namespace=namespace)
    (of_pod,) = (await api.list(in_namespace, params={"fieldSelector": selector})).items
    assert (of_pod["count"], of_pod["message"], of_pod["type"]) == (2, "twice", "Warning")
    assert (of_pod["firstTimestamp"], of_pod["lastTimestamp"]) == ("1970-01-01T00:16:40Z", "1970-01-01T00:33:20Z")
    selector = f"involvedObject.kind=Node,involvedObject.name={node},involvedObject.uid={node}"
    (of_node,) = (await api.list(paths.collection("events"), params={"fieldSelector": selector})).items
    assert (of_node["metadata"]["namespace"], of_node["message"]) == ("default", "on the node")


async def test_next_agent_finds_the_recorded_events(api: client.KubeClient, node: str) -> None:
    outcomes = []
    for _ in range(2):
        attempts = Attempts()
        reporter = EventReporter(api=api, node_name=node, report=lambda _: None, on_outcome=attempts.took)
        async with background.running(reporter.run()), asyncio.timeout(60):
            reporter.record(EventMessage(None, "DeviceUnhealthy", "lost", 1_000.0, subject="GPU-a"))
            outcomes.append(await attempts.outcomes.get())
    assert outcomes == [events.Outcome.WRITTEN, events.Outcome.KNOWN]


async def test_pod_without_a_namespace_costs_one_refusal(api: client.KubeClient, node: str) -> None:
    attempts = Attempts()
    reporter = EventReporter(api=api, node_name=node, report=lambda _: None, on_outcome=attempts.took)
    async with background.running(reporter.run()):
        reporter.record(EventMessage(PodRef("nowhere", "a", PodUid("u")), "OOMKilled", "x", 1_000.0))
        await attempts.until(events.Outcome.REFUSED)


@pytest.mark.parametrize(("version", "other"), [("v1beta2", "v1alpha3"), ("v1alpha3", "v1beta2")])
async def test_device_is_tainted_and_freed(tenant: Tenant, api: client.KubeClient, version: str, other: str) -> None:
    """A server of another release serves only the one version."""
    tenant.server.rewrite = functools.partial(without, other)
    node = tenant.node
    rules = paths.collection("devicetaintrules", group="resource.k8s.io", version=version)
    mine = {"labelSelector": taint_rules.selector(node)}
    created = await api.create(paths.NODES, {"metadata": {"name": node}})
    await api.create(paths.collection("resourceslices", group="resource.k8s.io"), _slice(node))
    attempts = Attempts()
    reporter = DeviceTaintReporter(api=api, node_name=node, report=attempts.reported)
    async with background.running(reporter.run()):
        lost = Verdict("GPU-a", Health.UNHEALTHY, ActionClass.REBOOT_NODE, "Xid79", "")
        reporter.set([lost])
        await attempts.until(ComponentState.READY)
        (rule,) = (await api.list(rules, params=mine)).items
        assert rule["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"}
        assert rule["spec"]["taint"].pop("timeAdded")
        assert rule["spec"]["taint"] == {"key": "kubemend.io/unhealthy", "value": "Xid79", "effect": "NoSchedule"}
        assert rule["metadata"]["ownerReferences"][0]["uid"] == created["metadata"]["uid"]
        reporter.set([replace(lost, reason="Xid48")])
        await attempts.until(ComponentState.READY)
        assert [item["spec"]["taint"]["value"] for item in (await api.list(rules, params=mine)).items] == ["Xid48"]
        reporter.set([replace(lost, health=Health.HEALTHY)])
        await attempts.until(ComponentState.READY)
        assert (await api.list(rules, params=mine)).items == []


def without(version: str, text: bytes) -> bytes:
    """Remove a version from the server's description of an API group."""
    if b'"APIGroup"' not in text:
        return text
    group = json.loads(text)
    kept = [each for each in group["versions"] if each["version"] != version]
    return json.dumps({**group, "versions": kept}).encode()


def _slice(node: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{node}-gpus"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "nodeName": node,
            "devices": [
                {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-a"}}},
                {"name": "gpu-1", "attributes": {"uuid": {"string": "GPU-b"}}},
            ],
        },
    }
