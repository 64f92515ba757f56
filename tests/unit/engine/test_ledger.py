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
async def ledger(tmp_path: Path) -> AsyncIterator[HealthLedger]:
    store = await Store.open(tmp_path / "state.db")
    yield HealthLedger(store=store, metrics=Metrics(CollectorRegistry()), boot_id="boot-1")
    await store.close()


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
