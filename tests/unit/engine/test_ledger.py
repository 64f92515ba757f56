"""The ledger: one device has one verdict, by whatever name it is told of."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.engine.ledger import HealthLedger
from agent.engine.metrics import Metrics
from agent.history.store import Store
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator, Gpu, GpuUuid, Inventory, PciAddress
from agent.model.findings import Finding, FindingKind, Source
from agent.model.verdicts import Health

PCI = PciAddress.parse("0000:41:00.0")
UUID = GpuUuid("GPU-1")
NOT_YET = Inventory()
KNOWN = Inventory(gpus=(Gpu(uuid=UUID, pci=PCI, index=0),), complete=True)
LOST = Inventory(gpus=(), complete=True)
OFF_THE_BUS = Finding(
    source=Source.KERNEL_LOG,
    kind=FindingKind.XID,
    code="79",
    device=DeviceLocator(pci=PCI),
    action=ActionClass.REBOOT_NODE,
    observed_at=1.0,
)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


@pytest.fixture
async def ledger(tmp_path: Path, metrics: Metrics) -> AsyncIterator[HealthLedger]:
    store = await Store.open(tmp_path / "state.db")
    yield HealthLedger(store=store, metrics=metrics, boot_id="boot-1", now=lambda: 1000.0)
    await store.close()


def shown(metrics: Metrics) -> set[str]:
    """Return the devices whose verdicts are in the metrics."""
    return {sample.labels["device"] for metric in metrics.device_verdict.collect() for sample in metric.samples}


async def test_a_fault_from_before_the_driver_was_up_counts_when_it_is(ledger: HealthLedger) -> None:
    device = ledger.apply(OFF_THE_BUS, inventory=NOT_YET)
    assert device == str(PCI)
    for name in (UUID, device):
        assert ledger.verdict(name, inventory=KNOWN).reason == "Xid79"
    assert ledger.devices() == {UUID}
    assert ledger.latches(device) == ledger.latches(UUID)


async def test_a_fault_on_a_gpu_that_the_driver_has_lost_counts_for_its_uuid(ledger: HealthLedger) -> None:
    assert ledger.verdict(UUID, inventory=KNOWN).health is Health.HEALTHY
    ledger.apply(OFF_THE_BUS, inventory=LOST)
    assert ledger.verdict(UUID, inventory=LOST).action is ActionClass.REBOOT_NODE


async def test_a_gpu_that_does_not_answer_now_is_not_said_to_be_healthy(ledger: HealthLedger) -> None:
    assert ledger.verdict(UUID, inventory=dataclasses.replace(KNOWN, silent=frozenset({UUID}))).health is Health.UNKNOWN
    assert ledger.verdict(UUID, inventory=KNOWN).health is Health.HEALTHY


async def test_a_device_is_shown_by_its_last_name_only(ledger: HealthLedger, metrics: Metrics) -> None:
    ledger.verdict(ledger.apply(OFF_THE_BUS, inventory=NOT_YET), inventory=NOT_YET)
    assert shown(metrics) == {str(PCI)}
    ledger.verdict(UUID, inventory=KNOWN)
    assert shown(metrics) == {UUID}


async def test_a_gpu_that_another_has_replaced_is_not_shown_any_more(ledger: HealthLedger, metrics: Metrics) -> None:
    ledger.verdict(UUID, inventory=KNOWN)
    other = Inventory(gpus=(Gpu(uuid=GpuUuid("GPU-2"), pci=PCI, index=0),), complete=True)
    ledger.verdict("GPU-2", inventory=other)
    assert shown(metrics) == {"GPU-2"}


async def test_a_clock_that_is_set_back_holds_up_no_end(ledger: HealthLedger) -> None:
    before = dataclasses.replace(OFF_THE_BUS, action=ActionClass.RESTART_APP, observed_at=4600.0)
    ledger.apply(before, inventory=KNOWN)
    gone = dataclasses.replace(before, kind=FindingKind.APP_GONE, action=ActionClass.NONE, observed_at=1000.0)
    ledger.apply(gone, inventory=KNOWN)
    assert ledger.latches(UUID) == ()
