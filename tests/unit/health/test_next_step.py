"""From checks of a heartbeat file to the first touch after a restart: a true bound, or nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.state import next_step
from kubemend.agent.health.state.heartbeat import Blank, Mark, Poll
from kubemend.agent.health.state.next_step import FileCheck, Restarted, Step, Unknown

BOOT = 1_790_000_000.0
"""Unix time at 0 of the monotonic clock."""

AT = 1000.0
RESTARTED = Restarted(at=AT, unix=BOOT + AT, slept=0.0)
BY_KUBELET = replace(RESTARTED, by_kubelet=True)
LAG = 0.01
"""Seconds by which the kernel's times of files are late."""


def touched(at: float, *, inode: int = 7) -> Mark:
    """The file as it is after a touch at this moment of the monotonic clock."""
    changed = int((BOOT + at) * 1e9)
    return Mark(device=1, inode=inode, modified=changed, changed=changed)


def check(
    at: float, result: Mark | Blank, *, slept: float = 0.0, set_by: float = 0.0, started: float | None = 0.0
) -> FileCheck:
    """A check at this moment; ``set_by`` seconds are added to the node's clock, the container ``started`` then."""
    poll = Poll(began=at, ended=at, slept=slept, result=result)
    return FileCheck(poll, unix=BOOT + at + set_by, started_at=BOOT + started if started is not None else None)


def found(*checks: FileCheck, restarted: Restarted = RESTARTED) -> Step | Unknown | None:
    """Return the first answer that is final."""
    before: FileCheck | None = None
    for each in checks:
        answer = next_step.first_touch(restarted, before, each)
        if answer is not None:
            return answer
        before = next_step.seen(before, each)
    return None


def assert_step(answer: Step | Unknown | None, start: float, earliest: float, latest: float) -> None:
    assert isinstance(answer, Step)
    assert (answer.start, answer.earliest, answer.latest) == pytest.approx((start, earliest, latest), abs=1e-5)


def test_new_file_between_two_checks_is_the_step_at_its_own_time() -> None:
    answer = found(check(AT + 1, Blank.ABSENT), check(AT + 16, touched(AT + 9)))
    assert_step(answer, AT, AT + 1, AT + 9)


def test_file_on_a_volume_that_the_old_container_touched_last_is_no_step() -> None:
    old = touched(AT - 0.1)
    assert found(check(AT - 5, touched(AT - 6)), check(AT + 1, old), check(AT + 16, old)) is None
    assert_step(found(check(AT + 1, old), check(AT + 16, touched(AT + 15))), AT, AT + 1, AT + 15)


def test_touch_before_the_release_is_no_step() -> None:
    held = check(AT - 9, Blank.ABSENT), check(AT - 3, touched(AT - 4)), check(AT + 2, touched(AT - 1))
    assert found(*held) is None
    assert_step(found(*held, check(AT + 17, touched(AT + 3))), AT, AT + 2, AT + 3)


def test_first_check_that_finds_a_later_touch_is_the_step() -> None:
    assert_step(found(check(AT + 1, touched(AT + 0.4))), AT, AT, AT + 0.4)


def test_pause_between_two_checks_does_not_hide_the_step() -> None:
    answer = found(check(AT - 2, touched(AT - 3)), check(AT + 1, Blank.PAUSED), check(AT + 16, touched(AT + 5)))
    assert_step(answer, AT, AT, AT + 5)


def test_removed_file_is_no_step() -> None:
    old = touched(AT - 1)
    removed = check(AT + 1, old), check(AT + 2, Blank.ABSENT), check(AT + 3, Blank.ABSENT)
    assert found(*removed) is None
    assert_step(found(*removed, check(AT + 4, touched(AT + 3.5, inode=8))), AT, AT + 3, AT + 3.5)


@pytest.mark.parametrize("at", [AT + 60, AT - 60, AT - 1e9])
def test_time_that_the_two_checks_contradict_is_unknown(at: float) -> None:
    answer = found(check(AT + 1, Blank.ABSENT), check(AT + 16, touched(at)))
    assert answer == Unknown("the file's time contradicts the checks")


def test_time_between_two_readings_of_the_clock_stays_within_the_checks() -> None:
    assert_step(found(check(AT + 16, touched(AT + 16.02))), AT, AT, AT + 16)
    assert_step(found(check(AT + 1, Blank.ABSENT), check(AT + 16, touched(AT + 16.02))), AT, AT + 1, AT + 16)
    assert_step(found(check(AT + 1, Blank.ABSENT), check(AT + 16, touched(AT + 0.98))), AT, AT + 1, AT + 1)


