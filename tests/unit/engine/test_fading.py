"""What a log told of fades when the log, while it is read, does not tell of it again."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.engine.fading import Fading
from agent.engine.ledger import HealthLedger
from agent.engine.metrics import Metrics
from agent.health import catalog_file
from agent.history.store import Store
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator, Inventory, PciAddress
from agent.model.findings import Finding, FindingKind, Source
from common.parts import PartState, PartStatus

NIC = PciAddress.parse("0000:c1:00.0")
HOUR = 3600.0
READY, BROKEN = PartStatus(PartState.READY), PartStatus(PartState.DEGRADED)


@dataclass
class Log:
    """A kernel log and what is held because of it."""

    ledger: HealthLedger
    time: float = 1000.0
    over: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fading = Fading(
            ledger=self.ledger,
            catalog=catalog_file.builtin(),
            submit=lambda finding: self.over.append(finding.code),
            now=lambda: self.time,
            clock=lambda: self.time,
        )

    def tells(self, kind: FindingKind, action: ActionClass = ActionClass.OBSERVE) -> None:
        finding = Finding(Source.KERNEL_LOG, kind, "", DeviceLocator(pci=NIC), action, observed_at=self.time)
        self.ledger.apply(finding, inventory=Inventory())

    def over_after(self, seconds: float) -> list[str]:
        self.time += seconds
        self.fading.look()
        return self.over


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    store = await Store.open(tmp_path / "state.db")
    yield Log(HealthLedger(store=store, metrics=Metrics(CollectorRegistry()), boot_id="boot-1"))
    await store.close()


def test_what_is_not_told_again_for_long_enough_is_over(log: Log) -> None:
    log.fading.kernel_log_is(READY)
    log.tells(FindingKind.NIC_TIMEOUT)
    assert log.over_after(HOUR - 1) == []
    assert log.over_after(1) == ["NicTimeout"]


def test_what_is_told_again_goes_on(log: Log) -> None:
    log.fading.kernel_log_is(READY)
    log.tells(FindingKind.NIC_TIMEOUT)
    log.over_after(HOUR - 1)
    log.tells(FindingKind.NIC_TIMEOUT)
    assert log.over_after(HOUR - 1) == []


def test_silence_of_a_log_that_is_not_read_says_nothing(log: Log) -> None:
    log.tells(FindingKind.NIC_TIMEOUT)
    assert log.over_after(2 * HOUR) == []
    log.fading.kernel_log_is(READY)
    assert log.over_after(HOUR / 2) == []
    log.fading.kernel_log_is(BROKEN)
    log.fading.kernel_log_is(READY)
    assert log.over_after(HOUR / 2) == []
    assert log.over_after(HOUR / 2) == ["NicTimeout"]


def test_what_another_source_ends_does_not_fade(log: Log) -> None:
    log.fading.kernel_log_is(READY)
    log.tells(FindingKind.LINK_DOWN, ActionClass.REPLACE)
    log.tells(FindingKind.NIC_FATAL, ActionClass.RESET_DEVICE)
    assert log.over_after(1000 * HOUR) == []
