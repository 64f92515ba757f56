"""Properties of every sequence of polls, with any readings."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.health.gpu import fold
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.gpu.readings import Key, Vital, Vitals
from kubemend.agent.health.gpu.speed_rules import BOARD_FAULTS
from kubemend.agent.model.findings import FindingKind
from tests.unit.health.vitals.builders import AT_REST, HEALTHY, Watched, begun

QUICK = Limits(  # so that short sequences of polls reach every rule
    settle=60.0,
    corrected_window=200.0,
    link_window=200.0,
    link_down=30.0,
    fabric_wait=60.0,
    pcie_window=200.0,
    pcie_begin=30.0,
    throttled_window=200.0,
    hot_begin=30.0,
    slow_window=200.0,
)

bad_values = st.dictionaries(
    st.sampled_from(sorted(HEALTHY.values, key=lambda key: (key[0].value, key[1]))),
    st.sampled_from([0, 1, 2, 8, 100, 0x40, 20_000]),
    max_size=6,
)
errors = st.dictionaries(
    st.tuples(st.sampled_from(Vital), st.integers(0, 3)), st.sampled_from([2, 14, 999]), max_size=2
)


def poll(base: Vitals, changes: dict[Key, int], failed: dict[Key, int], full: bool) -> Vitals:
    values = {key: value for key, value in {**base.values, **changes}.items() if key not in failed}
    return replace(base, values=values, errors=failed, full=full)


polls = st.lists(
    st.builds(poll, st.sampled_from([HEALTHY, AT_REST, Vitals()]), bad_values, errors, st.booleans()), max_size=30
)


def watch(row: list[Vitals]) -> Watched:
    gpu = Watched(limits=QUICK)
    for vitals in row:
        gpu.poll(vitals)
    return gpu


@settings(max_examples=50, deadline=None)
@given(row=polls)
def test_every_kind_begins_and_ends_alternately(row: list[Vitals]) -> None:
    gpu = watch(row)

    for kind in fold.RULES:
        turns = [emitted.begins for emitted in gpu.emitted if emitted.kind is kind]
        ends = [place for place, begins in enumerate(turns) if not begins]
        assert all(turns[place - 1] for place in ends if place > 0)  # no two ends in sequence
        assert (kind in gpu.state.held()) is (bool(turns) and turns[-1])


@settings(max_examples=50, deadline=None)
@given(row=polls)
def test_repeated_poll_at_same_time_changes_nothing(row: list[Vitals]) -> None:
    gpu = watch(row)
    last = row[-1] if row else HEALTHY
    gpu.poll(last)

    again, notices = fold.fold(gpu.state, last, now=gpu.now, limits=QUICK)

    assert again == gpu.state
    assert notices == ()


@settings(max_examples=50, deadline=None)
@given(row=polls, old=st.floats(0, 1000))
def test_old_poll_changes_nothing(row: list[Vitals], old: float) -> None:
    gpu = watch([HEALTHY, *row])

    assert fold.fold(gpu.state, HEALTHY, now=old, limits=QUICK) == (gpu.state, ())


@settings(max_examples=50, deadline=None)
@given(row=polls, gaps=st.lists(st.integers(0, 30)))
def test_polls_without_values_do_not_change_the_outcome(row: list[Vitals], gaps: list[int]) -> None:
    """Such polls, inserted at any time, have no effect: only values that were read count."""
    plain, torn = Watched(limits=QUICK), Watched(limits=QUICK)
    for number, vitals in enumerate(row):
        plain.poll(vitals)
        if number in gaps:
            torn.poll(Vitals(), period=10.0)
            torn.poll(vitals, period=20.0)
        else:
            torn.poll(vitals)

    assert torn.emitted == plain.emitted


@settings(max_examples=50, deadline=None)
@given(row=polls)
def test_healthy_gpu_at_work_ends_every_fault(row: list[Vitals]) -> None:
    gpu = watch(row)
    gpu.poll(HEALTHY, seconds=1200.0)

    assert gpu.state.held() == frozenset()


@settings(max_examples=50, deadline=None)
@given(row=polls)
def test_board_error_is_raised_only_by_board_error(row: list[Vitals]) -> None:
    emitted = watch(row).emitted

    if not any(code in BOARD_FAULTS for vitals in row for code in vitals.errors.values()):
        assert FindingKind.NVML_ERROR not in begun(emitted)


@settings(max_examples=50, deadline=None)
@given(row=polls)
def test_rate_needs_two_polls_with_the_value(row: list[Vitals]) -> None:
    rates = {
        FindingKind.ECC_CORRECTED_RATE,
        FindingKind.NVLINK_ERRORS,
        FindingKind.PCIE_ERRORS,
    }
    gpu = Watched(limits=QUICK)
    for vitals in row:
        gpu.poll(vitals)
        gpu.state = fold.renewed(gpu.state)

    assert rates.isdisjoint(begun(gpu.emitted))