def test_untouched_file_is_given_up_after_an_hour() -> None:
    late = AT + next_step.LONGEST_WAIT + 1
    assert found(check(late - 2, Blank.ABSENT)) is None
    assert isinstance(found(check(late, Blank.ABSENT)), Unknown)
    assert isinstance(found(check(late - 2, Blank.ABSENT), check(late, touched(late - 1))), Unknown)


@pytest.mark.parametrize("set_by", [-30.0, 30.0])
def test_node_whose_clock_was_set_is_unknown(set_by: float) -> None:
    assert found(check(AT + 16, touched(AT + 9), set_by=set_by)) == Unknown("the node's clock was set")


def test_node_that_slept_is_unknown() -> None:
    assert found(check(AT + 16, touched(AT + 9), slept=20.0)) == Unknown("the node was suspended")


def test_kubelets_container_counts_from_its_own_start() -> None:
    checks = check(AT + 5, touched(AT + 3), started=AT + 4), check(AT + 20, touched(AT + 11), started=AT + 4)
    assert_step(found(*checks, restarted=BY_KUBELET), AT + 4, AT + 5, AT + 11)


def test_kubelets_container_that_is_older_counts_from_the_end_of_the_restart() -> None:
    checks = check(AT + 1, touched(AT - 1), started=AT - 2), check(AT + 16, touched(AT + 9), started=AT - 2)
    assert_step(found(*checks, restarted=BY_KUBELET), AT, AT + 1, AT + 9)


def test_kubelets_container_that_starts_after_the_check_has_no_step_yet() -> None:
    assert found(check(AT + 5, touched(AT + 5.02), started=AT + 5.01), restarted=BY_KUBELET) is None


def test_kubelets_container_whose_start_is_unknown_has_no_step() -> None:
    answer = found(check(AT + 5, touched(AT + 3), started=None), restarted=BY_KUBELET)
    assert isinstance(answer, Unknown)
    assert found(check(AT + 5, touched(AT + 3), started=AT + 60), restarted=BY_KUBELET) is None


moments = st.floats(0.0, 100.0)


@given(
    old=st.lists(st.floats(AT - 50, AT - 0.001), max_size=5),
    new=st.lists(st.floats(AT + 0.05, AT + 100), max_size=8),
    checks=st.lists(st.floats(AT - 20, AT + 120), min_size=1, max_size=20, unique=True),
    lag=st.floats(0.0, LAG),
)
def test_bounds_hold_the_true_first_touch(
    old: Sequence[float], new: Sequence[float], checks: Sequence[float], lag: float
) -> None:
    def result(at: float) -> Mark | Blank:
        before = [each for each in (*old, *new) if each <= at]
        return touched(max(before) - lag) if before else Blank.ABSENT

    visible = [each for each in new if any(each <= check for check in checks)]
    answer = found(*(check(at, result(at)) for at in sorted(checks)))
    if not visible:
        assert answer is None
        return
    assert isinstance(answer, Step)
    assert answer.earliest <= min(new) + 1e-5
    assert min(new) <= answer.latest + lag + 1e-5


hostile_marks = st.builds(
    Mark,
    device=st.integers(0, 1),
    inode=st.integers(0, 2),
    modified=st.integers(-(2**63), 2**63 - 1),
    changed=st.one_of(st.integers(-(2**63), 2**63 - 1), moments.map(lambda at: int((BOOT + AT - 50 + at) * 1e9))),
)


@given(
    results=st.lists(st.tuples(st.floats(0.0, 20.0), st.one_of(hostile_marks, st.sampled_from(Blank))), max_size=12),
    started=st.one_of(st.none(), st.floats(AT - 50, AT + 200)),
    set_by=st.floats(-2.0, 2.0),
    by_kubelet=st.booleans(),
)
def test_no_file_yields_a_time_before_the_start_or_after_the_check(
    results: Sequence[tuple[float, Mark | Blank]], started: float | None, set_by: float, by_kubelet: bool
) -> None:
    at, checks = AT - 20, list[FileCheck]()
    for later, result in results:
        at += later
        checks.append(check(at, result, started=started, set_by=set_by))
    answer = found(*checks, restarted=replace(RESTARTED, by_kubelet=by_kubelet))
    if isinstance(answer, Step):
        assert AT <= answer.start <= answer.earliest <= answer.latest <= at
