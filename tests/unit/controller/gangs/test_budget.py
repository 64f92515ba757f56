"""A gang's budget: three rounds at once, then waits, then none; and whether rounds get it anywhere."""

from hypothesis import given
from hypothesis import strategies as st

from controller.gangs.budget import GangBudget, Past, Shut, Verdict

NOW = 10_000.0


def row(*ages: float, slot: str = "", code: str = "") -> list[Past]:
    """Rounds after which the gang ran so many seconds ago, each for a fault a second before."""
    return [Past(NOW - age, NOW - age - 1.0, slot, code) for age in ages]


def shut(past: list[Past], *, slot: str = "", code: str = "", budget: GangBudget | None = None) -> Shut | None:
    return (budget or GangBudget()).shut(past, fault=Past(NOW, NOW, slot, code), now=NOW)


def test_the_first_three_rounds_are_immediate() -> None:
    assert shut(row(30, 20)) is None
    third = shut(row(40, 30, 3))
    assert third is not None
    assert (third.verdict, third.closed.until) == (Verdict.BACKOFF, NOW + 7.0)


def test_waits_grow_while_nothing_lasts() -> None:
    waits = []
    for rounds in range(3, 9):
        found = shut(row(*[1.0] * rounds))
        assert found is not None
        waits.append(found.closed.until - NOW + 1.0)
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0]


def test_a_gang_that_lived_a_minute_starts_over() -> None:
    assert shut(row(200, 150, 61)) is None


def test_a_spent_budget_stays_shut_until_its_window_opens() -> None:
    spent = shut(row(3000, 2000, 1000), budget=GangBudget(limit=3))
    assert spent is not None
    assert (spent.verdict, spent.closed.until) == (Verdict.SPENT, NOW + 600.0)
    assert spent.closed.why == "3 rounds within 1 h"


def test_faults_in_the_same_slot_are_told_to_be_no_progress() -> None:
    found = shut(row(40, 30, 3, slot="train/7"), slot="train/7", code="Exit1")
    assert found is not None
    expected = "the last 4 faults were all in train/7, and none lived 1 min: look at it and its node"
    assert found.in_vain == expected


def test_the_same_cause_in_several_slots_is_no_progress_either() -> None:
    past = [*row(40, slot="train/1", code="Exit1"), *row(30, 3, slot="train/2", code="Exit1")]
    found = shut(past, slot="train/3", code="Exit1")
    assert found is not None
    assert found.in_vain.startswith("the last 4 faults were all Exit1")


def test_different_faults_are_bad_luck() -> None:
    past = [*row(40, slot="train/1", code="Exit1"), *row(30, 3, slot="train/2", code="Xid79")]
    found = shut(past, slot="train/3", code="Exit1")
    assert found is not None
    assert found.in_vain == ""


def test_rounds_of_a_clock_that_was_set_back_do_not_count() -> None:
    assert shut(row(-3000, -2000, -1000), budget=GangBudget(limit=3)) is None


@given(st.lists(st.floats(0.0, 7200.0), max_size=30), st.integers(0, 12))
def test_never_more_rounds_in_a_window_than_it_allows(ages: list[float], limit: int) -> None:
    past = row(*sorted(ages, reverse=True))
    allowed = shut(past, budget=GangBudget(limit=limit)) is None
    recent = sum(age < 3600.0 for age in ages)
    assert not allowed or recent < limit
    assert GangBudget(limit=limit).left(past, now=NOW) == max(0, limit - recent)
