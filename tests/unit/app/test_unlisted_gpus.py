"""GPUs on the bus that NVML does not list: their health is unknown, and so is the node's."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent.app.device_sources import UnlistedGpus
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.node_health import NodeHealth
from kubemend.agent.metrics import Metrics
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.devices import DeviceId, PciAddress
from kubemend.agent.model.event_messages import EventMessage
from tests.environments.node import verdicts
from tests.fakes import outside

OTHER = PciAddress.parse("0000:42:00.0")


class Node:
    """A node whose NVML lists one GPU; ``on_bus`` are those of the driver, and ``reads`` counts their listings."""

    def __init__(self, store: Store) -> None:
        self.devices = outside.Devices()
        self.on_bus = [outside.GPU.pci, OTHER]
        self.reads = 0
        self.said: list[Condition] = []
        self.now = 0.0
        self.unlisted = UnlistedGpus(
            inventory=lambda: self.devices.inventory, on_bus=self._read, clock=lambda: self.now, period=30.0
        )
        self.health = NodeHealth(
            verdict_store=verdicts(store),
            devices=self.devices,
            condition=self,
            events=self,
            metrics=Metrics(CollectorRegistry()),
            others=self.unlisted.names,
            start_grace=0.0,
        )

    def _read(self) -> list[PciAddress]:
        self.reads += 1
        return self.on_bus

    def set(self, condition: Condition) -> None:
        self.said.append(condition)

    def record(self, event_message: EventMessage) -> None:
        raise AssertionError(event_message)  # an unknown state is neither a fault nor the end of one

    def condition(self) -> Condition:
        self.health.publish({})
        return self.said[-1]


@pytest.fixture
async def node(store: Store) -> Node:
    return Node(store)


async def test_node_with_a_gpu_that_nvml_does_not_list_is_not_healthy(node: Node) -> None:
    found = node.condition()
    assert (found.type, found.status) == (conditions.DEVICES_HEALTHY, ConditionStatus.UNKNOWN)
    assert str(OTHER) in found.message
    node.devices.inventory = replace(
        node.devices.inventory, gpus=(outside.GPU, replace(outside.GPU, uuid=DeviceId("GPU-9"), pci=OTHER))
    )
    assert node.condition().status is ConditionStatus.TRUE


async def test_gpu_that_is_added_later_is_noticed(node: Node) -> None:
    node.on_bus = [outside.GPU.pci]
    assert node.condition().status is ConditionStatus.TRUE
    node.on_bus = [outside.GPU.pci, OTHER]
    node.now += 30.0
    assert node.condition().status is ConditionStatus.UNKNOWN


async def test_bus_is_read_again_only_after_a_while_or_when_nvml_lists_others(node: Node) -> None:
    for node.now in (0.0, 10.0, 29.0):
        assert node.unlisted.names() == [str(OTHER)]
    assert node.reads == 1
    node.devices.inventory = replace(node.devices.inventory, complete=False)
    assert node.unlisted.names() == []
