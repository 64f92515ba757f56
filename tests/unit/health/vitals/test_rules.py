"""What each rule raises, when, and by what it ends; and what it must not raise."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.health.vitals import fold
from agent.health.vitals.readings import Vital, Vitals
from agent.model.findings import FindingKind
from tests.unit.health.vitals import builders
from tests.unit.health.vitals.builders import AT_REST, HEALTHY, LIMITS, PERIOD, Watched, begun, but, failing, without

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


def test_every_kind_that_is_judged_is_tested_here() -> None:
    assert {*FAULTS, *BY_EVENT} == set(fold.RULES)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_begins_once_holds_while_it_lasts_and_is_over_once_after_it(kind: FindingKind) -> None:
    gpu = Watched()

    for poll in range(40):  # twenty minutes
        gpu.poll(FAULTS[kind](poll))
    while_it_lasted = begun(gpu.told)
    last = replace(HEALTHY, values={**HEALTHY.values, **_counters(FAULTS[kind](39))})
    gpu.poll(last, seconds=2 * HOUR)

    assert while_it_lasted == [kind]
    assert gpu.of(kind)[-2:] == [True, False]
    assert gpu.state.held() == frozenset()


def _counters(vitals: Vitals) -> dict[tuple[Vital, int], int]:
    """The counters where they have come to: they stay there when nothing happens any more."""
    counting = (Vital.ECC_CORRECTED, Vital.PCIE_REPLAYS, Vital.NVLINK_REPLAYS)
    return {key: value for key, value in vitals.values.items() if key[0] in counting}


@pytest.mark.parametrize("kind", BY_EVENT)
def test_what_an_event_began_is_over_when_the_driver_wants_nothing_for_long_enough(kind: FindingKind) -> None:
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


def test_a_recovery_action_alone_is_no_event() -> None:
    gpu = Watched()

    gpu.poll(but({Vital.RECOVERY_ACTION: 1}), seconds=HOUR)

    assert set(BY_EVENT).isdisjoint(told.kind for told in gpu.told)


@pytest.mark.parametrize("poll", [pytest.param(HEALTHY, id="at-work"), pytest.param(AT_REST, id="at-rest")])
def test_a_healthy_gpu_raises_nothing(poll: Vitals) -> None:
    gpu = Watched()

    gpu.poll(poll, seconds=4 * HOUR)

    assert begun(gpu.told) == []


def test_at_the_start_all_that_does_not_hold_is_told_to_be_over_once() -> None:
    gpu = Watched()

    gpu.poll(HEALTHY, seconds=HOUR)

    assert sorted(told.kind.value for told in gpu.told) == sorted(kind.value for kind in fold.RULES)


def test_a_gpu_that_tells_nothing_gives_no_word() -> None:
    gpu = Watched()

    gpu.poll(Vitals(full=True), seconds=HOUR)

    assert gpu.told == []


@pytest.mark.parametrize("kind", FAULTS)
def test_what_cannot_be_read_neither_raises_nor_ends_anything(kind: FindingKind) -> None:
    gpu = Watched()
    for poll in range(40):
        gpu.poll(FAULTS[kind](poll))

    gpu.poll(Vitals(full=True), seconds=4 * HOUR)

    assert gpu.state.held() == {kind}


@pytest.mark.parametrize("vital", [vital for vital in Vital if (vital, 0) in HEALTHY.values])
def test_a_value_that_a_gpu_does_not_have_raises_nothing(vital: Vital) -> None:
    gpu = Watched()

    gpu.poll(without(vital), seconds=HOUR)

    assert begun(gpu.told) == []


def test_lifetime_counts_of_links_are_no_fault_however_large() -> None:
    """Peers' pitfall: DCGM 4.6.1 took the counts that H100s carry from their making for faults."""
    gpu = Watched()

    gpu.poll(but({Vital.NVLINK_REPLAYS: 10**9, Vital.NVLINK_RECOVERIES: 10**6}, link=0), seconds=HOUR)

    assert begun(gpu.told) == []


def test_counters_that_start_anew_invent_no_error() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY, seconds=HOUR)

    gpu.poll(but({Vital.NVLINK_REPLAYS: 100, Vital.NVLINK_RECOVERIES: 30}, link=0), seconds=HOUR)

    assert begun(gpu.told) == []


