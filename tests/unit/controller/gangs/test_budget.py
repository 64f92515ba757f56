"""A gang's budget: three rounds at once, then waits, then none; and rounds without progress."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.gangs.budget import GangBudget, Past, Shut, Verdict

NOW = 10_000.0


def row(*ages: float, slot: str = "", code: str = "") -> list[Past]:
    """Return rounds whose gang ran again this many seconds ago, each for a fault one second earlier."""
    return [Past(NOW - age, NOW - age - 1.0, slot, code) for age in ages]


def shut(past: list[Past], *, slot: str = "", code: str = "", budget: GangBudget | None = None) -> Shut | None:
    return (budget or GangBudget()).shut(past, fault=Past(NOW, NOW, slot, code), now=NOW)


def test_first_three_rounds_are_immediate() -> None:
    assert shut(row(30, 20)) is None
    third = shut(row(40, 30, 3))
    assert third is not None
    assert (third.verdict, third.closed.until) == (Verdict.BACKOFF, NOW + 7.0)


def test_waits_grow_while_gang_dies_young() -> None:
    waits = []
    for rounds in range(3, 9):
        found = shut(row(*[1.0] * rounds))
        assert found is not None
        waits.append(found.closed.until - NOW + 1.0)
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0]


def test_gang_that_lived_a_minute_starts_over() -> None:
    assert shut(row(200, 150, 61)) is None


def test_spent_budget_stays_closed_until_window_opens() -> None:
    spent = shut(row(3000, 2000, 1000), budget=GangBudget(limit=3))
    assert spent is not None
    assert (spent.verdict, spent.closed.until) == (Verdict.SPENT, NOW + 600.0)
    assert spent.closed.reason == "3 rounds within 1 h"


def test_faults_in_one_slot_are_no_progress() -> None:
    found = shut(row(40, 30, 3, slot="train/7"), slot="train/7", code="Exit1")
    assert found is not None
    expected = "the last 4 faults were all in train/7, and none lived 1 min. Check the member and its node"
    assert found.common_cause == expected


def test_faults_with_one_code_are_no_progress() -> None:
    past = [*row(40, slot="train/1", code="Exit1"), *row(30, 3, slot="train/2", code="Exit1")]
    found = shut(past, slot="train/3", code="Exit1")
    assert found is not None
    assert found.common_cause.startswith("the last 4 faults were all Exit1")


def test_different_faults_have_no_common_cause() -> None:
    past = [*row(40, slot="train/1", code="Exit1"), *row(30, 3, slot="train/2", code="Xid79")]
    found = shut(past, slot="train/3", code="Exit1")
    assert found is not None
    assert found.common_cause == ""


def test_rounds_after_which_the_gang_lived_have_no_common_cause() -> None:
    found = shut(row(3000, 2000, 1000, code="Exit1"), code="Exit1", budget=GangBudget(limit=3))
    assert found is not None
    assert found.common_cause == ""


def test_requests_have_no_common_cause() -> None:
    found = shut(row(40, 30, 3))
    assert found is not None
    assert found.common_cause == ""


def test_rounds_after_a_clock_setback_do_not_count() -> None:
    assert shut(row(-3000, -2000, -1000), budget=GangBudget(limit=3)) is None


@given(st.lists(st.floats(0.0, 7200.0), max_size=30), st.integers(0, 12))
def test_window_never_exceeds_its_limit(ages: list[float], limit: int) -> None:
    past = row(*sorted(ages, reverse=True))
    allowed = shut(past, budget=GangBudget(limit=limit)) is None
    recent = sum(age < 3600.0 for age in ages)
    assert not allowed or recent < limit
    assert GangBudget(limit=limit).left(past, now=NOW) == max(0, limit - recent)
