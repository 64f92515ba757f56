"""Faults in the readings of the fake NVML, through the worker process, to findings and their ends."""

import time
from collections.abc import Callable, Mapping

import pytest

from hack.fakenvml import control
from hack.fakenvml.control import FakeNvml, MigSpec, RecoveryAction, gpu_uuid, mig_uuid
from kubemend.agent.health.gpu import fold
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.model.devices import DeviceId, DeviceLocator, PciAddress
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.sources.nvml import events
from kubemend.agent.sources.nvml.protocol import DevicesAnswer
from kubemend.agent.sources.nvml.source import Periods
from kubemend.common.components import ComponentState
from tests import eventually
from tests.unit.sources.nvml.conftest import NEVER, PATIENCE, QUICK, Start

AT_ONCE = Limits(settle=0.0, report_interval=0.0, link_down=0.0, fabric_wait=0.0, pcie_begin=0.0, hot_begin=0.0)
QUICK_WINDOWS = Limits(
    settle=0.0, corrected_window=3.0, link_window=3.0, pcie_window=3.0, throttled_window=3.0, slow_window=3.0
)
GPU = 3

Change = Callable[[FakeNvml], None]

FAULTS: Mapping[FindingKind, tuple[Change, Change]] = {
    FindingKind.ECC_UNCORRECTED: (
        lambda fake: fake.ecc(gpu=GPU, uncorrected=1),
        lambda fake: fake.after_reset(gpu=GPU),
    ),
    FindingKind.ECC_SRAM_THRESHOLD: (
        lambda fake: fake.set(gpu=GPU, sram_threshold_exceeded=1),
        lambda fake: fake.set(gpu=GPU, sram_threshold_exceeded=0),
    ),
    FindingKind.ROW_REMAP_PENDING: (
        lambda fake: fake.remapped_rows(gpu=GPU, pending=True),
        lambda fake: fake.remapped_rows(gpu=GPU),
    ),
    FindingKind.ROW_REMAP_FAILED: (
        lambda fake: fake.remapped_rows(gpu=GPU, failure=True),
        lambda fake: fake.remapped_rows(gpu=GPU),
    ),
    FindingKind.PAGE_RETIREMENT_PENDING: (
        lambda fake: fake.set(gpu=GPU, retirement_pending=1),
        lambda fake: fake.set(gpu=GPU, retirement_pending=0),
    ),
    FindingKind.NVLINK_DOWN: (
        lambda fake: fake.link(7, gpu=GPU, active=False),
        lambda fake: fake.link(7, gpu=GPU),
    ),
    FindingKind.FABRIC_FAILED: (
        lambda fake: fake.set(gpu=GPU, fabric_status=999),
        lambda fake: fake.set(gpu=GPU, fabric_status=0),
    ),
    FindingKind.FABRIC_DEGRADED: (
        lambda fake: fake.set(gpu=GPU, fabric_mask=0xA9),
        lambda fake: fake.set(gpu=GPU, fabric_mask=0xAA),
    ),
    FindingKind.PCIE_NARROW: (
        lambda fake: fake.set(gpu=GPU, pcie_width=8, utilization=100),
        lambda fake: fake.set(gpu=GPU, pcie_width=16),
    ),
    FindingKind.PCIE_SLOW: (
        lambda fake: fake.set(gpu=GPU, pcie_generation=3, utilization=100),
        lambda fake: fake.set(gpu=GPU, pcie_generation=5),
    ),
    FindingKind.HOT: (
        lambda fake: fake.set(gpu=GPU, temperature=90),
        lambda fake: fake.set(gpu=GPU, temperature=60),
    ),
    FindingKind.NVML_ERROR: (
        lambda fake: fake.error("nvmlDeviceGetTemperature", 14, gpu=GPU),
        lambda fake: fake.error("nvmlDeviceGetTemperature", 0, gpu=GPU),
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
async def test_fault_of_one_gpu_is_found_and_ends(fake: FakeNvml, start: Start, kind: FindingKind) -> None:
    begin, end = FAULTS[kind]
    env = start(limits=AT_ONCE)
    await env.over(kind, gpu=GPU)  # the one at the start

    begin(fake)
    found = await env.finding(kind)
    end(fake)
    over = await env.over(kind, gpu=GPU)

    assert found.device == DeviceLocator(uuid=DeviceId(gpu_uuid(GPU)), pci=PciAddress.parse("0000:37:00.0"))
    assert found.code == ("14" if kind is FindingKind.NVML_ERROR else "")
    assert found.text
    assert over.observed_at >= found.observed_at
    assert env.findings.empty()


RATES: Mapping[FindingKind, Callable[[FakeNvml, int], None]] = {
    FindingKind.ECC_CORRECTED_RATE: lambda fake, count: fake.ecc(gpu=GPU, corrected=200 * count),
    FindingKind.NVLINK_ERRORS: lambda fake, count: fake.link(2, gpu=GPU, replays=40 * count),
    FindingKind.PCIE_ERRORS: lambda fake, count: fake.set(gpu=GPU, pcie_replays=100 * count),
}


@pytest.mark.parametrize("kind", RATES)
async def test_counter_is_judged_by_growth_alone(fake: FakeNvml, start: Start, kind: FindingKind) -> None:
    RATES[kind](fake, 1)  # counts from before the watch
    env = start(limits=QUICK_WINDOWS)
    await env.over(kind, gpu=GPU)
    before = env.findings.empty()

    RATES[kind](fake, 2)
    found = await env.finding(kind)
    await env.over(kind, gpu=GPU)

    assert before
    assert found.device.uuid == gpu_uuid(GPU)


async def test_throttling_is_found_after_its_window(fake: FakeNvml, start: Start) -> None:
    fake.set(gpu=GPU, clocks_event_reasons=0x80)
    env = start(limits=QUICK_WINDOWS)

    found = await env.finding(FindingKind.THROTTLED)
    fake.set(gpu=GPU, clocks_event_reasons=0)
    await env.over(FindingKind.THROTTLED, gpu=GPU)

    assert "100%" in found.text


async def test_gpu_far_below_its_clocks_is_found(fake: FakeNvml, start: Start) -> None:
    fake.busy(gpu=GPU)
    fake.set(gpu=GPU, sm_clock=500)
    env = start(limits=QUICK_WINDOWS)

    found = await env.finding(FindingKind.SLOW_UNDER_LOAD)
    fake.busy(gpu=GPU)
    await env.over(FindingKind.SLOW_UNDER_LOAD, gpu=GPU)

    assert "500 of 1980 MHz" in found.text


async def test_start_emits_over_for_every_absent_fault(start: Start) -> None:
    env = start(limits=QUICK_WINDOWS)
    needs_load = {FindingKind.SLOW_UNDER_LOAD}
    expected: set[tuple[str | None, str]] = {
        (gpu_uuid(number), kind.value)
        for number in range(8)
        for kind in {*fold.RULES, FindingKind.DEVICE_LOST, FindingKind.RECOVERY_ACTION} - needs_load
    }
    expected |= {
        (None, kind.value) for kind in (FindingKind.DEVICE_LOST, FindingKind.NVML_ERROR)
    }  # without a GPU's name

    emitted: list[tuple[str | None, str]] = []
    while set(emitted) != expected:
        over = await env.overs.get()
        emitted.append((over.device.uuid, over.code))

    assert len(emitted) == len(expected)
    assert env.findings.empty()


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        pytest.param(events.GPU_UNAVAILABLE, FindingKind.GPU_UNAVAILABLE, id="unavailable"),
        pytest.param(events.FATAL_POISON, FindingKind.MEMORY_POISONED, id="fatal-poison"),
    ],
)
async def test_event_fault_is_over_when_driver_recommends_nothing(
    fake: FakeNvml, start: Start, event: int, kind: FindingKind
) -> None:
    env = start(limits=Limits(settle=1.0))
    await env.status(ComponentState.READY)
    await env.over(kind, gpu=GPU)

    fake.recovery(RecoveryAction.GPU_RESET, gpu=GPU, event=False)
    await env.finding(FindingKind.RECOVERY_ACTION)
    fake.event(event, gpu=GPU)
    found = await env.finding(kind)
    fake.recovery(RecoveryAction.NONE, gpu=GPU)
    await env.finding(FindingKind.RECOVERY_ACTION)
    over = await env.over(kind, gpu=GPU)

    assert found.device.uuid == gpu_uuid(GPU)
    assert over.observed_at > found.observed_at


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(events.DOUBLE_BIT_ECC, id="double-bit-ecc"),
        pytest.param(events.DRAM_RETIREMENT, id="retirement"),
        pytest.param(events.DRAM_RETIREMENT_FAILURE, id="retirement-failure"),
        pytest.param(events.NON_FATAL_POISON, id="non-fatal-poison"),
    ],
)
async def test_event_without_its_own_kind_triggers_a_poll(fake: FakeNvml, start: Start, event: int) -> None:
    env = start(periods=Periods(poll_period=NEVER, full_period=NEVER))
    await env.status(ComponentState.READY)
    fake.remapped_rows(gpu=GPU, pending=True)

    fake.event(event, gpu=GPU)

    await env.finding(FindingKind.ROW_REMAP_PENDING)


