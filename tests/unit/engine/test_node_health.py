"""What the node is told, from the ledger and the inventory."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.engine.ledger import HealthLedger
from agent.engine.metrics import Metrics
from agent.engine.node_health import NodeHealth
from agent.history.store import Store
from agent.model.actions import ActionClass
from agent.model.announcements import Announcement
from agent.model.conditions import Condition, ConditionStatus
from agent.model.devices import DeviceLocator, Inventory, PciAddress
from agent.model.findings import Finding, FindingKind, Source
from agent.model.verdicts import Health, Verdict
from agent.model.workloads import PodRef, PodUid
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


class Told:
    """Takes in what the condition, the events and the taints are told."""

    def __init__(self) -> None:
        self.conditions: list[Condition] = []
        self.announcements: list[Announcement] = []
        self.verdicts: Sequence[Verdict] = ()

    def set(self, said: Condition | Sequence[Verdict]) -> None:
        if isinstance(said, Condition):
            self.conditions.append(said)
        else:
            self.verdicts = said

    def tell(self, announcement: Announcement) -> None:
        self.announcements.append(announcement)


class Node:
    """A node with one GPU, and what is told of it."""

    def __init__(self, ledger: HealthLedger, *, patience: float = 3600.0) -> None:
        self.ledger = ledger
        self.devices = outside.Devices()
        self.told = Told()
        self.nics: tuple[str, ...] = ()
        self.health = NodeHealth(
            ledger=ledger,
            devices=self.devices,
            condition=self.told,
            events=self.told,
            taints=self.told,
            nics=lambda: self.nics,
            patience=patience,
            now=lambda: 100.0,
        )


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[HealthLedger]:
    store = await Store.open(tmp_path / "state.db")
    yield HealthLedger(
        store=store, metrics=Metrics(CollectorRegistry()), boot_id="boot-1", is_there=lambda name: name == NIC or None
    )
    await store.close()


@pytest.fixture
async def node(ledger: HealthLedger) -> Node:
    return Node(ledger)


def test_healthy_node(node: Node) -> None:
    node.health.publish(HOLDERS)
    (condition,) = node.told.conditions
    assert (condition.status, condition.message) == (ConditionStatus.TRUE, "1 of 1 devices healthy")
    assert node.told.announcements == []


def test_fault_reaches_condition_events_and_taints(node: Node) -> None:
    node.ledger.apply(OFF_THE_BUS, inventory=node.devices.inventory)
    node.health.publish(HOLDERS)
    assert (node.told.conditions[-1].status, node.told.conditions[-1].reason) == (ConditionStatus.FALSE, "Xid79")
    assert [announcement.about for announcement in node.told.announcements] == [None, POD]
    assert [verdict.health for verdict in node.told.verdicts] == [Health.UNHEALTHY]


def test_new_agent_says_nothing_of_the_node_before_the_driver_has_told(node: Node) -> None:
    known = node.devices.inventory
    node.devices.inventory = Inventory()
    node.health.publish(None)
    assert node.told.conditions == []
    node.devices.inventory = known
    node.health.publish(HOLDERS)
    assert [condition.status for condition in node.told.conditions] == [ConditionStatus.TRUE]


def test_fault_that_an_earlier_agent_knew_needs_no_driver(node: Node) -> None:
    node.ledger.apply(OFF_THE_BUS, inventory=node.devices.inventory)
    node.devices.inventory = Inventory()
    node.health.publish(None)
    assert [condition.status for condition in node.told.conditions] == [ConditionStatus.FALSE]


@pytest.mark.parametrize("inventory", [Inventory(), Inventory(gpus=(outside.GPU,))])
async def test_when_nothing_can_be_told_for_long_the_node_is_unknown_not_healthy(
    ledger: HealthLedger, inventory: Inventory
) -> None:
    node = Node(ledger, patience=0.0)
    node.devices.inventory = inventory
    node.health.publish(None)
    assert [condition.status for condition in node.told.conditions] == [ConditionStatus.UNKNOWN]


def test_driver_that_shows_no_gpu_is_not_health(node: Node) -> None:
    node.devices.inventory = Inventory(complete=True)
    node.health.publish({})
    assert (node.told.conditions[-1].status, node.told.conditions[-1].reason) == (ConditionStatus.UNKNOWN, "NoDevices")


def test_nics_count_among_the_nodes_devices(node: Node) -> None:
    node.nics = (NIC,)
    node.health.publish(HOLDERS)
    assert node.told.conditions[-1].message == "2 of 2 devices healthy"


def test_end_of_a_fault_is_told_of_a_device_that_is_listed_nowhere_else(node: Node) -> None:
    node.ledger.apply(LINK_DOWN, inventory=node.devices.inventory)
    node.health.publish(HOLDERS)
    over = replace(LINK_DOWN, kind=FindingKind.FAULT_OVER, code="LinkDown", action=ActionClass.NONE, observed_at=90.0)
    node.ledger.apply(over, inventory=node.devices.inventory)
    for _ in range(2):
        node.health.publish(HOLDERS)
    assert [announcement.reason for announcement in node.told.announcements] == ["DeviceDegraded", "DeviceHealthy"]
    assert node.told.conditions[-1].message == "1 of 1 devices healthy"
