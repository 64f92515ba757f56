"""Publish the node's health from the verdict store and the inventory."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.node_health import NodeHealth
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.health.state import fold
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DeviceLocator, PciAddress
from kubemend.agent.model.event_messages import EventMessage
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.model.workloads import PodRef, PodUid
from tests.environments.node import verdicts
from tests.fakes import outside

POD = PodRef("ml", "trainer-0", PodUid("u0"))
NIC = "0000:3b:00.0"
LINK_DOWN = Finding(
    source=Source.NETLINK,
    kind=FindingKind.LINK_DOWN,
    code="",
    device=DeviceLocator(pci=PciAddress.parse(NIC)),
    action=ActionClass.OBSERVE,
    observed_at=60.0,
)
HOLDERS: dict[str, tuple[PodRef, ...]] = {outside.GPU.uuid: (POD,)}
OFF_THE_BUS = Finding(
    source=Source.KERNEL_LOG,
    kind=FindingKind.XID,
    code="79",
    device=DeviceLocator(uuid=outside.GPU.uuid),
    action=ActionClass.REBOOT_NODE,
    observed_at=50.0,
)


class Recorder:
    """Records conditions, Events and taints."""

    def __init__(self) -> None:
        self.conditions: list[Condition] = []
        self.event_messages: list[EventMessage] = []
        self.verdicts: Sequence[Verdict] = ()

    def set(self, value: Condition | Sequence[Verdict]) -> None:
        if isinstance(value, Condition):
            self.conditions.append(value)
        else:
            self.verdicts = value

    def record(self, event_message: EventMessage) -> None:
        self.event_messages.append(event_message)


class Node:
    """A node with one GPU, and its published conditions, Events and taints."""

    def __init__(self, verdict_store: VerdictStore, *, start_grace: float = 3600.0) -> None:
        self.verdict_store = verdict_store
        self.devices = outside.Devices()
        self.sink = Recorder()
        self.nics: tuple[str, ...] = ()
        self.metrics = Metrics(CollectorRegistry())
        self.health = NodeHealth(
            verdict_store=verdict_store,
            devices=self.devices,
            condition=self.sink,
            events=self.sink,
            metrics=self.metrics,
            taints=self.sink,
            others=lambda: self.nics,
            start_grace=start_grace,
            now=lambda: 100.0,
        )

    def shown(self) -> dict[str, str]:
        """Return the devices in the metrics with their verdicts."""
        samples = [sample for metric in self.metrics.device_verdict.collect() for sample in metric.samples]
        return {each.labels["device"]: each.labels["verdict"] for each in samples if each.value}


@pytest.fixture
def verdict_store(store: Store) -> VerdictStore:
    return verdicts(store, is_there=lambda name: name == NIC or None)


@pytest.fixture
async def node(verdict_store: VerdictStore) -> Node:
    return Node(verdict_store)


def test_healthy_node(node: Node) -> None:
    node.health.publish(HOLDERS)
    (condition,) = node.sink.conditions
    assert (condition.status, condition.message) == (ConditionStatus.TRUE, "1 of 1 devices healthy")
    assert node.sink.event_messages == []


def test_fault_reaches_condition_events_and_taints(node: Node) -> None:
    node.verdict_store.apply(OFF_THE_BUS, inventory=node.devices.inventory)
    node.health.publish(HOLDERS)
    assert (node.sink.conditions[-1].status, node.sink.conditions[-1].reason) == (ConditionStatus.FALSE, "Xid79")
    assert [event_message.about for event_message in node.sink.event_messages] == [None, POD]
    assert [verdict.health for verdict in node.sink.verdicts] == [Health.UNHEALTHY]


def test_new_agent_publishes_nothing_before_driver_is_up(node: Node) -> None:
    known = node.devices.inventory
    node.devices.inventory = DeviceInventory()
    node.health.publish(None)
    assert node.sink.conditions == []
    node.devices.inventory = known
    node.health.publish(HOLDERS)
    assert [condition.status for condition in node.sink.conditions] == [ConditionStatus.TRUE]


def test_fault_of_previous_agent_is_published_without_driver(node: Node) -> None:
    node.verdict_store.apply(OFF_THE_BUS, inventory=node.devices.inventory)
    node.devices.inventory = DeviceInventory()
    node.health.publish(None)
    assert [condition.status for condition in node.sink.conditions] == [ConditionStatus.FALSE]


@pytest.mark.parametrize("inventory", [DeviceInventory(), DeviceInventory(gpus=(outside.GPU,))])
async def test_node_is_unknown_after_long_driver_silence(
    verdict_store: VerdictStore, inventory: DeviceInventory
) -> None:
    node = Node(verdict_store, start_grace=0.0)
    node.devices.inventory = inventory
    node.health.publish(None)
    assert [condition.status for condition in node.sink.conditions] == [ConditionStatus.UNKNOWN]


def test_driver_without_gpus_is_not_healthy(node: Node) -> None:
    node.devices.inventory = DeviceInventory(complete=True)
    node.health.publish({})
    assert (node.sink.conditions[-1].status, node.sink.conditions[-1].reason) == (ConditionStatus.UNKNOWN, "NoDevices")


def test_nics_count_as_devices_of_node(node: Node) -> None:
    node.nics = (NIC,)
    node.health.publish(HOLDERS)
    assert node.sink.conditions[-1].message == "2 of 2 devices healthy"


def test_recovery_is_recorded_for_device_no_longer_listed(node: Node) -> None:
    node.verdict_store.apply(LINK_DOWN, inventory=node.devices.inventory)
    node.health.publish(HOLDERS)
    over = replace(LINK_DOWN, kind=FindingKind.FAULT_OVER, code="LinkDown", action=ActionClass.NONE, observed_at=90.0)
    node.verdict_store.apply(over, inventory=node.devices.inventory)
    for _ in range(2):
        node.health.publish(HOLDERS)
    assert [event_message.reason for event_message in node.sink.event_messages] == ["DeviceDegraded", "DeviceHealthy"]
    assert node.sink.conditions[-1].message == "1 of 1 devices healthy"


def test_metrics_show_a_device_by_its_latest_name_only(node: Node) -> None:
    known, pci = node.devices.inventory, str(outside.GPU.pci)
    node.devices.inventory = DeviceInventory()
    on_the_bus = replace(OFF_THE_BUS, device=DeviceLocator(pci=outside.GPU.pci))
    node.verdict_store.apply(on_the_bus, inventory=node.devices.inventory)
    node.health.publish(None)
    assert node.shown() == {pci: "Unhealthy"}
    node.devices.inventory = known
    node.health.publish(None)
    assert node.shown() == {outside.GPU.uuid: "Unhealthy"}


def test_metrics_drop_a_faulty_gpu_that_was_replaced(node: Node) -> None:
    node.verdict_store.apply(OFF_THE_BUS, inventory=node.devices.inventory)
    node.health.publish({})
    other = replace(outside.GPU, uuid=DeviceId("GPU-2"))
    node.devices.inventory = DeviceInventory(gpus=(other,), complete=True)
    node.health.publish({})
    assert node.shown() == {outside.GPU.uuid: "Unhealthy", "GPU-2": "Healthy"}
    cleared = replace(OFF_THE_BUS, kind=FindingKind.CLEARED, code=fold.GONE, action=ActionClass.NONE, observed_at=90.0)
    node.verdict_store.apply(cleared, inventory=node.devices.inventory)
    node.health.publish({})
    assert node.shown() == {"GPU-2": "Healthy"}
