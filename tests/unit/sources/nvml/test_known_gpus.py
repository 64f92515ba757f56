"""What is kept of GPUs: by a new agent of the previous one, and after an operator's clear."""

from dataclasses import replace

import pytest

from hack.fakenvml import control
from hack.fakenvml.control import FakeNvml, gpu_uuid
from kubemend.agent.health.gpu.gpu_inventory_state import KnownGpus
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.sources.nvml.finding_emitter import FindingEmitter
from kubemend.agent.sources.nvml.protocol import Snapshot
from kubemend.agent.sources.nvml.source import Periods
from kubemend.common.components import ComponentState
from tests import eventually
from tests.unit.sources.nvml.conftest import Start, classify
from tests.unit.sources.nvml.test_changes import REQUIRES_NOTHING, gpu
from tests.unit.sources.nvml.test_vitals import AT_ONCE, GPU


def required(*, at: float) -> Finding:
    """Return the line of an Xid 154 that asks for a reset."""
    device = DeviceLocator(pci=PciAddress.parse("0000:37:00.0"))
    return Finding(Source.KERNEL_LOG, FindingKind.XID, "154", device, ActionClass.RESET_DEVICE, observed_at=at)


async def test_clear_ends_a_fault_whose_value_is_gone_until_it_is_there_again(fake: FakeNvml, start: Start) -> None:
    """As of a GPU on which ECC was switched off: it has no count that could show the end."""
    uuid, ecc = gpu_uuid(GPU), "nvmlDeviceGetTotalEccErrors"
    env = start(limits=AT_ONCE)
    await env.over(FindingKind.ECC_UNCORRECTED, gpu=GPU)
    fake.ecc(gpu=GPU, uncorrected=1)
    await env.finding(FindingKind.ECC_UNCORRECTED)
    assert FindingKind.ECC_UNCORRECTED not in env.source.unobserved(uuid)

    fake.error(ecc, 3, gpu=GPU)
    await eventually.true(lambda: FindingKind.ECC_UNCORRECTED in env.source.unobserved(uuid))
    env.source.forget(uuid)
    await env.over(FindingKind.ECC_UNCORRECTED, gpu=GPU)

    fake.error(ecc, 0, gpu=GPU)
    await env.finding(FindingKind.ECC_UNCORRECTED)


async def test_clear_ends_a_requirement_of_a_driver_that_reports_none(fake: FakeNvml, start: Start) -> None:
    """The kernel log alone has shown it (Xid 154)."""
    fake.field(control.RECOVERY_ACTION_FIELD, gpu=GPU, value=0, result=3)
    env = start(limits=AT_ONCE)
    await env.status(ComponentState.READY)

    env.source.forget(gpu_uuid(GPU))

    await env.over(FindingKind.RECOVERY_ACTION, gpu=GPU)
    assert FindingKind.RECOVERY_ACTION not in env.source.unobserved(gpu_uuid(0))


async def test_requirement_in_a_line_that_is_read_late_ends(start: Start) -> None:
    """The first poll has reported that nothing is required, and NVML reports only changes."""
    env = start()
    over = await env.over(FindingKind.RECOVERY_ACTION, gpu=GPU)

    env.source.note_log(required(at=over.observed_at - 10.0))

    again = await env.over(FindingKind.RECOVERY_ACTION)
    while again.device.uuid != gpu_uuid(GPU):
        assert again.observed_at == over.observed_at  # the other GPUs at the first poll
        again = await env.over(FindingKind.RECOVERY_ACTION)
    assert again.observed_at > over.observed_at


@pytest.mark.parametrize(
    ("line_at", "ends"), [pytest.param(99.0, ["GPU-0"], id="read-late"), pytest.param(101.0, [], id="not-polled-since")]
)
def test_only_a_poll_after_the_requirement_shows_that_it_is_over(line_at: float, ends: list[str]) -> None:
    emitted = list[Finding]()
    emitter = FindingEmitter(
        emit=emitted.append, classify=classify, known_before=KnownGpus(), on_inventory=lambda _: None, limits=Limits()
    )
    slots = tuple(replace(REQUIRES_NOTHING, index=number, gpu=gpu(number)) for number in (0, 1))
    emitter.snapshot(Snapshot(taken_at=100.0, clock=1.0, driver_version="", slots=slots), after_gap=True)
    emitted.clear()

    emitter.required_by_log(gpu(0).pci, at=line_at)
    emitter.snapshot(Snapshot(taken_at=105.0, clock=2.0, driver_version="", slots=slots), after_gap=False)

    assert [each.device.uuid for each in emitted if each.code == FindingKind.RECOVERY_ACTION.value] == ends


