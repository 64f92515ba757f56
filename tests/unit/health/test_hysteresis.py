"""Lasting faults begin immediately or after a delay, and end only after lasting clean checks."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.nic import hysteresis
from kubemend.agent.health.nic.hysteresis import CLEAN, UNKNOWN, FaultCheck, FaultState

BAD = FaultCheck(holds=True, text="bad")
CLEAN_FOR = 10.0


def after(*checks: tuple[float, FaultCheck], fault_state: FaultState | None = None) -> FaultState:
    fault_state = fault_state if fault_state is not None else FaultState()
    for now, check in checks:
        fault_state = hysteresis.after(fault_state, check, now=now, clean_for=CLEAN_FOR)
    return fault_state


def test_fault_begins_immediately() -> None:
    fault_state = after((5.0, BAD))
    assert (fault_state.emitted, fault_state.text, fault_state.due) == (True, "bad", None)


def test_delayed_fault_begins_only_after_the_delay() -> None:
    pending = after((5.0, FaultCheck(holds=True, text="bad", since=8.0)))
    assert (pending.emitted, pending.due) == (None, 8.0)
    assert hysteresis.settled(pending, now=7.9).emitted is None
    assert hysteresis.settled(pending, now=8.0).emitted is True


def test_fault_ends_only_after_lasting_good_checks() -> None:
    fault_state = after((0.0, BAD), (1.0, CLEAN))
    assert (fault_state.emitted, fault_state.due) == (True, 11.0)
    assert after((10.9, CLEAN), fault_state=fault_state).emitted is True
    assert after((11.0, CLEAN), fault_state=fault_state).emitted is False


def test_bad_check_restarts_the_wait() -> None:
    assert after((0.0, BAD), (1.0, CLEAN), (10.0, BAD), (12.0, CLEAN), (21.9, CLEAN)).emitted is True


def test_unknown_ends_nothing() -> None:
    assert after((0.0, BAD), (1.0, CLEAN), (2.0, UNKNOWN), (100.0, UNKNOWN)).emitted is True
    assert after((0.0, BAD), (1.0, CLEAN), (2.0, UNKNOWN), (100.0, CLEAN), (109.0, CLEAN)).emitted is True


def test_unknown_begins_nothing() -> None:
    assert after((0.0, UNKNOWN), (100.0, UNKNOWN)).emitted is None
    assert after((0.0, FaultCheck(holds=True, since=5.0)), (1.0, UNKNOWN), (100.0, UNKNOWN)).emitted is None


def test_first_agent_emits_over_after_lasting_clean_checks() -> None:
    assert after((0.0, CLEAN)).due == CLEAN_FOR
    assert after((0.0, CLEAN), (10.0, CLEAN)).emitted is False


def test_clean_since_counts_from_the_given_time() -> None:
    assert after((100.0, FaultCheck(holds=False, since=85.0))).emitted is False


SIGHTS = st.sampled_from([UNKNOWN, CLEAN, BAD])
LOOKS = st.lists(st.tuples(st.floats(0.1, 15.0), SIGHTS), max_size=12)


@given(LOOKS, st.lists(st.floats(0.0, 150.0), max_size=10))
def test_more_frequent_checks_change_nothing(steps: list[tuple[float, FaultCheck]], between: list[float]) -> None:
    now, checks = 0.0, []
    for wait, check in steps:
        now += wait
        checks.append((now, check))
    seldom = often = FaultState()
    for at, check in checks:
        for tick in sorted(tick for tick in between if tick < at):
            often = hysteresis.settled(often, now=tick)
        seldom = hysteresis.after(seldom, check, now=at, clean_for=CLEAN_FOR)
        often = hysteresis.after(often, check, now=at, clean_for=CLEAN_FOR)
        often = hysteresis.after(often, check, now=at, clean_for=CLEAN_FOR)
    assert seldom == often


@given(LOOKS)
def test_faults_need_a_bad_check_and_can_always_end(steps: list[tuple[float, FaultCheck]]) -> None:
    now, fault_state = 0.0, FaultState()
    for wait, check in steps:
        now += wait
        fault_state = hysteresis.after(fault_state, check, now=now, clean_for=CLEAN_FOR)
    assert fault_state.emitted is not True or any(check is BAD for _, check in steps)
    assert after((now + 1.0, CLEAN), (now + 1.0 + CLEAN_FOR, CLEAN), fault_state=fault_state).emitted is False
