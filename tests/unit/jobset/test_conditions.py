"""How a condition is set: upstream's updateCondition."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.jobset import conditions
from controller.jobset.model import Condition, Status
from tests.unit.jobset import worlds

NEW = worlds.condition(conditions.SUSPENDED, reason="New", message="new", since=9.0)


def test_a_true_condition_is_added_at_the_end() -> None:
    before = (worlds.condition(conditions.RESTARTING),)
    assert conditions.put(before, NEW) == (*before, NEW)


def test_a_false_condition_is_never_added() -> None:
    assert conditions.put((), replace(NEW, status=False)) == ()


def test_a_false_condition_of_ours_is_added_for_upstream_has_no_word_for_it() -> None:
    for kind in (conditions.IN_PLACE, conditions.VALID):
        said = replace(NEW, type=kind, status=False)
        assert conditions.put((), said) == (said,)


def test_a_changed_status_takes_over_the_new_words_and_time_at_its_old_place() -> None:
    old, other = worlds.condition(conditions.SUSPENDED, status=False), worlds.condition(conditions.RESTARTING)
    assert conditions.put((old, other), NEW) == (NEW, other)


def test_new_words_for_the_same_status_keep_its_time() -> None:
    old = worlds.condition(conditions.SUSPENDED, since=5.0)
    assert conditions.put((old,), NEW) == (replace(NEW, since=5.0),)


def test_the_same_words_again_change_nothing() -> None:
    old = replace(NEW, since=5.0)
    assert conditions.put((old,), NEW) == (old,)


def test_of_the_startup_pair_the_other_one_changes_its_status_alone() -> None:
    old = worlds.condition(conditions.STARTUP_IN_PROGRESS)
    said = replace(NEW, type=conditions.STARTUP_COMPLETED)
    assert conditions.put((old,), said) == (replace(old, status=False), said)


def test_a_false_one_of_the_startup_pair_leaves_the_other_one_alone() -> None:
    old = (
        worlds.condition(conditions.STARTUP_IN_PROGRESS),
        worlds.condition(conditions.STARTUP_COMPLETED, status=False),
    )
    said = replace(NEW, type=conditions.STARTUP_COMPLETED, status=False)
    assert conditions.put(old, said)[0] == old[0]


def test_completed_and_failed_do_not_exclude_each_other_as_upstream_has_it() -> None:
    old = worlds.condition(conditions.COMPLETED)
    said = replace(NEW, type=conditions.FAILED)
    assert conditions.put((old,), said) == (old, said)


def test_only_a_true_completed_or_failed_finishes() -> None:
    assert not conditions.is_finished(Status())
    assert not conditions.is_finished(Status(conditions=(worlds.condition(conditions.COMPLETED, status=False),)))
    assert not conditions.is_finished(Status(conditions=(worlds.condition(conditions.SUSPENDED),)))
    for kind in (conditions.COMPLETED, conditions.FAILED):
        assert conditions.is_finished(Status(conditions=(worlds.condition(kind),)))


KINDS = (conditions.STARTUP_IN_PROGRESS, conditions.STARTUP_COMPLETED, conditions.SUSPENDED, conditions.IN_PLACE)
SAYINGS = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(KINDS),
        status=st.booleans(),
        reason=st.sampled_from("AB"),
        message=st.just(""),
        since=st.just(0.0),
    ),
    max_size=30,
)


@given(SAYINGS)
def test_whatever_is_said_each_type_is_there_once_and_the_startup_pair_is_never_both_true(
    said: list[Condition],
) -> None:
    found: tuple[Condition, ...] = ()
    for moment, each in enumerate(said, start=1):
        before, found = found, conditions.put(found, replace(each, since=float(moment)))
        types = [one.type for one in found]
        assert len(types) == len(set(types)), "a type is there once"
        assert types[: len(before)] == [one.type for one in before], "none is lost or moved"
        pair = [one for one in found if one.type in KINDS[:2] and one.status]
        assert len(pair) <= 1
        assert conditions.put(found, replace(each, since=99.0)) == found, "saying it again changes nothing"


@given(SAYINGS)
def test_a_time_is_that_of_the_last_change_of_the_status_by_its_own_word(said: list[Condition]) -> None:
    found: tuple[Condition, ...] = ()
    for moment, each in enumerate(said, start=1):
        before = {one.type: one for one in found}
        found = conditions.put(found, replace(each, since=float(moment)))
        for one in found:
            old = before.get(one.type)
            changed = old is None or (one.type == each.type and old.status != one.status)
            assert one.since == (float(moment) if changed else old.since if old is not None else None)
