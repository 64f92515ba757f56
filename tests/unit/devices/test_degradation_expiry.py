"""End degradations that the kernel log, while it is read, does not report again."""

import asyncio
from dataclasses import dataclass, field

import pytest

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.degradation_expiry import DegradationExpiry
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceInventory, DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.common.components import ComponentState, ComponentStatus
from tests import eventually
from tests.environments.node import verdicts

NIC, OTHER = PciAddress.parse("0000:c1:00.0"), PciAddress.parse("0000:c2:00.0")
HOUR = 3600.0
READY, BROKEN = ComponentStatus(ComponentState.READY), ComponentStatus(ComponentState.DEGRADED)


@dataclass
class Log:
    """A kernel log and the active faults that it caused."""

    store: Store
    time: float = 1000.0
    clock_set: float = 0.0
    over: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.verdict_store = verdicts(self.store, ledger_now=lambda: self.time + self.clock_set)
        self.fading = DegradationExpiry(
            verdict_store=self.verdict_store,
            catalog=catalog_file.builtin(),
            submit=lambda finding: self.over.append(finding.code),
            now=lambda: self.time + self.clock_set,
            clock=lambda: self.time,
            period=0.01,
        )

    def tells(self, kind: FindingKind, action: ActionClass = ActionClass.OBSERVE, *, nic: PciAddress = NIC) -> None:
        finding = Finding(
            Source.KERNEL_LOG, kind, "", DeviceLocator(pci=nic), action, observed_at=self.time + self.clock_set
        )
        self.verdict_store.apply(finding, inventory=DeviceInventory())

    def over_after(self, seconds: float) -> list[str]:
        self.time += seconds
        self.fading.check()
        return self.over


@pytest.fixture
def log(store: Store) -> Log:
    return Log(store)


def test_expiry_ends_degradation_not_seen_for_long(log: Log) -> None:
    log.fading.kernel_log_is(READY)
    log.tells(FindingKind.NIC_TIMEOUT)
    assert log.over_after(HOUR - 1) == []
    assert log.over_after(1) == ["NicTimeout"]


def test_expiry_keeps_degradation_that_is_seen_again(log: Log) -> None:
    log.fading.kernel_log_is(READY)
    log.tells(FindingKind.NIC_TIMEOUT)
    log.over_after(HOUR - 1)
    log.tells(FindingKind.NIC_TIMEOUT)
    assert log.over_after(HOUR - 1) == []


def test_expiry_ignores_silence_of_unread_log(log: Log) -> None:
    log.tells(FindingKind.NIC_TIMEOUT)
    assert log.over_after(2 * HOUR) == []
    log.fading.kernel_log_is(READY)
    assert log.over_after(HOUR / 2) == []
    log.fading.kernel_log_is(BROKEN)
    log.fading.kernel_log_is(READY)
    assert log.over_after(HOUR / 2) == []
    assert log.over_after(HOUR / 2) == ["NicTimeout"]


def test_expiry_counts_the_silence_from_the_log_s_first_good_state(log: Log) -> None:
    log.tells(FindingKind.NIC_TIMEOUT)
    log.fading.kernel_log_is(READY)
    log.over_after(HOUR - 1)
    log.fading.kernel_log_is(READY)
    assert log.over_after(1) == ["NicTimeout"]


def test_expiry_ignores_degradation_of_other_sources(log: Log) -> None:
    log.fading.kernel_log_is(READY)
    log.tells(FindingKind.LINK_DOWN, ActionClass.REPLACE)
    log.tells(FindingKind.NIC_FATAL, ActionClass.RESET_DEVICE)
    log.tells(FindingKind.NIC_TIMEOUT)
    assert log.over_after(1000 * HOUR) == ["NicTimeout"]


def test_expiry_takes_a_time_in_the_future_for_now(log: Log) -> None:
    log.fading.kernel_log_is(READY)
    log.tells(FindingKind.NIC_TIMEOUT)
    log.clock_set = -5 * HOUR
    assert log.over_after(0.0) == []
    assert log.over_after(HOUR) == ["NicTimeout"]


@pytest.mark.parametrize("step", [-5 * HOUR, 5 * HOUR], ids=["back", "forward"])
def test_expiry_ignores_a_clock_that_was_set(log: Log, step: float) -> None:
    log.fading.kernel_log_is(READY)
    log.over_after(6 * HOUR)
    log.tells(FindingKind.NIC_TIMEOUT)
    log.over_after(1.0)
    log.tells(FindingKind.NIC_TIMEOUT, nic=OTHER)
    log.tells(FindingKind.AER_NON_FATAL)
    assert log.over_after(59.0) == []
    log.clock_set = step
    assert log.over_after(HOUR - 61.0) == []
    assert log.over_after(1.0) == ["NicTimeout"]
    log.over.clear()
    assert sorted(log.over_after(1.0)) == ["AerNonFatal", "NicTimeout", "NicTimeout"]


@pytest.mark.parametrize("step", [-5 * HOUR, 5 * HOUR], ids=["back", "forward"])
def test_expiry_keeps_degradation_that_is_seen_again_after_the_clock_was_set(log: Log, step: float) -> None:
    log.fading.kernel_log_is(READY)
    log.over_after(6 * HOUR)
    log.tells(FindingKind.NIC_TIMEOUT)
    log.over_after(60.0)
    log.clock_set = step
    assert log.over_after(HOUR - 61.0) == []
    log.tells(FindingKind.NIC_TIMEOUT)
    assert log.over_after(60.0) == []
    assert log.over_after(HOUR - 61.0) == []


async def test_expiry_checks_as_long_as_the_agent_runs(log: Log) -> None:
    log.fading.kernel_log_is(READY)
    log.tells(FindingKind.NIC_TIMEOUT)
    log.time += HOUR
    running = asyncio.create_task(log.fading.run())
    await eventually.true(lambda: log.over.count("NicTimeout") > 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
