"""The faults that each rule raises, when, and how they end; and the states that it must not raise."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kubemend.agent.health.gpu import fold
from kubemend.agent.health.gpu.readings import Key, Vital, Vitals
from kubemend.agent.model.findings import FindingKind
from tests.unit.health.vitals import builders
from tests.unit.health.vitals.builders import (
    AT_REST,
    HEALTHY,
    LIMITS,
    PER_LINK,
    PERIOD,
    Watched,
    begun,
    but,
    failing,
    without,
)

HOUR = 3600.0

Grow = Callable[[int], Vitals]


def still(vitals: Vitals) -> Grow:
    return lambda _: vitals


def growing(vital: Vital, by: int, *, link: int = 0) -> Grow:
    start = HEALTHY.values[vital, link]
    return lambda poll: but({vital: start + by * poll}, link=link)


FAULTS: dict[FindingKind, Grow] = {
    FindingKind.ECC_UNCORRECTED: still(but({Vital.ECC_UNCORRECTED: 2, Vital.ECC_UNCORRECTED_SRAM: 2})),
    FindingKind.ECC_SRAM_THRESHOLD: still(but({Vital.SRAM_THRESHOLD: 1})),
    FindingKind.ECC_CORRECTED_RATE: growing(Vital.ECC_CORRECTED, 20),
    FindingKind.ROW_REMAP_PENDING: still(but({Vital.REMAP_PENDING: 1})),
    FindingKind.ROW_REMAP_FAILED: still(but({Vital.REMAP_FAILED: 1})),
    FindingKind.PAGE_RETIREMENT_PENDING: still(but({Vital.RETIREMENT_PENDING: 1})),
    FindingKind.NVLINK_DOWN: lambda poll: HEALTHY if poll == 0 else but({Vital.NVLINK_ACTIVE: 0}, link=2),
    FindingKind.NVLINK_ERRORS: growing(Vital.NVLINK_REPLAYS, 4, link=3),
    FindingKind.FABRIC_FAILED: still(but({Vital.FABRIC_STATUS: 999})),
    FindingKind.FABRIC_DEGRADED: still(but({Vital.FABRIC_HEALTH: 0x1A9})),  # degraded bandwidth: yes
    FindingKind.PCIE_NARROW: still(but({Vital.PCIE_WIDTH: 8})),
    FindingKind.PCIE_SLOW: still(but({Vital.PCIE_GENERATION: 3})),
    FindingKind.PCIE_ERRORS: growing(Vital.PCIE_REPLAYS, 10),
    FindingKind.THROTTLED: still(but({Vital.CLOCKS_EVENT_REASONS: 0x40})),
    FindingKind.HOT: still(but({Vital.TEMPERATURE_MARGIN: -3})),
    FindingKind.SLOW_UNDER_LOAD: still(but({Vital.SM_CLOCK: 600})),
    FindingKind.NVML_ERROR: still(failing(14, (Vital.PSTATE, 0))),
}
BY_EVENT = (FindingKind.MEMORY_POISONED, FindingKind.GPU_UNAVAILABLE)


def test_every_judged_kind_is_tested_here() -> None:
    assert {*FAULTS, *BY_EVENT} == set(fold.RULES)


@pytest.mark.parametrize("kind", FAULTS)
def test_fault_is_emitted_once_at_begin_and_once_at_end(kind: FindingKind) -> None:
    gpu = Watched()

    for poll in range(40):  # twenty minutes
        gpu.poll(FAULTS[kind](poll))
    while_it_lasted = begun(gpu.emitted)
    last = replace(HEALTHY, values={**HEALTHY.values, **_counters(FAULTS[kind](39))})
    gpu.poll(last, seconds=2 * HOUR)

    assert while_it_lasted == [kind]
    assert gpu.of(kind)[-2:] == [True, False]
    assert gpu.state.held() == frozenset()


def _counters(vitals: Vitals) -> dict[tuple[Vital, int], int]:
    """The final values of the counters: they do not change when nothing happens any more."""
    counting = (Vital.ECC_CORRECTED, Vital.PCIE_REPLAYS, Vital.NVLINK_REPLAYS)
    return {key: value for key, value in vitals.values.items() if key[0] in counting}


@pytest.mark.parametrize("kind", BY_EVENT)
def test_fault_begun_by_event_ends_on_lasting_driver_none(kind: FindingKind) -> None:
    gpu = Watched()
    gpu.state = fold.begun(gpu.state, kind, now=gpu.now)

    gpu.poll(but({Vital.RECOVERY_ACTION: 0}), period=5.0)
    gpu.poll(but({Vital.RECOVERY_ACTION: 1}), seconds=HOUR)
    gpu.poll(without(Vital.RECOVERY_ACTION), seconds=HOUR)
    held = kind in gpu.state.held()
    gpu.poll(HEALTHY, seconds=LIMITS.settle)
    at_once = gpu.of(kind)
    gpu.poll(HEALTHY)

    assert held
    assert at_once == []
    assert gpu.of(kind) == [False]


def test_recovery_action_alone_is_not_an_event() -> None:
    gpu = Watched()

    gpu.poll(but({Vital.RECOVERY_ACTION: 1}), seconds=HOUR)

    assert set(BY_EVENT).isdisjoint(emitted.kind for emitted in gpu.emitted)


@pytest.mark.parametrize("poll", [pytest.param(HEALTHY, id="at-work"), pytest.param(AT_REST, id="at-rest")])
def test_healthy_gpu_raises_nothing(poll: Vitals) -> None:
    gpu = Watched()

    gpu.poll(poll, seconds=4 * HOUR)

    assert begun(gpu.emitted) == []


def test_start_emits_over_once_for_every_absent_kind() -> None:
    gpu = Watched()

    gpu.poll(HEALTHY, seconds=HOUR)

    assert sorted(emitted.kind.value for emitted in gpu.emitted) == sorted(kind.value for kind in fold.RULES)


def test_gpu_without_values_emits_nothing() -> None:
    gpu = Watched()

    gpu.poll(Vitals(full=True), seconds=HOUR)

    assert gpu.emitted == []


@pytest.mark.parametrize("kind", FAULTS)
def test_unread_values_neither_raise_nor_end_anything(kind: FindingKind) -> None:
    gpu = Watched()
    for poll in range(40):
        gpu.poll(FAULTS[kind](poll))

    gpu.poll(Vitals(full=True), seconds=4 * HOUR)

    assert gpu.state.held() == {kind}


@pytest.mark.parametrize("vital", [vital for vital in Vital if (vital, 0) in HEALTHY.values])
def test_value_that_gpu_lacks_raises_nothing(vital: Vital) -> None:
    gpu = Watched()

    gpu.poll(without(vital), seconds=HOUR)

    assert begun(gpu.emitted) == []


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        pytest.param(FindingKind.NVLINK_ERRORS, (Vital.NVLINK_REPLAYS, 3), id="link-errors"),
        pytest.param(FindingKind.PCIE_ERRORS, (Vital.PCIE_REPLAYS, 0), id="pcie-errors"),
    ],
)
def test_failed_reading_of_the_counter_that_has_grown_ends_nothing(kind: FindingKind, key: Key) -> None:
    gpu = Watched()
    for poll in range(70):  # longer than every window
        gpu.poll(FAULTS[kind](poll))

    gpu.poll(failing(999, key), seconds=4 * HOUR)

    assert gpu.of(kind) == [True]


def test_counter_that_can_never_be_read_does_not_block_the_end_of_others() -> None:
    gpu = Watched()
    for poll in range(70):
        gpu.poll(failing(999, (Vital.NVLINK_REPLAYS, 1), of=FAULTS[FindingKind.NVLINK_ERRORS](poll)))

    gpu.poll(failing(999, (Vital.NVLINK_REPLAYS, 1), of=FAULTS[FindingKind.NVLINK_ERRORS](69)), seconds=HOUR)

    assert gpu.of(FindingKind.NVLINK_ERRORS) == [True, False]


def test_lifetime_link_counts_are_not_a_fault() -> None:
    """A mistake of another tool: DCGM 4.6.1 took the counts that H100s carry from their production for faults."""
    gpu = Watched()

    gpu.poll(but({Vital.NVLINK_REPLAYS: 10**9, Vital.NVLINK_RECOVERIES: 10**6}, link=0), seconds=HOUR)

    assert begun(gpu.emitted) == []


def test_restarted_counters_invent_no_error() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY, seconds=HOUR)

    gpu.poll(but({Vital.NVLINK_REPLAYS: 100, Vital.NVLINK_RECOVERIES: 30}, link=0), seconds=HOUR)

    assert begun(gpu.emitted) == []


def test_higher_count_after_reset_is_not_growth() -> None:
    gpu = Watched()
    gpu.poll(but({Vital.PCIE_REPLAYS: 0}), seconds=HOUR)

    gpu.state = fold.renewed(gpu.state)
    gpu.poll(but({Vital.PCIE_REPLAYS: 500}), seconds=HOUR)

    assert begun(gpu.emitted) == []


def test_fault_outlives_reset_until_its_own_evidence() -> None:
    gpu = Watched()
    gpu.poll(but({Vital.REMAP_PENDING: 1}))

    gpu.state = fold.renewed(gpu.state)
    still_held = gpu.state.held()
    gpu.poll(HEALTHY)

    assert still_held == {FindingKind.ROW_REMAP_PENDING}
    assert gpu.of(FindingKind.ROW_REMAP_PENDING) == [True, False]


def test_growth_across_a_gap_is_not_a_rate() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)

    gpu.now += 8 * HOUR  # a driver that hung all night
    gpu.poll(but({Vital.PCIE_REPLAYS: 9_500, Vital.ECC_CORRECTED: 12_500}), seconds=HOUR)

    assert begun(gpu.emitted) == []


def test_one_fatal_pcie_error_is_a_fault() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)

    emitted = gpu.poll(but({Vital.PCIE_FATAL: 4}))

    assert begun(emitted) == [FindingKind.PCIE_ERRORS]
    assert "fatal" in emitted[0].text


def test_link_is_judged_only_while_the_gpu_works() -> None:
    gpu = Watched()

    gpu.poll(AT_REST, seconds=HOUR)
    under_mig = without(Vital.UTILIZATION, of=but({Vital.PCIE_WIDTH: 8, Vital.MIG_MODE: 1}))
    idle_mig = but({Vital.CLOCKS_EVENT_REASONS: 1}, of=under_mig)
    gpu.poll(idle_mig, seconds=HOUR)
    at_rest = begun(gpu.emitted)
    gpu.poll(under_mig, seconds=HOUR)

    assert at_rest == []
    assert begun(gpu.emitted) == [FindingKind.PCIE_NARROW]


def test_link_that_was_never_up_is_not_down() -> None:
    gpu = Watched()

    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=1), seconds=HOUR)

    assert gpu.of(FindingKind.NVLINK_DOWN) == []  # not over either: a previous agent may have seen it up


def test_links_never_up_do_not_block_the_end_of_others() -> None:
    gpu = Watched()
    bridged = but({Vital.NVLINK_ACTIVE: 0}, link=3)
    gpu.poll(bridged)
    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=1, of=bridged), seconds=HOUR)
    assert FindingKind.NVLINK_DOWN in gpu.state.held()

    gpu.poll(bridged, seconds=HOUR)

    assert FindingKind.NVLINK_DOWN not in gpu.state.held()


def test_unread_link_is_not_up_again() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)
    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=1), seconds=HOUR)

    gpu.poll(failing(999, (Vital.NVLINK_ACTIVE, 1)), seconds=HOUR)
    gpu.poll(Vitals(values={key: value for key, value in HEALTHY.values.items() if key[1] != 1}, full=True))

    assert FindingKind.NVLINK_DOWN in gpu.state.held()


def test_short_drop_of_a_link_is_not_emitted() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY, seconds=HOUR)

    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=1))
    gpu.poll(HEALTHY, seconds=HOUR)

    assert begun(gpu.emitted) == []


def test_links_are_down_by_design_under_mig() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)

    gpu.poll(but({Vital.MIG_MODE: 1}, of=but({Vital.NVLINK_ACTIVE: 0}, link=1)), seconds=HOUR)

    assert FindingKind.NVLINK_DOWN not in begun(gpu.emitted)


def test_link_that_was_down_is_no_fault_once_the_gpu_is_under_mig() -> None:
    """Nothing uses it. Its fault would stay until MIG is off, and an operator cannot clear it."""
    gpu = Watched()
    down = but({Vital.NVLINK_ACTIVE: 0}, link=1)
    gpu.poll(HEALTHY)
    gpu.poll(down, seconds=HOUR)
    assert FindingKind.NVLINK_DOWN in gpu.state.held()

    gpu.poll(but({Vital.MIG_MODE: 1}, of=down), seconds=HOUR)

    assert FindingKind.NVLINK_DOWN not in gpu.state.held()
    gpu.poll(down, seconds=HOUR)
    assert FindingKind.NVLINK_DOWN in gpu.state.held()


def test_errors_of_links_are_no_fault_once_the_gpu_is_under_mig() -> None:
    gpu = Watched()
    errors = FAULTS[FindingKind.NVLINK_ERRORS]
    for poll in range(40):
        gpu.poll(errors(poll))

    gpu.poll(without(*PER_LINK, of=but({Vital.MIG_MODE: 1})), seconds=HOUR)

    assert gpu.of(FindingKind.NVLINK_ERRORS) == [True, False]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        pytest.param(0x0, None, id="not-supported"),
        pytest.param(0xAA, None, id="non-zero-but-all-no"),
        pytest.param(0x1AA, None, id="configuration-fine"),
        pytest.param(0x5AAA, None, id="fields-that-are-no-fault"),
        pytest.param(0xA9, "bandwidth", id="degraded-bandwidth"),
        pytest.param(0x9A, "route is unhealthy", id="route-unhealthy"),
        pytest.param(0x5AA, "too few NVLinks", id="too-few-links"),
    ],
)
def test_fabric_mask_is_read_field_by_field(mask: int, expected: str | None) -> None:
    """A mistake of another tool: a mask that is not 0 was taken for a fault (eks-node-monitoring-agent 181)."""
    gpu = Watched()

    gpu.poll(but({Vital.FABRIC_HEALTH: mask}), seconds=HOUR)

    texts = [emitted.text for emitted in gpu.emitted if emitted.kind is FindingKind.FABRIC_DEGRADED and emitted.begins]
    assert texts == [] if expected is None else expected in texts[0]


def test_fabric_that_the_driver_reports_no_more_is_not_awaited() -> None:
    gpu = Watched()
    gpu.poll(but({Vital.FABRIC_STATE: 2}))
    gpu.poll(but({Vital.FABRIC_STATE: 0}), seconds=LIMITS.fabric_wait)
    assert not gpu.state.joins_fabric(LIMITS)


def test_fabric_in_setup_is_given_time() -> None:
    gpu = Watched()

    gpu.poll(but({Vital.FABRIC_STATE: 2}), seconds=LIMITS.fabric_wait - PERIOD)
    early, joins = begun(gpu.emitted), gpu.state.joins_fabric(LIMITS)
    gpu.poll(but({Vital.FABRIC_STATE: 1}), seconds=2 * PERIOD)

    assert (early, joins, gpu.state.joins_fabric(LIMITS)) == ([], True, False)
    assert begun(gpu.emitted) == [FindingKind.FABRIC_FAILED]


@pytest.mark.parametrize(
    ("changes", "hot"),
    [
        pytest.param({Vital.TEMPERATURE_MARGIN: 0}, False, id="above-the-hardware-margin"),
        pytest.param({Vital.TEMPERATURE_MARGIN: -2}, True, id="at-the-hardware-margin"),
        pytest.param({Vital.MEMORY_TEMPERATURE: 95}, True, id="memory"),
        pytest.param({Vital.MEMORY_TEMPERATURE: 0}, False, id="memory-not-measured"),
        pytest.param({Vital.TEMPERATURE: 90}, False, id="the-margin-goes-before-the-temperature"),
    ],
)
def test_heat_is_measured_against_the_gpus_own_limits(changes: dict[Vital, int], hot: bool) -> None:
    gpu = Watched()

    gpu.poll(but(changes), seconds=HOUR)

    assert (FindingKind.HOT in begun(gpu.emitted)) is hot


def test_gpu_without_margin_uses_its_slowdown_temperature() -> None:
    gpu = Watched()

    gpu.poll(without(Vital.TEMPERATURE_MARGIN, of=but({Vital.TEMPERATURE: 87})), seconds=HOUR)

    assert FindingKind.HOT in begun(gpu.emitted)


def test_temperature_between_hot_and_cool_changes_nothing() -> None:
    gpu = Watched()
    gpu.poll(but({Vital.TEMPERATURE_MARGIN: -3}), seconds=HOUR)

    gpu.poll(but({Vital.TEMPERATURE_MARGIN: 1}), seconds=HOUR)

    assert gpu.of(FindingKind.HOT) == [True]


def test_peaks_with_time_between_hot_and_cool_are_neither_heat_nor_its_end() -> None:
    peak, between, cool = (but({Vital.TEMPERATURE_MARGIN: margin}) for margin in (-3, 1, 25))
    gpu = Watched()
    for vitals in (peak, between, peak, between):
        gpu.poll(vitals)
        gpu.poll(between, seconds=HOUR)
    assert FindingKind.HOT not in begun(gpu.emitted)

    gpu.poll(peak, seconds=HOUR)
    for vitals in (cool, between, cool, between):
        gpu.poll(vitals)
        gpu.poll(between, seconds=HOUR)
    assert gpu.of(FindingKind.HOT) == [True]


@pytest.mark.parametrize(
    ("sensor", "limit", "other"),
    [
        (Vital.TEMPERATURE_MARGIN, -2, Vital.MEMORY_TEMPERATURE),
        (Vital.MEMORY_TEMPERATURE, 95, Vital.TEMPERATURE_MARGIN),
    ],
)
def test_heat_outlasts_only_failed_readings_of_the_sensor_that_showed_it(
    sensor: Vital, limit: int, other: Vital
) -> None:
    gpu = Watched()
    gpu.poll(but({sensor: limit}), seconds=HOUR)

    gpu.poll(failing(999, (sensor, 0)), seconds=HOUR)
    before = gpu.of(FindingKind.HOT)
    gpu.poll(failing(999, (other, 0)), seconds=HOUR)

    assert (before, gpu.of(FindingKind.HOT)) == ([True], [True, False])


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_throttling_is_judged_by_its_share_of_time(share: float) -> None:
    gpu = Watched()

    for poll in range(200):
        gpu.poll(but({Vital.CLOCKS_EVENT_REASONS: 0x80 if poll % 10 < share * 10 else 0}))

    assert (FindingKind.THROTTLED in begun(gpu.emitted)) is (share >= LIMITS.throttled_share)


@pytest.mark.parametrize(
    ("kind", "key", "values"),
    [
        pytest.param(FindingKind.THROTTLED, (Vital.CLOCKS_EVENT_REASONS, 0), (0x80, 0, 0), id="throttled"),
        pytest.param(FindingKind.SLOW_UNDER_LOAD, (Vital.SM_CLOCK, 0), (600, 600, 1980), id="slow"),
    ],
)
def test_share_between_begin_and_end_changes_nothing(kind: FindingKind, key: Key, values: tuple[int, int, int]) -> None:
    gpu = Watched()
    for poll in range(40):
        gpu.poll(FAULTS[kind](poll))

    for poll in range(60):
        gpu.poll(but({key[0]: values[poll % 3]}))

    assert gpu.of(kind) == [True]


@pytest.mark.parametrize(
    ("kind", "key", "window", "most"),
    [
        pytest.param(
            FindingKind.ECC_CORRECTED_RATE,
            (Vital.ECC_CORRECTED, 0),
            LIMITS.corrected_window,
            LIMITS.corrected_errors,
            id="corrected-memory-errors",
        ),
        pytest.param(
            FindingKind.NVLINK_ERRORS,
            (Vital.NVLINK_REPLAYS, 3),
            LIMITS.link_window,
            LIMITS.link_errors,
            id="link-errors",
        ),
        pytest.param(
            FindingKind.PCIE_ERRORS,
            (Vital.PCIE_REPLAYS, 0),
            LIMITS.pcie_window,
            LIMITS.pcie_replays,
            id="pcie-errors",
        ),
    ],
)
def test_counted_errors_begin_above_their_limit_and_last_above_its_half(
    kind: FindingKind, key: Key, window: float, most: int
) -> None:
    count = HEALTHY.values[key]

    def burst(errors: int) -> Vitals:
        nonlocal count
        count += errors
        return but({key[0]: count}, link=key[1])

    gpu = Watched()
    gpu.poll(HEALTHY)
    gpu.poll(burst(most))
    assert gpu.of(kind) == []
    gpu.poll(burst(1))
    for _ in range(4):  # each in the window of the one before, and all of more than half of the limit
        gpu.poll(burst(most // 2 + 1))
        gpu.poll(burst(0), seconds=0.8 * window)
    assert gpu.of(kind)[-1:] == [True]
    gpu.poll(burst(0), seconds=2 * window)

    assert gpu.of(kind) == [True, False]


@pytest.mark.parametrize("reason", [0x1, 0x2, 0x4, 0x10, 0x20, 0x100])
def test_low_clocks_explained_by_driver_are_not_slow(reason: int) -> None:
    gpu = Watched()

    gpu.poll(but({Vital.SM_CLOCK: 300, Vital.CLOCKS_EVENT_REASONS: reason}), seconds=HOUR)

    assert begun(gpu.emitted) == []


def test_low_clocks_begin_and_end_only_with_a_poll_that_shows_the_clock() -> None:
    gpu = Watched()
    gpu.poll(but({Vital.SM_CLOCK: 600}), seconds=LIMITS.slow_window - 2 * PERIOD)

    gpu.poll(failing(999, (Vital.SM_CLOCK, 0)), seconds=2 * PERIOD)
    unread = gpu.of(FindingKind.SLOW_UNDER_LOAD)
    emitted = gpu.poll(but({Vital.SM_CLOCK: 600}))

    assert unread == []
    assert [each.text.split(",")[0] for each in emitted] == ["works at 600 of 1980 MHz for 5 min"]


def test_low_clocks_at_rest_are_not_slow() -> None:
    gpu = Watched()

    gpu.poll(but({Vital.SM_CLOCK: 300, Vital.UTILIZATION: 40}), seconds=HOUR)

    assert begun(gpu.emitted) == []


@pytest.mark.parametrize("code", [1, 2, 4, 6, 21, 27, 999])
def test_errors_unrelated_to_the_board_raise_nothing(code: int) -> None:
    gpu = Watched()

    gpu.poll(failing(code, (Vital.PSTATE, 0)), seconds=HOUR)

    assert begun(gpu.emitted) == []


@pytest.mark.parametrize("code", [8, 11, 14])
def test_board_error_is_emitted_with_its_code(code: int) -> None:
    gpu = Watched()

    emitted = gpu.poll(failing(code, (Vital.PSTATE, 0)))

    assert [(each.kind, each.code) for each in emitted if each.begins] == [(FindingKind.NVML_ERROR, str(code))]


def test_partial_poll_ends_no_board_error() -> None:
    gpu = Watched()
    gpu.poll(failing(14, (Vital.SRAM_THRESHOLD, 0)))

    gpu.poll(replace(HEALTHY, full=False), seconds=HOUR)

    assert FindingKind.NVML_ERROR in gpu.state.held()


def test_uncorrected_errors_are_emitted_again_only_when_doubled() -> None:
    gpu = Watched()

    for count in range(1, 101):
        gpu.poll(but({Vital.ECC_UNCORRECTED: count}), seconds=2 * LIMITS.report_interval)

    texts = [emitted.text for emitted in gpu.emitted if emitted.kind is FindingKind.ECC_UNCORRECTED]
    assert [text.split()[0] for text in texts] == ["1", "2", "4", "8", "16", "32", "64"]


def test_another_link_down_is_emitted() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)
    one = but({Vital.NVLINK_ACTIVE: 0}, link=1)
    gpu.poll(one, seconds=HOUR)

    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=2, of=one), seconds=HOUR)

    texts = [emitted.text for emitted in gpu.emitted if emitted.kind is FindingKind.NVLINK_DOWN and emitted.begins]
    assert texts == ["NVLink 1 of 4 is down", "NVLink 1, 2 of 4 is down"]


def test_builders_describe_a_gpu_with_every_link_up() -> None:
    assert HEALTHY.by_link(Vital.NVLINK_ACTIVE) == dict.fromkeys(range(builders.LINKS), 1)