async def test_event_triggers_reading_of_rare_values(fake: FakeNvml, start: Start) -> None:
    env = start(periods=Periods(poll_period=NEVER, full_period=NEVER))
    await env.status(ComponentState.READY)
    fake.ecc(gpu=GPU, uncorrected=1)

    fake.event(events.DOUBLE_BIT_ECC, gpu=GPU)

    await env.finding(FindingKind.ECC_UNCORRECTED)


async def test_event_storm_delays_no_answer_and_hides_no_xid(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    for _ in range(20):
        fake.event(events.DOUBLE_BIT_ECC, gpu=1, times=100)
        answer = await env.source.query([DeviceId(gpu_uuid(GPU))], timeout=PATIENCE)
        assert isinstance(answer, DevicesAnswer)
    fake.xid(gpu=GPU, code=94)

    assert (await env.finding(FindingKind.XID)).device.uuid == gpu_uuid(GPU)


async def test_reset_restarts_counters_and_faults_end_by_evidence(fake: FakeNvml, start: Start) -> None:
    fake.set(gpu=GPU, pcie_replays=5)
    fake.remapped_rows(gpu=GPU, pending=True)
    env = start(limits=QUICK_WINDOWS)
    await env.finding(FindingKind.ROW_REMAP_PENDING)
    await env.over(FindingKind.PCIE_ERRORS, gpu=GPU)

    time.sleep(4 * QUICK.poll_period)  # noqa: ASYNC251 - polls wait in the pipe, and are read after the release
    assert await env.source.release(timeout=PATIENCE)
    fake.after_reset(gpu=GPU)
    fake.set(gpu=GPU, pcie_replays=900)  # more than before: links also count during training
    env.source.resume()
    await env.over(FindingKind.ROW_REMAP_PENDING, gpu=GPU)
    fake.xid(gpu=GPU, code=13)

    await env.finding(FindingKind.XID)  # and no finding in between
    assert env.findings.empty()


async def test_unidentified_gpu_with_board_fault_is_reported(fake: FakeNvml, start: Start) -> None:
    fake.error("nvmlDeviceGetUUID", 8, gpu=GPU)
    env = start()

    found = await env.finding(FindingKind.NVML_ERROR)
    fake.error("nvmlDeviceGetUUID", 0, gpu=GPU)
    over = await env.over(FindingKind.NVML_ERROR)

    assert (found.code, found.device) == ("8", DeviceLocator())
    while over.device != DeviceLocator():
        over = await env.over(FindingKind.NVML_ERROR)


# ---- defects of other tools (each test fails with the naive approach) ----


async def test_every_mig_instance_has_its_own_xids(fake: FakeNvml, start: Start) -> None:
    """Other tools' defect 3: a map from GPU to MIG device kept only the last; Xids of its siblings were dropped."""
    fake.mig(*(MigSpec(gpu_instance=number) for number in (1, 2, 3)), gpu=GPU)
    env = start()
    await env.status(ComponentState.READY)

    for number in (1, 2, 3):
        fake.xid(gpu=GPU, code=43, gpu_instance=number, compute_instance=0)
    found = [await env.finding(FindingKind.XID) for _ in range(3)]

    assert [env.source.inventory.allocatable_ids(finding.device) for finding in found] == [
        frozenset({DeviceId(mig_uuid(GPU, slot))}) for slot in range(3)
    ]


async def test_xid_of_whole_gpu_concerns_every_mig_instance(fake: FakeNvml, start: Start) -> None:
    """Other tools' defect 4: an Xid without an instance was looked up as an instance, not found, and ignored."""
    fake.mig(MigSpec(gpu_instance=1), MigSpec(gpu_instance=2), gpu=GPU)
    env = start()
    await env.status(ComponentState.READY)

    fake.xid(gpu=GPU, code=79)
    found = await env.finding(FindingKind.XID)

    ids = map(DeviceId, (gpu_uuid(GPU), mig_uuid(GPU, 0), mig_uuid(GPU, 1)))
    assert env.source.inventory.allocatable_ids(found.device) == frozenset(ids)


async def test_no_xid_of_a_burst_is_dropped(fake: FakeNvml, start: Start) -> None:
    """Other tools' defect 4: events that did not fit into a channel were dropped."""
    env = start()
    await env.status(ComponentState.READY)

    for code in range(200):
        fake.xid(gpu=GPU, code=code)

    assert [(await env.finding(FindingKind.XID)).code for _ in range(200)] == [str(code) for code in range(200)]


async def test_unsupported_field_is_never_a_recovery_action(fake: FakeNvml, start: Start) -> None:
    """Other tools' defect 9: a field's value was used without its own nvmlReturn: unsupported read as NONE, healthy."""
    fake.field(control.RECOVERY_ACTION_FIELD, gpu=GPU, value=0, result=3)
    env = start(limits=AT_ONCE)
    await env.status(ComponentState.READY)

    fake.event(events.GPU_UNAVAILABLE, gpu=GPU)
    await env.finding(FindingKind.GPU_UNAVAILABLE)
    fake.remapped_rows(gpu=GPU, pending=True)
    await env.finding(FindingKind.ROW_REMAP_PENDING)
    fake.remapped_rows(gpu=GPU)
    ended = list[str]()
    while ended.count(FindingKind.ROW_REMAP_PENDING.value) < 2:  # at the start, and again now
        over = await env.overs.get()
        ended += [over.code] if over.device.uuid == gpu_uuid(GPU) else []

    assert FindingKind.GPU_UNAVAILABLE.value not in ended


async def test_gpu_is_not_proven_until_the_fabric_manager_has_initialized_it(fake: FakeNvml, start: Start) -> None:
    """CUDA does not start on it: a new node would seem healthy, and get pods."""
    fake.set(gpu=GPU, fabric_state=2)
    source = start().source
    await eventually.true(lambda: source.inventory.complete)
    assert [source.inventory.answers(gpu_uuid(each)) for each in (GPU, GPU + 1)] == [False, True]
    fake.set(gpu=GPU, fabric_state=3)
    await eventually.true(lambda: source.inventory.answers(gpu_uuid(GPU)) is True)
