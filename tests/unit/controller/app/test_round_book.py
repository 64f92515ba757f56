"""Rounds as a JobSet sees them: out of Restart objects, and of what the leader knows before these tell it."""

from dataclasses import replace
from typing import Any

import pytest

from common.gangs import GangKey
from common.kube.mirror import ChangeKind
from controller.app import jobsets
from controller.app.jobsets import RoundBook
from controller.jobset.model import JobSet, Refusal
from controller.model.rounds import RoundRef
from controller.restarts.objects import Restart, RestartSpec
from controller.restarts.store import RestartChange
from tests.unit.controller import builders
from tests.unit.jobset import worlds

GANG = GangKey("team", "JobSet", "js")
JOBSET: JobSet = worlds.jobset()
FAULT: dict[str, Any] = {"kind": "Exit", "code": "Exit1", "message": "exited with 1"}
START, END = "2023-11-14T22:13:20Z", "2023-11-14T22:13:21Z"  # builders.NOW, and a second later


def status(**told: Any) -> dict[str, Any]:
    return {"phase": "Stopping", "trigger": FAULT, "startTime": START, **told}


def restart(attempt: int = 1, **told: Any) -> Restart:
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
        status=status(**told),
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


def test_a_round_under_way_has_no_end() -> None:
    found = jobsets.view("js-1", 1, status(), started_at=1.0)
    assert (found.counted, found.ended_at, found.restarted, found.message) == (True, None, False, "exited with 1")


def test_a_round_that_went_well_tells_how_long_it_took() -> None:
    told = status(phase="Done", completionTime=END, timings={"totalMilliseconds": 412}, failures=[])
    found = jobsets.view("js-1", 1, told, started_at=1.0)
    assert (found.restarted, found.ended_at, found.seconds) == (True, builders.NOW + 1, 0.412)


@pytest.mark.parametrize("phase", ["Degraded", "Failed"])
def test_a_round_that_did_not_bring_all_back_tells_why(phase: str) -> None:
    failures = [{"member": "w-0", "node": "n", "reason": "StopDeadline", "message": "it has not stopped"}]
    found = jobsets.view("js-1", 1, status(phase=phase, failures=failures, completionTime=END), started_at=1.0)
    assert not found.restarted
    assert (found.reason, found.message) == ("StopDeadline", "w-0: it has not stopped")


def test_a_round_that_was_taken_back_is_told_apart() -> None:
    conditions = [{"type": "Cancelled", "status": "True", "message": "its JobSet is suspended"}]
    failures = [{"member": "w-0", "reason": "NotStopped", "message": ""}]
    told = status(phase="Failed", conditions=conditions, failures=failures)
    found = jobsets.view("js-1", 1, told, started_at=1.0)
    assert (found.reason, found.message) == ("Cancelled", "its JobSet is suspended")


def test_what_people_ask_for_is_not_counted() -> None:
    trigger = {"kind": "Request", "code": "Requested", "message": "asked for by team/please"}
    assert not jobsets.view("js-1", 1, status(trigger=trigger), started_at=1.0).counted


def test_what_the_leader_knows_stands_until_the_object_tells_the_end(book: RoundBook, news: list[GangKey]) -> None:
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


def test_a_round_whose_object_is_gone_is_no_round(book: RoundBook) -> None:
    book.begun(RoundRef("team", "js-1", GANG, 1), builders.fault(), now=builders.NOW)
    book.restart_changed(appeared(restart()))
    book.restart_changed(gone(restart()))
    assert book.rounds(JOBSET) == ()


def test_a_round_tells_whose_it_is_before_its_object_does_and_by_it(book: RoundBook) -> None:
    book.begun(RoundRef("team", "js-2", GANG, 2), builders.fault(), now=builders.NOW, owner_uid="uid-js")
    book.restart_changed(appeared(replace(restart(phase="Done", completionTime=END), owner_uid="uid-other")))
    assert [(each.attempt, each.owner_uid) for each in book.rounds(JOBSET)] == [(1, "uid-other"), (2, "uid-js")]


def test_rounds_come_by_their_numbers(book: RoundBook) -> None:
    for attempt in (10, 9, 2):
        book.restart_changed(appeared(restart(attempt, phase="Done")))
    assert [each.attempt for each in book.rounds(JOBSET)] == [2, 9, 10]


def test_rounds_of_other_gangs_are_others(book: RoundBook) -> None:
    job = replace(restart(), gang=GangKey("team", "Job", "js"))
    book.restart_changed(appeared(job))
    book.restart_changed(appeared(replace(restart(), gang=GangKey("other", "JobSet", "js"))))
    assert book.rounds(JOBSET) == ()


def test_a_refusal_is_remembered_for_the_term(book: RoundBook) -> None:
    refusal = Refusal("ReachedMaxRestarts", "3 of 3", at=builders.NOW)
    book.refused(GANG, refusal)
    assert book.refusal(JOBSET) == refusal
    book.new_term()
    assert book.refusal(JOBSET) is None