def test_after_a_reset_a_higher_count_than_before_is_no_growth() -> None:
    gpu = Watched()
    gpu.poll(but({Vital.PCIE_REPLAYS: 0}), seconds=HOUR)

    gpu.state = fold.renewed(gpu.state)
    gpu.poll(but({Vital.PCIE_REPLAYS: 500}), seconds=HOUR)

    assert begun(gpu.told) == []


def test_a_fault_outlives_a_reset_until_its_own_evidence() -> None:
    gpu = Watched()
    gpu.poll(but({Vital.REMAP_PENDING: 1}))

    gpu.state = fold.renewed(gpu.state)
    still_held = gpu.state.held()
    gpu.poll(HEALTHY)

    assert still_held == {FindingKind.ROW_REMAP_PENDING}
    assert gpu.of(FindingKind.ROW_REMAP_PENDING) == [True, False]


def test_growth_while_nobody_looked_is_no_rate() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)

    gpu.now += 8 * HOUR  # a driver that hung all night
    gpu.poll(but({Vital.PCIE_REPLAYS: 9_500, Vital.ECC_CORRECTED: 12_500}), seconds=HOUR)

    assert begun(gpu.told) == []


def test_one_fatal_pcie_error_is_enough() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)

    told = gpu.poll(but({Vital.PCIE_FATAL: 4}))

    assert begun(told) == [FindingKind.PCIE_ERRORS]
    assert "fatal" in told[0].text


def test_a_link_is_judged_only_while_the_gpu_works() -> None:
    gpu = Watched()

    gpu.poll(AT_REST, seconds=HOUR)
    under_mig = without(Vital.UTILIZATION, of=but({Vital.PCIE_WIDTH: 8, Vital.MIG_MODE: 1}))
    idle_mig = but({Vital.CLOCKS_EVENT_REASONS: 1}, of=under_mig)
    gpu.poll(idle_mig, seconds=HOUR)
    at_rest = begun(gpu.told)
    gpu.poll(under_mig, seconds=HOUR)

    assert at_rest == []
    assert begun(gpu.told) == [FindingKind.PCIE_NARROW]


def test_a_link_that_never_was_up_is_not_down() -> None:
    gpu = Watched()

    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=1), seconds=HOUR)

    assert gpu.of(FindingKind.NVLINK_DOWN) == []  # not over either: an agent before may have seen it up


def test_links_that_never_were_up_do_not_hold_up_the_end_of_what_others_had() -> None:
    gpu = Watched()
    bridged = but({Vital.NVLINK_ACTIVE: 0}, link=3)
    gpu.poll(bridged)
    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=1, of=bridged), seconds=HOUR)
    assert FindingKind.NVLINK_DOWN in gpu.state.held()

    gpu.poll(bridged, seconds=HOUR)

    assert FindingKind.NVLINK_DOWN not in gpu.state.held()


def test_a_link_that_cannot_be_read_is_not_up_again() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)
    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=1), seconds=HOUR)

    gpu.poll(failing(999, (Vital.NVLINK_ACTIVE, 1)), seconds=HOUR)
    gpu.poll(Vitals(values={key: value for key, value in HEALTHY.values.items() if key[1] != 1}, full=True))

    assert FindingKind.NVLINK_DOWN in gpu.state.held()


def test_a_short_drop_of_a_link_is_not_told() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY, seconds=HOUR)

    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=1))
    gpu.poll(HEALTHY, seconds=HOUR)

    assert begun(gpu.told) == []


def test_under_mig_links_are_down_by_design() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)

    gpu.poll(but({Vital.MIG_MODE: 1}, of=but({Vital.NVLINK_ACTIVE: 0}, link=1)), seconds=HOUR)

    assert FindingKind.NVLINK_DOWN not in begun(gpu.told)


