"""How long a link may be down before its pod fails: by a clock that is never set."""

from pathlib import Path

import pytest

from kubemend.agent.devices import pod_conditions
from kubemend.agent.devices.condition_publisher import ConditionPublisher
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.devices import DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import Allocations
from tests.environments import node
from tests.fakes import outside
from tests.unit.restart import builders

NIC = "0000:3b:00.0"
PATIENCE = pod_conditions.LINK_GRACE_PERIOD
LINK_DOWN = Finding(
    source=Source.NETLINK,
    kind=FindingKind.LINK_DOWN,
    code="",
    device=DeviceLocator(pci=PciAddress.parse(NIC)),
    action=ActionClass.REPLACE,
    observed_at=1000.0,
)


class Clocks:
    """The wall clock, and one that is never set; both in seconds."""

    def __init__(self) -> None:
        self.wall = LINK_DOWN.observed_at
        self.steady = 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.mark.parametrize("step", [0.0, 86_400.0, -86_400.0])
async def test_step_of_the_wall_clock_changes_no_patience(clocks: Clocks, tmp_path: Path, step: float) -> None:
    async with node.node_in(tmp_path) as here:
        here.pods = outside.Pods(builders.pod())
        publisher = ConditionPublisher(
            verdict_store=here.verdict_store,
            pods=here.pods,
            devices=here.devices,
            holders=here.holders,
            reporter=here.said,
            now=lambda: clocks.wall,
            clock=lambda: clocks.steady,
        )

        def fails() -> ConditionStatus:
            publisher.publish(Allocations(known=True))
            return here.said.said[builders.POD, conditions.DEVICE_FAILURE].status

        here.verdict_store.apply(LINK_DOWN, inventory=here.devices.inventory)
        publisher.verdict_changed(device=NIC, named=builders.POD)
        assert fails() is ConditionStatus.FALSE
        clocks.wall += step
        clocks.pass_by(PATIENCE - 1)
        assert fails() is ConditionStatus.FALSE
        assert publisher.verdicts_of(builders.POD, Allocations(known=True)).returning == {NIC}
        clocks.pass_by(1)
        assert fails() is ConditionStatus.TRUE
        assert publisher.verdicts_of(builders.POD, Allocations(known=True)).returning == frozenset()
