"""The values read of a GPU, through the real pynvml on the fake library, in this process."""

import time
from pathlib import Path

import pytest

from bench import poll_cost
from hack.fakenvml import control
from hack.fakenvml.control import FakeNvml
from hack.fakenvml.layout import Fault
from kubemend.agent.health.gpu.readings import Vital, Vitals
from kubemend.agent.sources.nvml import reader
from kubemend.agent.sources.nvml.protocol import Condition
from kubemend.agent.sources.nvml.source import Periods
from tests.unit.sources.nvml import in_process
from tests.unit.sources.nvml.in_process import Nvml

NVLINK_5 = {Vital.NVLINK_RECEIVE_ERRORS, Vital.NVLINK_RECOVERY_EVENTS}
NOT_SUPPORTED, UNKNOWN = 3, 999
SIGNED_INT = 5


@pytest.fixture
def old_nvml(tmp_path: Path, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """A reader of a library that lacks the newer functions."""
    monkeypatch.setenv(control.STATE_VARIABLE, str(fake.state_path))
    in_process.use(control.build(tmp_path / "old", old_driver=True), monkeypatch)
    return Nvml()


def known(vitals: Vitals) -> set[Vital]:
    return {vital for vital, _ in vitals.values}


def test_full_poll_reads_all_values_of_the_gpu(nvml: Nvml) -> None:
    vitals = nvml.vitals()

    assert known(vitals) == set(Vital) - NVLINK_5
    assert vitals.errors == {}
    assert vitals.full
    assert vitals.by_link(Vital.NVLINK_ACTIVE) == dict.fromkeys(range(18), 1)


def test_values_come_from_their_functions(fake: FakeNvml, nvml: Nvml) -> None:
    fake.busy(gpu=0)
    fake.set(gpu=0, temperature=80, pcie_width=8, pcie_replays=7, retirement_pending=1, sram_threshold_exceeded=1)
    fake.ecc(gpu=0, corrected=5, uncorrected=2)
    fake.ecc(gpu=0, corrected=1, uncorrected=1, sram=True)
    fake.remapped_rows(gpu=0, pending=True)
    fake.field(180, gpu=0, value=4)
    fake.link(3, gpu=0, active=False, replays=9)
    vitals = nvml.vitals()

    expected = {
        Vital.TEMPERATURE: 80,
        Vital.TEMPERATURE_MARGIN: 7,
        Vital.MEMORY_TEMPERATURE: 40,
        Vital.UTILIZATION: 100,
        Vital.SM_CLOCK: 1980,
        Vital.CLOCKS_EVENT_REASONS: 0,
        Vital.PCIE_WIDTH: 8,
        Vital.PCIE_WIDTH_MAX: 16,
        Vital.PCIE_REPLAYS: 7,
        Vital.PCIE_FATAL: 4,
        Vital.ECC_CORRECTED: 6,
        Vital.ECC_UNCORRECTED: 3,
        Vital.ECC_UNCORRECTED_DRAM: 2,
        Vital.ECC_UNCORRECTED_SRAM: 1,
        Vital.SRAM_THRESHOLD: 1,
        Vital.RETIREMENT_PENDING: 1,
        Vital.REMAP_PENDING: 1,
        Vital.REMAP_FAILED: 0,
        Vital.FABRIC_STATE: 3,
        Vital.FABRIC_HEALTH: 0xAA,
    }
    assert {vital: vitals.get(vital) for vital in expected} == expected
    assert (vitals.get(Vital.NVLINK_ACTIVE, 3), vitals.get(Vital.NVLINK_REPLAYS, 3)) == (0, 9)


def test_cheap_poll_makes_few_calls_and_reports_constants(nvml: Nvml) -> None:
    nvml.poll()
    nvml.calls.made.clear()

    vitals = nvml.vitals(full=False)

    assert not vitals.full
    assert {Vital.CLOCKS_EVENT_REASONS, Vital.SM_CLOCK_MAX, Vital.SLOWDOWN_TEMPERATURE} <= known(vitals)
    assert known(vitals).isdisjoint({Vital.ECC_CORRECTED, Vital.NVLINK_ACTIVE, Vital.FABRIC_STATE, Vital.PCIE_WIDTH})
    assert nvml.calls.made.total() <= 8 * 8 + 1


def test_polls_of_eight_h100s_leave_the_worker_a_tenth_of_half_a_percent_of_a_core(nvml: Nvml) -> None:
    nvml.poll()
    work = []
    for full in (False, True):
        nvml.calls.made.clear()
        nvml.poll(full=full)
        work.append(nvml.calls.made.total() * poll_cost.H100_CALL_US / 1e6)
    cheap, full_poll = work

    assert poll_cost.share(cheap=cheap, full=full_poll, periods=Periods()) < 0.0045


def margin_and_temperature(nvml: Nvml, *, full: bool = False) -> tuple[int | None, int | None]:
    vitals = nvml.vitals(full=full)
    return vitals.get(Vital.TEMPERATURE_MARGIN), vitals.get(Vital.TEMPERATURE)


def test_cheap_poll_reads_the_margin_only_near_the_slowdown(fake: FakeNvml, nvml: Nvml) -> None:
    nvml.poll()
    assert margin_and_temperature(nvml) == (None, 32)
    fake.set(gpu=0, temperature=75)
    assert margin_and_temperature(nvml) == (12, 75)


def test_cheap_poll_reads_the_margin_after_a_small_one(fake: FakeNvml, nvml: Nvml) -> None:
    fake.set(gpu=0, temperature=75)
    nvml.poll()
    fake.set(gpu=0, temperature=32)
    assert margin_and_temperature(nvml) == (55, 32)
    assert margin_and_temperature(nvml) == (None, 32)


@pytest.mark.parametrize("lacking", ["nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold"])
def test_cheap_poll_reads_the_margin_of_a_gpu_without_temperature_or_limit(
    fake: FakeNvml, nvml: Nvml, lacking: str
) -> None:
    fake.error(lacking, NOT_SUPPORTED, gpu=0)
    nvml.poll()
    assert margin_and_temperature(nvml)[0] == 55


CONSTANTS = (
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
)


def test_constants_are_read_once(nvml: Nvml) -> None:
    everything = known(nvml.vitals())
    nvml.calls.made.clear()

    assert known(nvml.vitals()) == everything
    assert {function: nvml.calls.made[function] for function in CONSTANTS} == dict.fromkeys(CONSTANTS, 0)


def test_constants_are_read_again_until_they_are_known(fake: FakeNvml, nvml: Nvml) -> None:
    for function in CONSTANTS:
        fake.error(function, UNKNOWN, gpu=0)
    before = known(nvml.vitals())
    for function in CONSTANTS:
        fake.error(function, 0, gpu=0)

    assert known(nvml.vitals()) - before == {
        Vital.SLOWDOWN_TEMPERATURE,
        Vital.MEMORY_MAX_TEMPERATURE,
        Vital.SM_CLOCK_MAX,
        Vital.PCIE_GENERATION_MAX,
        Vital.PCIE_WIDTH_MAX,
    }


def test_fake_calls_cost_processor_time_on_request(fake: FakeNvml, nvml: Nvml) -> None:
    nvml.poll()
    nvml.calls.made.clear()
    fake.cost(microseconds=1000)
    begin = time.thread_time()
    nvml.poll(full=False)
    used = time.thread_time() - begin

    getters = nvml.calls.made.total() - 9  # the eight handles and their count are free
    assert used >= getters / 1000


FUNCTIONS = (
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetMigMode",
)


CHEAP = ("nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons")
"""Functions by which every poll reads a value of every GPU."""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_unsupported_is_neither_value_nor_error(fake: FakeNvml, nvml: Nvml, function: str) -> None:
    everything = known(nvml.vitals())
    fake.error(function, NOT_SUPPORTED, gpu=0)

    fresh = Nvml().slot()

    assert fresh.condition is Condition.ANSWERS
    assert fresh.vitals is not None
    assert fresh.vitals.errors == {}
    assert known(fresh.vitals) < everything


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_failing_call_affects_no_other_value(fake: FakeNvml, nvml: Nvml, function: str) -> None:
    everything = known(nvml.vitals())
    fake.error(function, UNKNOWN, gpu=0)

    slots = Nvml().poll().slots

    failed = slots[0].vitals
    assert slots[0].condition is Condition.ANSWERS
    assert failed is not None
    assert set(failed.errors.values()) <= {UNKNOWN}
    lacking = everything - known(failed)
    assert lacking <= {vital for vital, _ in failed.errors} or function in (
        "nvmlDeviceGetNvLinkState",  # so the counters of links are not read
        "nvmlDeviceGetMigMode",  # only the list of instances needs it
    )
    assert slots[1].vitals is not None
    assert known(slots[1].vitals) == everything


def test_field_value_is_used_only_with_its_own_result(fake: FakeNvml, nvml: Nvml) -> None:
    """Other tools' defect 9: an unsupported field value was read as 0 or as uninitialized memory."""
    fake.field(control.RECOVERY_ACTION_FIELD, gpu=0, value=2, result=NOT_SUPPORTED)
    fake.field(173, gpu=0, value=77, result=UNKNOWN)
    fake.field(174, gpu=0, value=5)

    slot = nvml.slot()

    assert slot.vitals is not None
    assert slot.vitals.get(Vital.RECOVERY_ACTION) is None
    assert slot.recovery_action == 0
    assert slot.vitals.get(Vital.PCIE_CORRECTABLE) is None
    assert slot.vitals.errors == {(Vital.PCIE_CORRECTABLE, 0): UNKNOWN}
    assert slot.vitals.get(Vital.PCIE_NAKS_RECEIVED) == 5


def test_field_value_is_read_by_its_type(fake: FakeNvml, nvml: Nvml) -> None:
    fake.field(194, gpu=0, value=-2, value_type=SIGNED_INT)

    assert nvml.vitals().get(Vital.SLOWDOWN_MARGIN) == -2


def test_missing_functions_are_called_once_and_are_not_faults(old_nvml: Nvml) -> None:
    first = old_nvml.vitals()
    asked = old_nvml.calls.made.copy()
    for _ in range(3):
        old_nvml.poll()

    lacking = {Vital.TEMPERATURE_MARGIN, Vital.SRAM_THRESHOLD, Vital.FABRIC_STATE, Vital.CLOCKS_EVENT_REASONS}
    assert known(first).isdisjoint(lacking)
    assert first.errors == {}
    for function in (
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ):
        assert (function, asked[function], old_nvml.calls.made[function]) == (function, 1, 1)


def test_links_without_fields_are_counted_by_older_function(fake: FakeNvml, nvml: Nvml) -> None:
    fake.link(2, gpu=0, replays=11, recoveries=4)
    with fake.gpu(0) as gpu:
        gpu.link_results[:] = (NOT_SUPPORTED,) * 4

    vitals = nvml.vitals()

    assert (vitals.get(Vital.NVLINK_REPLAYS, 2), vitals.get(Vital.NVLINK_RECOVERIES, 2)) == (11, 4)


def test_nvlink_5_is_counted_by_its_own_fields(fake: FakeNvml, nvml: Nvml) -> None:
    with fake.gpu(0) as gpu:
        gpu.link_results[:] = (NOT_SUPPORTED, NOT_SUPPORTED, 0, 0)
        gpu.links[5].counters[3] = 6

    vitals = nvml.vitals()

    assert vitals.get(Vital.NVLINK_RECOVERY_EVENTS, 5) == 6
    assert vitals.by_link(Vital.NVLINK_REPLAYS) == {}


@pytest.mark.parametrize("count", [0, 12])
def test_gpu_with_fewer_links_is_not_a_fault(fake: FakeNvml, nvml: Nvml, count: int) -> None:
    fake.links(count, gpu=0)

    vitals = nvml.vitals()

    assert vitals.by_link(Vital.NVLINK_ACTIVE) == dict.fromkeys(range(count), 1)
    assert vitals.errors == {}


@pytest.mark.parametrize(
    ("fault", "condition"),
    [
        pytest.param(Fault.LOST, Condition.LOST, id="lost"),
        pytest.param(Fault.RESET_REQUIRED, Condition.RESET_REQUIRED, id="reset-required"),
    ],
)
def test_unusable_gpu_is_queried_no_more_than_needed(
    fake: FakeNvml, nvml: Nvml, fault: Fault, condition: Condition
) -> None:
    nvml.poll()
    fake.fault(fault, gpu=0)
    nvml.calls.made.clear()

    slot = nvml.slot()

    assert (slot.condition, slot.vitals) == (condition, None)
    assert slot.gpu is not None
    assert nvml.calls.made["nvmlDeviceGetTemperature"] == 7


def test_gpu_lost_during_a_poll_is_lost(fake: FakeNvml, nvml: Nvml) -> None:
    fake.error("nvmlDeviceGetPcieReplayCounter", reader.GPU_IS_LOST, gpu=0)

    slot = nvml.slot()

    assert slot.condition is Condition.LOST


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("fails", "condition"), [(False, Condition.ANSWERS), (True, Condition.UNREADABLE)], ids=["works", "fails"]
)
def test_gpu_without_row_remapping_mig_and_recovery_action_answers_by_its_other_values(
    fake: FakeNvml, nvml: Nvml, *, fails: bool, condition: Condition, full: bool
) -> None:
    """As a T4 or V100 with a driver before R570."""
    for function in ("nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues"):
        fake.error(function, NOT_SUPPORTED, gpu=0)
    for function in CHEAP if fails else ():
        fake.error(function, UNKNOWN, gpu=0)

    slot = nvml.slot(full=full)

    assert slot.condition is condition
    assert ("Unknown" in slot.error) is fails


def test_gpu_that_answers_only_an_error_reports_it(fake: FakeNvml, nvml: Nvml) -> None:
    fake.error("nvmlDeviceGetUUID", 14, gpu=0)

    slot = nvml.slot()

    assert slot.condition is Condition.UNREADABLE
    assert slot.vitals is not None
    assert set(slot.vitals.errors.values()) == {14}