@pytest.mark.parametrize(
    ("mask", "said"),
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
def test_the_fabric_mask_is_read_field_by_field(mask: int, said: str | None) -> None:
    """Peers' pitfall: a mask that is not 0 was taken for a fault (eks-node-monitoring-agent 181)."""
    gpu = Watched()

    gpu.poll(but({Vital.FABRIC_HEALTH: mask}), seconds=HOUR)

    texts = [told.text for told in gpu.told if told.kind is FindingKind.FABRIC_DEGRADED and told.begins]
    assert texts == [] if said is None else said in texts[0]


def test_a_fabric_that_is_being_set_up_is_waited_for() -> None:
    gpu = Watched()

    gpu.poll(but({Vital.FABRIC_STATE: 2}), seconds=LIMITS.fabric_wait - PERIOD)
    early = begun(gpu.told)
    gpu.poll(but({Vital.FABRIC_STATE: 1}), seconds=2 * PERIOD)

    assert early == []
    assert begun(gpu.told) == [FindingKind.FABRIC_FAILED]


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

    assert (FindingKind.HOT in begun(gpu.told)) is hot


def test_a_gpu_without_a_margin_is_measured_by_its_slowdown_temperature() -> None:
    gpu = Watched()

    gpu.poll(without(Vital.TEMPERATURE_MARGIN, of=but({Vital.TEMPERATURE: 87})), seconds=HOUR)

    assert FindingKind.HOT in begun(gpu.told)


def test_between_hot_and_cool_nothing_changes() -> None:
    gpu = Watched()
    gpu.poll(but({Vital.TEMPERATURE_MARGIN: -3}), seconds=HOUR)

    gpu.poll(but({Vital.TEMPERATURE_MARGIN: 1}), seconds=HOUR)

    assert gpu.of(FindingKind.HOT) == [True]


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_throttling_is_a_share_of_the_time(share: float) -> None:
    gpu = Watched()

    for poll in range(200):
        gpu.poll(but({Vital.CLOCKS_EVENT_REASONS: 0x80 if poll % 10 < share * 10 else 0}))

    assert (FindingKind.THROTTLED in begun(gpu.told)) is (share >= LIMITS.throttled_share)


@pytest.mark.parametrize("reason", [0x1, 0x2, 0x4, 0x10, 0x20, 0x100])
def test_low_clocks_that_the_driver_explains_are_not_slow(reason: int) -> None:
    gpu = Watched()

    gpu.poll(but({Vital.SM_CLOCK: 300, Vital.CLOCKS_EVENT_REASONS: reason}), seconds=HOUR)

    assert begun(gpu.told) == []


def test_low_clocks_at_rest_are_not_slow() -> None:
    gpu = Watched()

    gpu.poll(but({Vital.SM_CLOCK: 300, Vital.UTILIZATION: 40}), seconds=HOUR)

    assert begun(gpu.told) == []


@pytest.mark.parametrize("code", [1, 2, 4, 6, 21, 27, 999])
def test_errors_that_say_nothing_of_the_board_raise_nothing(code: int) -> None:
    gpu = Watched()

    gpu.poll(failing(code, (Vital.PSTATE, 0)), seconds=HOUR)

    assert begun(gpu.told) == []


@pytest.mark.parametrize("code", [8, 11, 14])
def test_an_error_of_the_board_is_told_with_its_code(code: int) -> None:
    gpu = Watched()

    told = gpu.poll(failing(code, (Vital.PSTATE, 0)))

    assert [(each.kind, each.code) for each in told if each.begins] == [(FindingKind.NVML_ERROR, str(code))]


def test_a_poll_that_did_not_ask_everything_ends_no_board_error() -> None:
    gpu = Watched()
    gpu.poll(failing(14, (Vital.SRAM_THRESHOLD, 0)))

    gpu.poll(replace(HEALTHY, full=False), seconds=HOUR)

    assert FindingKind.NVML_ERROR in gpu.state.held()


def test_uncorrected_errors_are_told_again_when_they_have_doubled_and_not_for_each() -> None:
    gpu = Watched()

    for count in range(1, 101):
        gpu.poll(but({Vital.ECC_UNCORRECTED: count}), seconds=2 * LIMITS.retell)

    texts = [told.text for told in gpu.told if told.kind is FindingKind.ECC_UNCORRECTED]
    assert [text.split()[0] for text in texts] == ["1", "2", "4", "8", "16", "32", "64"]


def test_another_link_that_goes_down_is_told() -> None:
    gpu = Watched()
    gpu.poll(HEALTHY)
    one = but({Vital.NVLINK_ACTIVE: 0}, link=1)
    gpu.poll(one, seconds=HOUR)

    gpu.poll(but({Vital.NVLINK_ACTIVE: 0}, link=2, of=one), seconds=HOUR)

    texts = [told.text for told in gpu.told if told.kind is FindingKind.NVLINK_DOWN and told.begins]
    assert texts == ["NVLink 1 of 4 is down", "NVLink 1, 2 of 4 is down"]


def test_builders_describe_a_gpu_with_every_link_up() -> None:
    assert HEALTHY.by_link(Vital.NVLINK_ACTIVE) == dict.fromkeys(range(builders.LINKS), 1)
