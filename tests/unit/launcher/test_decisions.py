"""When the launcher starts a program again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.kubemend_run import Decision, Past, Policy, decide, exit_code

POLICY = Policy(limit=10, window=3600.0, fatal=frozenset({42}), healthy_after=60.0, initial_backoff=10.0)
LIVES = st.lists(st.tuples(st.floats(0.0, 400.0), st.integers(1, 255)), max_size=40)


def fold(policy: Policy, lives: list[tuple[float, int]]) -> list[tuple[float, Decision]]:
    """Return the time and the decision of each program's end; the first that is not restarted is the last."""
    now, past, result = 0.0, Past(), []
    for ran, code in lives:
        now += ran
        decision = decide(policy, past, code, ran, now, stopping=False)
        result.append((now, decision))
        if decision.wait is None:
            break
        past = decision.past
        now += decision.wait
    return result


def test_trainers_that_die_young_wait_longer_and_longer() -> None:
    waits = [decision.wait for _, decision in fold(POLICY._replace(limit=12), [(1.0, 1)] * 12)]
    assert waits == [0, 0, 0, 10, 20, 40, 80, 160, 300, 300, 300, 300]


def test_a_trainer_that_lived_is_restarted_at_once_and_ends_the_row() -> None:
    lives = [(1.0, 1)] * 4 + [(60.0, 1)] + [(1.0, 1)] * 4
    assert [decision.wait for _, decision in fold(POLICY, lives)] == [0, 0, 0, 10, 0, 0, 0, 0, 10]


@pytest.mark.parametrize(
    ("policy", "code", "stopping", "reason"),
    [
        (POLICY, 0, False, ""),
        (POLICY, 1, True, ""),
        (POLICY, 42, False, "exit code 42 is fatal"),
        (POLICY._replace(limit=0), 1, False, ""),
        (POLICY._replace(limit=1), 1, False, "1 of 1 restarts within 3600 s are used"),
    ],
)
def test_an_end_that_is_not_followed_by_a_restart(policy: Policy, code: int, stopping: bool, reason: str) -> None:
    past = Past((5.0,), 1)
    assert decide(policy, past, code, 1.0, 10.0, stopping=stopping) == Decision(None, reason, past)


@given(LIVES, st.integers(1, 5), st.floats(1.0, 1000.0))
def test_no_window_has_more_restarts_than_the_limit(lives: list[tuple[float, int]], limit: int, window: float) -> None:
    restarts = [now for now, decision in fold(Policy(limit, window), lives) if decision.wait is not None]
    for first in restarts:
        assert sum(first <= each < first + window for each in restarts) <= limit


@pytest.mark.parametrize(("limit", "restarted"), [(1, True), (0, False)])
def test_a_window_of_0_has_any_number_of_restarts_unless_the_limit_is_0(limit: int, restarted: bool) -> None:
    decisions = fold(Policy(limit, window=0.0), [(1.0, 1)] * 40)
    assert [decision.wait is not None for _, decision in decisions] == ([True] * 40 if restarted else [False])


@given(LIVES)
def test_waits_are_bounded_and_none_follows_a_long_life(lives: list[tuple[float, int]]) -> None:
    for (ran, _), (_, decision) in zip(lives, fold(POLICY._replace(limit=1000), lives), strict=False):
        if decision.wait is not None:
            assert 0.0 <= decision.wait <= (300.0 if ran < POLICY.healthy_after else 0.0)


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3 << 8, 3), (9, 137), (15, 143), (11 | 0x80, 139)])
def test_the_exit_code_of_a_status_is_that_of_a_container(status: int, code: int) -> None:
    assert exit_code(status) == code
