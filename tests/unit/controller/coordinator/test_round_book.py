"""Rounds from a JobSet's side: from Restart objects, and from what the leader knows before these show it."""

from dataclasses import replace
from typing import Any, cast

import pytest

from kubemend.common.gangs import GangKey
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.coordinator import jobset_rounds
from kubemend.controller.coordinator.jobset_rounds import OurJobSets, RoundBook
from kubemend.controller.jobset.spec.model import JobSet, Refusal
from kubemend.controller.model.rounds import RoundRef
from kubemend.controller.restarts.objects import Restart, RestartSpec
from kubemend.controller.restarts.store import RestartChange
from tests.unit.controller import builders
from tests.unit.controller.coordinator import test_spans
from tests.unit.jobset import builders as jobsets

GANG = GangKey("team", "JobSet", "js")
JOBSET: JobSet = jobsets.jobset()
FAULT: dict[str, Any] = {"kind": "Exit", "code": "Exit1", "message": "exited with 1"}
START, END = "2023-11-14T22:13:20Z", "2023-11-14T22:13:21Z"  # builders.NOW, and a second later


class NoJobSets:
    """Stand in for the JobSets that kubemend manages: there is none."""

    def find(self, *_: str) -> None: ...
    def news(self, *_: str) -> None: ...
    def subscribe(self, _: Any) -> None: ...


def status(**fields: Any) -> dict[str, Any]:
    return {"phase": "Stopping", "trigger": FAULT, "startTime": START, **fields}


def restart(attempt: int = 1, **fields: Any) -> Restart:
    return Restart(
        namespace="team",
        name=f"js-{attempt}",
        uid=f"uid-{attempt}",
        version="1",
        generation=1,
        created_at=builders.NOW,
        spec=RestartSpec(gang=GANG),
        gang=GANG,
        attempt=attempt,
        epoch=1,
        status=status(**fields),
    )


def appeared(one: Restart) -> RestartChange:
    return RestartChange(ChangeKind.APPEARED, one)


def gone(one: Restart) -> RestartChange:
    return RestartChange(ChangeKind.GONE, one)


@pytest.fixture
def news() -> list[GangKey]:
    return []


@pytest.fixture
def book(news: list[GangKey]) -> RoundBook:
    return RoundBook(news=news.append)


def test_round_under_way_has_no_end() -> None:
    found = jobset_rounds.view("js-1", 1, status(), started_at=1.0)
    assert (found.counted, found.ended_at, found.restarted, found.message) == (True, None, False, "exited with 1")


def test_successful_round_has_its_duration() -> None:
    ended = status(phase="Done", completionTime=END, timings={"totalMilliseconds": 412}, failures=[])
    found = jobset_rounds.view("js-1", 1, ended, started_at=1.0)
    assert (found.restarted, found.ended_at, found.seconds) == (True, builders.NOW + 1, 0.412)


@pytest.mark.parametrize("phase", ["Degraded", "Failed"])
def test_unsuccessful_round_has_its_reason(phase: str) -> None:
    failures = [{"member": "w-0", "node": "n", "reason": "StopDeadline", "message": "it has not stopped"}]
    found = jobset_rounds.view("js-1", 1, status(phase=phase, failures=failures, completionTime=END), started_at=1.0)
    assert not found.restarted
    assert (found.reason, found.message) == ("StopDeadline", "w-0: it has not stopped")


def test_cancelled_round_has_its_own_reason() -> None:
    conditions = [{"type": "Cancelled", "status": "True", "message": "its JobSet is suspended"}]
    failures = [{"member": "w-0", "reason": "NotStopped", "message": ""}]
    ended = status(phase="Failed", conditions=conditions, failures=failures)
    found = jobset_rounds.view("js-1", 1, ended, started_at=1.0)
    assert (found.reason, found.message) == ("Cancelled", "its JobSet is suspended")


def test_requested_round_is_not_counted() -> None:
    trigger = {"kind": "Request", "code": "Requested", "message": "requested by team/please"}
    assert not jobset_rounds.view("js-1", 1, status(trigger=trigger), started_at=1.0).counted


def test_leaders_state_counts_until_object_has_end(book: RoundBook, news: list[GangKey]) -> None:
    ref = RoundRef("team", "js-1", GANG, 1)
    book.begun(ref, builders.fault(), now=builders.NOW)
    book.restart_changed(appeared(restart()))
    (known,) = book.rounds(JOBSET)
    assert known.started_at == builders.NOW
    book.restart_changed(appeared(restart(phase="Done", completionTime=END)))
    (known,) = book.rounds(JOBSET)
    assert known.restarted
    assert set(news) == {GANG}
    book.new_term()
    assert book.rounds(JOBSET) == (known,)


def test_round_with_deleted_object_is_dropped(book: RoundBook) -> None:
    book.begun(RoundRef("team", "js-1", GANG, 1), builders.fault(), now=builders.NOW)
    book.restart_changed(appeared(restart()))
    book.restart_changed(gone(restart()))
    assert book.rounds(JOBSET) == ()


def test_round_has_its_owner_with_and_without_object(book: RoundBook) -> None:
    book.begun(RoundRef("team", "js-2", GANG, 2), builders.fault(), now=builders.NOW, owner_uid="uid-js")
    book.restart_changed(appeared(replace(restart(phase="Done", completionTime=END), owner_uid="uid-other")))
    assert [(each.attempt, each.owner_uid) for each in book.rounds(JOBSET)] == [(1, "uid-other"), (2, "uid-js")]


def test_rounds_are_sorted_by_number(book: RoundBook) -> None:
    for attempt in (10, 9, 2):
        book.restart_changed(appeared(restart(attempt, phase="Done")))
    assert [each.attempt for each in book.rounds(JOBSET)] == [2, 9, 10]


def test_rounds_of_other_gangs_are_excluded(book: RoundBook) -> None:
    job = replace(restart(), gang=GangKey("team", "Job", "js"))
    book.restart_changed(appeared(job))
    book.restart_changed(appeared(replace(restart(), gang=GangKey("other", "JobSet", "js"))))
    assert book.rounds(JOBSET) == ()


def test_refusal_is_kept_for_the_term(book: RoundBook) -> None:
    refusal = Refusal("ReachedMaxRestarts", "3 of 3", at=builders.NOW)
    book.refused(GANG, refusal)
    assert book.refusal(JOBSET) == refusal
    book.new_term()
    assert book.refusal(JOBSET) is None


def test_nothing_is_kept_of_a_gang_whose_rounds_are_over(book: RoundBook) -> None:
    for end in (appeared(restart(phase="Done", completionTime=END)), gone(restart())):
        book.begun(RoundRef("team", "js-1", GANG, 1), builders.fault(), now=builders.NOW)
        book.restart_changed(appeared(restart()))
        book.restart_changed(end)
        assert book._own == {}


def test_rounds_of_a_gang_without_a_managed_jobset_are_not_kept() -> None:
    """Their objects may never appear, and no change of a JobSet would have them dropped."""
    ours, ref = OurJobSets(lambda _: cast("Any", NoJobSets())), RoundRef("team", "js-1", GANG, 1)
    ours.begun(ref, builders.fault(), now=builders.NOW)
    assert (ours.book._own, ours.book._owners) == ({}, {})
    ours.ended(replace(test_spans.done(), ref=ref))
    assert ours.book._own == {}
