"""Removal of finished objects."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.gangs import GangKey
from kubemend.common.kube import timestamps
from kubemend.controller.restarts import history, objects
from kubemend.controller.restarts.history import Keeping
from kubemend.controller.restarts.objects import Restart, RestartSpec
from tests.unit.controller.restarts import builders

KEEPING = Keeping(ttl=1000.0, newest=2)
NOW = builders.NOW


def finished(attempt: int, *, age: float, ttl: int | None = None, gang: str = "train", phase: str = "Done") -> Restart:
    """Return a round that ended ``age`` seconds ago."""
    return Restart(
        namespace="team",
        name=f"{gang}-{attempt}",
        uid=f"uid-{gang}-{attempt}",
        version="1",
        generation=1,
        created_at=NOW - age - 10,
        spec=RestartSpec(ttl_seconds=ttl),
        gang=GangKey("team", "Job", gang),
        attempt=attempt,
        epoch=1,
        status={"phase": phase, "completionTime": timestamps.rfc3339(NOW - age)},
    )


def removed(*restarts: Restart, alive: bool = True) -> list[int]:
    found = history.removal(restarts, keeping=KEEPING, is_alive=lambda _: alive, now=NOW)
    return [each.attempt for each in found.now]


def test_newest_of_living_gang_outlast_ttl() -> None:
    assert removed(*(finished(attempt, age=5000.0 - attempt) for attempt in (1, 2, 3, 4))) == [1, 2]


def test_nothing_is_removed_before_its_ttl() -> None:
    assert removed(*(finished(attempt, age=999.0) for attempt in (1, 2, 3, 4))) == []


def test_gang_without_members_keeps_nothing() -> None:
    assert removed(*(finished(attempt, age=5000.0) for attempt in (1, 2, 3)), alive=False) == [1, 2, 3]


def test_own_ttl_overrides_everything() -> None:
    newest_but_short, old_but_long = finished(9, age=61.0, ttl=60), finished(1, age=5000.0, ttl=9000)
    others = (finished(7, age=5000.0), finished(8, age=5000.0))
    assert removed(newest_but_short, old_but_long, *others) == [9, 7]
    assert removed(finished(9, age=59.0, ttl=60)) == []


def test_unfinished_object_is_never_removed() -> None:
    for phase in ("", "Pending", "Stopping", "Releasing"):
        assert removed(finished(1, age=10**6, ttl=0, phase=phase), alive=False) == []


def test_object_being_deleted_is_not_removed_again() -> None:
    assert removed(replace(finished(1, age=5000.0, ttl=0), deleting=True)) == []


def test_removal_has_time_of_next_check() -> None:
    restarts = [finished(1, age=100.0), finished(2, age=400.0), finished(3, age=0.0), finished(4, age=0.0)]
    found = history.removal(restarts, keeping=KEEPING, is_alive=lambda _: True, now=NOW)
    assert (found.now, found.next_at) == ((), NOW + 600.0)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 30), st.floats(0, 5000), st.none() | st.integers(0, 5000), st.sampled_from(["a", "b"])
        ),
        unique_by=lambda each: (each[0], each[3]),
    ),
    st.booleans(),
)
def test_each_living_gang_keeps_its_newest_number(
    rounds: list[tuple[int, float, int | None, str]], alive: bool
) -> None:
    restarts = [finished(number, age=age, ttl=ttl, gang=gang) for number, age, ttl, gang in rounds]
    found = history.removal(restarts, keeping=KEEPING, is_alive=lambda _: alive, now=NOW)
    left = [each for each in restarts if each not in found.now]
    for gang in ("a", "b"):
        endless = [each for each in restarts if each.gang and each.gang.name == gang and each.spec.ttl_seconds is None]
        newest = sorted(endless, key=lambda each: each.attempt)[-1:]
        if alive and newest and all(each.spec.ttl_seconds is None for each in restarts):
            assert newest[0] in left
    assert found.next_at is None or found.next_at > NOW
    for each in left:  # each remaining one is either not due, or is among the newest
        due = each.spec.ttl_seconds if each.spec.ttl_seconds is not None else KEEPING.ttl
        if not alive or each.spec.ttl_seconds is not None:
            assert NOW - each.finished_at < due


def test_unfinished_round_with_later_round_is_superseded() -> None:
    def begun(name: str, *, attempt: int, epoch: int, status: dict[str, object] | None = None) -> Restart:
        return builders.of_round(builders.new_round(attempt=attempt, epoch=epoch), name=name, status=status)

    late = begun("late", attempt=3, epoch=5)  # written when the next leader was already leading
    ended = begun("ended", attempt=3, epoch=6, status={"phase": "Done"})
    under_way = begun("under-way", attempt=4, epoch=6)
    assert history.superseded([late]) == ()
    assert history.superseded([ended, late]) == (late,)
    assert history.superseded([ended, under_way, late]) == (late,)
    assert history.superseded([under_way, ended]) == ()


def test_request_supersedes_nothing() -> None:
    under_way = builders.of_round(builders.new_round())
    assert history.superseded([under_way, objects.parse(builders.obj("asked"))]) == ()
