"""Setting a condition: upstream's updateCondition."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.spec.model import Condition, Status
from tests.unit.jobset import builders

NEW = builders.condition(conditions.SUSPENDED, reason="New", message="new", since=9.0)


def test_true_condition_is_appended() -> None:
    before = (builders.condition(conditions.RESTARTING),)
    assert conditions.put(before, NEW) == (*before, NEW)


def test_false_condition_is_not_added() -> None:
    assert conditions.put((), replace(NEW, status=False)) == ()


def test_false_condition_of_kubemend_is_added() -> None:
    for kind in (conditions.IN_PLACE, conditions.VALID):
        new = replace(NEW, type=kind, status=False)
        assert conditions.put((), new) == (new,)


def test_changed_status_updates_condition_in_place() -> None:
    old, other = builders.condition(conditions.SUSPENDED, status=False), builders.condition(conditions.RESTARTING)
    assert conditions.put((old, other), NEW) == (NEW, other)


def test_new_message_for_same_status_keeps_time() -> None:
    old = builders.condition(conditions.SUSPENDED, since=5.0)
    assert conditions.put((old,), NEW) == (replace(NEW, since=5.0),)


def test_same_condition_changes_nothing() -> None:
    old = replace(NEW, since=5.0)
    assert conditions.put((old,), NEW) == (old,)


def test_startup_pair_flips_only_the_other_status() -> None:
    old = builders.condition(conditions.STARTUP_IN_PROGRESS)
    new = replace(NEW, type=conditions.STARTUP_COMPLETED)
    assert conditions.put((old,), new) == (replace(old, status=False), new)


def test_false_startup_condition_leaves_the_other() -> None:
    old = (
        builders.condition(conditions.STARTUP_IN_PROGRESS),
        builders.condition(conditions.STARTUP_COMPLETED, status=False),
    )
    new = replace(NEW, type=conditions.STARTUP_COMPLETED, status=False)
    assert conditions.put(old, new)[0] == old[0]


def test_completed_and_failed_do_not_exclude_each_other() -> None:
    old = builders.condition(conditions.COMPLETED)
    new = replace(NEW, type=conditions.FAILED)
    assert conditions.put((old,), new) == (old, new)


def test_only_true_completed_or_failed_finishes() -> None:
    assert not conditions.is_finished(Status())
    assert not conditions.is_finished(Status(conditions=(builders.condition(conditions.COMPLETED, status=False),)))
    assert not conditions.is_finished(Status(conditions=(builders.condition(conditions.SUSPENDED),)))
    for kind in (conditions.COMPLETED, conditions.FAILED):
        assert conditions.is_finished(Status(conditions=(builders.condition(kind),)))


KINDS = (conditions.STARTUP_IN_PROGRESS, conditions.STARTUP_COMPLETED, conditions.SUSPENDED, conditions.IN_PLACE)
NEW_CONDITIONS = st.lists(
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


@given(NEW_CONDITIONS)
def test_each_type_is_unique_and_startup_pair_exclusive(
    new: list[Condition],
) -> None:
    found: tuple[Condition, ...] = ()
    for moment, each in enumerate(new, start=1):
        before, found = found, conditions.put(found, replace(each, since=float(moment)))
        types = [one.type for one in found]
        assert len(types) == len(set(types)), "a type is there once"
        assert types[: len(before)] == [one.type for one in before], "none is lost or moved"
        pair = [one for one in found if one.type in KINDS[:2] and one.status]
        assert len(pair) <= 1
        assert conditions.put(found, replace(each, since=99.0)) == found, "setting it again changes nothing"


@given(NEW_CONDITIONS)
def test_time_is_that_of_last_status_change(new: list[Condition]) -> None:
    found: tuple[Condition, ...] = ()
    for moment, each in enumerate(new, start=1):
        before = {one.type: one for one in found}
        found = conditions.put(found, replace(each, since=float(moment)))
        for one in found:
            old = before.get(one.type)
            changed = old is None or (one.type == each.type and old.status != one.status)
            assert one.since == (float(moment) if changed else old.since if old is not None else None)