async def test_link_that_was_up_for_a_previous_agent_is_down(fake: FakeNvml, start: Start) -> None:
    fake.link(7, gpu=GPU, active=False)
    fake.link(8, gpu=GPU, active=False)  # was never up
    env = start(links_before={DeviceId(gpu_uuid(GPU)): frozenset({7})}, limits=AT_ONCE)
    down = await env.finding(FindingKind.NVLINK_DOWN)
    assert (down.device.uuid, down.text) == (gpu_uuid(GPU), "NVLink 7 of 18 is down")


async def test_link_that_was_down_for_a_previous_agent_is_up_next_to_one_that_never_was(
    fake: FakeNvml, start: Start
) -> None:
    up = frozenset(range(18)) - {8}
    fake.link(8, gpu=GPU, active=False)
    env = start(links_before={DeviceId(gpu_uuid(GPU)): up}, limits=AT_ONCE)
    await env.over(FindingKind.NVLINK_DOWN, gpu=GPU)
    assert (await env.inventories.get()).links[DeviceId(gpu_uuid(GPU))] == up


async def test_gpu_of_previous_agent_that_is_missing_is_lost(fake: FakeNvml, start: Start) -> None:
    """Other tools' defect 10: the list of GPUs was read at the start; a GPU already gone was never missed."""
    gone = {DeviceId(gpu_uuid(number)): PciAddress(domain=0, bus=0x10 + 13 * number, device=0) for number in range(8)}
    fake.remove(gpu=GPU)
    env = start(known_before=gone)

    lost = await env.finding(FindingKind.DEVICE_LOST)

    assert lost.device == DeviceLocator(uuid=DeviceId(gpu_uuid(GPU)), pci=gone[DeviceId(gpu_uuid(GPU))])
    assert lost.text.startswith("GPU at 0000:37:00.0")
    assert env.findings.empty()
    assert env.inventories.get_nowait().gpus == gone  # the next agent needs no other list


async def test_gpu_lost_later_counts_against_all_ever_seen(fake: FakeNvml, start: Start) -> None:
    """Other tools' defect 10: a GPU lost after the start never showed as a mismatch of the count."""
    env = start()
    await env.status(ComponentState.READY)

    fake.remove(gpu=GPU)
    lost = await env.finding(FindingKind.DEVICE_LOST)

    assert lost.device.uuid == gpu_uuid(GPU)
    assert set(env.inventories.get_nowait().gpus) == {gpu_uuid(number) for number in range(8)}
    assert env.inventories.empty()


async def test_dismissed_missing_gpu_is_not_passed_on(fake: FakeNvml, start: Start) -> None:
    env = start(periods=Periods(poll_period=0.2, full_period=0.2, reinit_period=0.2))
    await env.status(ComponentState.READY)
    assert gpu_uuid(GPU) in (await env.inventories.get()).gpus
    fake.remove(gpu=GPU)
    await env.finding(FindingKind.DEVICE_LOST)

    env.source.forget(gpu_uuid(GPU))  # possibly before a new nvmlInit shows that it is missing

    assert gpu_uuid(GPU) not in (await env.inventories.get()).gpus
    assert len(env.source.inventory.gpus) == 7


async def test_gpu_replaced_in_its_place_is_not_passed_on(fake: FakeNvml, start: Start) -> None:
    place = PciAddress(domain=0, bus=0x10, device=0)
    env = start(known_before={DeviceId("GPU-that-was-swapped-out"): place})
    await env.status(ComponentState.READY)

    known = env.inventories.get_nowait().gpus
    assert "GPU-that-was-swapped-out" not in known
    assert known[DeviceId(gpu_uuid(0))] == place
    assert env.findings.empty()
