"""Store one verdict per device, for all names by which it is reported."""

import dataclasses

import pytest

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DeviceLocator, Gpu, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health
from tests.environments.node import NodeEnv

PCI = PciAddress.parse("0000:41:00.0")
UUID = DeviceId("GPU-1")
NOT_YET = DeviceInventory()
KNOWN = DeviceInventory(gpus=(Gpu(uuid=UUID, pci=PCI, index=0),), complete=True)
LOST = DeviceInventory(gpus=(), complete=True)
OFF_THE_BUS = Finding(
    source=Source.KERNEL_LOG,
    kind=FindingKind.XID,
    code="79",
    device=DeviceLocator(pci=PCI),
    action=ActionClass.REBOOT_NODE,
    observed_at=1.0,
)


@pytest.fixture
def node(store: Store) -> NodeEnv:
    return NodeEnv(store=store, ledger_now=lambda: 1000.0)


@pytest.fixture
def verdict_store(node: NodeEnv) -> VerdictStore:
    return node.verdict_store


async def test_fault_before_driver_start_counts_afterwards(verdict_store: VerdictStore) -> None:
    device = verdict_store.apply(OFF_THE_BUS, inventory=NOT_YET)
    assert device == str(PCI)
    for name in (UUID, device):
        assert verdict_store.verdict(name, inventory=KNOWN).reason == "Xid79"
    assert verdict_store.devices() == {UUID}
    assert verdict_store.active_faults(device) == verdict_store.active_faults(UUID)


async def test_time_since_a_fault_counts_on_when_the_driver_has_named_the_gpu(verdict_store: VerdictStore) -> None:
    before = verdict_store.since_fault(UUID)
    verdict_store.apply(dataclasses.replace(OFF_THE_BUS, observed_at=1000.0), inventory=NOT_YET)
    verdict_store.verdict(UUID, inventory=KNOWN)
    assert (before, verdict_store.since_fault(UUID) < 600.0) == (float("inf"), True)


async def test_time_since_a_fault_counts_no_degradation_and_no_end(verdict_store: VerdictStore) -> None:
    hot = dataclasses.replace(OFF_THE_BUS, kind=FindingKind.HOT, code="", action=ActionClass.OBSERVE)
    over = dataclasses.replace(hot, kind=FindingKind.FAULT_OVER, code="Hot", action=ActionClass.NONE)
    for finding in (hot, over):
        verdict_store.apply(finding, inventory=KNOWN)
    assert verdict_store.since_fault(UUID) == float("inf")


async def test_time_since_a_fault_is_that_of_the_latest_however_the_clock_was_set(verdict_store: VerdictStore) -> None:
    for observed_at in (1000.0, 1.0, 4600.0):  # it is 1000.0
        verdict_store.apply(dataclasses.replace(OFF_THE_BUS, observed_at=observed_at), inventory=KNOWN)
        assert 0.0 <= verdict_store.since_fault(UUID) < 600.0


async def test_fault_on_lost_gpu_counts_for_its_uuid(verdict_store: VerdictStore) -> None:
    assert verdict_store.verdict(UUID, inventory=KNOWN).health is Health.HEALTHY
    verdict_store.apply(OFF_THE_BUS, inventory=LOST)
    assert verdict_store.verdict(UUID, inventory=LOST).action is ActionClass.REBOOT_NODE


async def test_silent_gpu_is_not_healthy(verdict_store: VerdictStore) -> None:
    assert (
        verdict_store.verdict(UUID, inventory=dataclasses.replace(KNOWN, silent=frozenset({UUID}))).health
        is Health.UNKNOWN
    )
    assert verdict_store.verdict(UUID, inventory=KNOWN).health is Health.HEALTHY


async def test_gpu_that_answers_is_healthy_next_to_one_that_cannot_be_identified(verdict_store: VerdictStore) -> None:
    partial = dataclasses.replace(KNOWN, complete=False, partial=True)
    assert verdict_store.verdict(UUID, inventory=partial).health is Health.HEALTHY
    silent = dataclasses.replace(partial, silent=frozenset({UUID}))
    assert verdict_store.verdict(UUID, inventory=silent).health is Health.UNKNOWN
    remembered = dataclasses.replace(KNOWN.gpus[0], index=-1)
    assert verdict_store.verdict(UUID, inventory=dataclasses.replace(partial, gpus=(remembered,))).health is (
        Health.UNKNOWN
    )


async def test_fault_at_the_former_place_of_a_gpu_is_not_its_own(verdict_store: VerdictStore) -> None:
    """The bus was scanned again: the GPU has another address, and NVML lists a new one at its old only later."""
    verdict_store.verdict(UUID, inventory=KNOWN)
    moved = dataclasses.replace(KNOWN.gpus[0], pci=PciAddress.parse("0000:99:00.0"))
    there = dataclasses.replace(KNOWN, gpus=(moved,))
    assert verdict_store.apply(OFF_THE_BUS, inventory=there) == str(PCI)
    assert verdict_store.verdict(UUID, inventory=there).health is Health.HEALTHY


async def test_clock_set_back_delays_no_end(verdict_store: VerdictStore) -> None:
    before = dataclasses.replace(OFF_THE_BUS, action=ActionClass.RESTART_APP, observed_at=4600.0)
    verdict_store.apply(before, inventory=KNOWN)
    gone = dataclasses.replace(before, kind=FindingKind.APP_GONE, action=ActionClass.NONE, observed_at=1000.0)
    verdict_store.apply(gone, inventory=KNOWN)
    assert verdict_store.active_faults(UUID) == ()


@pytest.mark.parametrize(
    "there",
    [
        pytest.param(Gpu(uuid=DeviceId("GPU-2"), pci=PCI, index=0), id="another-in-its-place"),
        pytest.param(Gpu(uuid=UUID, pci=PCI, index=0), id="itself"),
        pytest.param(Gpu(uuid=UUID, pci=PciAddress.parse("0000:99:00.0"), index=0), id="itself-in-another-place"),
    ],
)
async def test_lost_gpu_is_missed_after_a_reboot_until_one_answers_for_it(store: Store, there: Gpu) -> None:
    """It is no longer on the bus, so nothing else shows that the node has one less."""
    gone = dataclasses.replace(OFF_THE_BUS, kind=FindingKind.DEVICE_LOST, code="", device=DeviceLocator(uuid=UUID))
    before = NodeEnv(store=store, boot_id="boot-1").verdict_store
    before.apply(gone, inventory=KNOWN)
    await before.save()
    after = NodeEnv(store=store, boot_id="boot-2").verdict_store
    await after.load(places={UUID: str(PCI)})

    assert after.devices() == {str(PCI)}
    assert after.verdict(str(PCI), inventory=LOST).health is Health.UNHEALTHY

    inventory = DeviceInventory(gpus=(there,), complete=True)
    answers = Finding(
        source=Source.NVML,
        kind=FindingKind.FAULT_OVER,
        code=FindingKind.DEVICE_LOST.value,
        device=DeviceLocator(uuid=there.uuid, pci=there.pci),
        action=ActionClass.NONE,
        observed_at=2.0,
    )
    after.apply(answers, inventory=inventory)
    assert after.devices() == frozenset()
    assert after.verdict(there.uuid, inventory=inventory).health is Health.HEALTHY
