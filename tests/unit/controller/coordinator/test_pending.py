"""The causes that a worker has queued: which is next, and when."""

from dataclasses import replace

import pytest

from kubemend.controller.coordinator import pending
from kubemend.controller.coordinator.pending import PendingCause, PendingQueue
from kubemend.controller.model.faults import Request
from kubemend.controller.model.members import PodUid
from kubemend.controller.restarts.objects import RestartSpec
from tests.unit.controller import builders
from tests.unit.controller.coordinator import test_coordinator

NOW = builders.NOW


def cases(*waiting: PendingCause) -> PendingQueue:
    found = PendingQueue()
    for case in waiting:
        found.add(case)
    return found


def test_next_returns_first_cause_not_held() -> None:
    held, first, second = (
        PendingCause(builders.fault(0), postponed_until=NOW + 1.0),
        PendingCause(builders.fault(1)),
        PendingCause(builders.fault(2)),
    )
    waiting = cases(held, first, second)
    assert waiting.due(now=NOW, most=1) == [first]
    assert waiting.due(now=NOW + 1.0, most=1) == [held]


def test_postponed_until_is_the_earliest_end() -> None:
    without_end = PendingCause(builders.fault(0), postponed_until=float("inf"))
    late, early = (
        PendingCause(builders.fault(1), postponed_until=NOW + 9.0),
        PendingCause(builders.fault(2), postponed_until=NOW + 3.0),
    )
    assert cases().postponed_until is None
    assert cases(without_end).postponed_until is None
    assert cases(without_end, late, early).postponed_until == NOW + 3.0
    assert cases(without_end, late, early).due(now=NOW, most=1) == []


def test_change_of_pod_ends_its_holds() -> None:
    one, other = (PendingCause(builders.fault(index), postponed_until=float("inf")) for index in range(2))
    waiting = cases(one, other)
    waiting.recheck(pod=builders.member(1).pod.uid)
    assert waiting.due(now=NOW, most=1) == [other]
    waiting.recheck()
    assert waiting.due(now=NOW, most=1) == [one]


def test_fault_replaces_only_those_of_its_pod_whose_hold_has_no_end() -> None:
    without_end, other = (PendingCause(builders.fault(index), postponed_until=float("inf")) for index in range(2))
    timed, newest = PendingCause(builders.fault(0), postponed_until=NOW + 1.0), PendingCause(builders.fault(0))
    waiting = cases(without_end, other, timed, newest)
    assert without_end not in waiting
    assert waiting.take_all() == [other, timed, newest]


def test_of_the_faults_of_a_pod_that_are_held_a_few_are_kept_and_those_that_need_another_device() -> None:
    waiting = cases()
    held = [
        PendingCause(builders.fault(0, id=f"f-{number}", action_class="Replace" if number == 0 else "RestartApp"))
        for number in range(3 * pending.MOST_OF_A_POD)
    ]
    of_another = PendingCause(builders.fault(1))
    for case in (of_another, *held):
        waiting.add(case)
        waiting.postpone(case, until=NOW + 300.0, now=NOW)
    kept = waiting.take_all()
    assert kept == [of_another, held[0], *held[1 - pending.MOST_OF_A_POD :]]


def test_fault_that_is_being_decided_about_gives_way_to_none() -> None:
    waiting = cases()
    expired = PendingCause(builders.fault(0), postponed_until=NOW)
    waiting.add(expired)
    for number in range(2 * pending.MOST_OF_A_POD):
        case = PendingCause(builders.fault(0, id=f"f-{number}"))
        waiting.add(case)
        waiting.postpone(case, until=NOW + 300.0, now=NOW)
    assert waiting.due(now=NOW, most=9) == [expired]


def test_take_faults_keeps_requests_until_withdrawn() -> None:
    restart = test_coordinator.request(RestartSpec(gang=builders.GANG))
    asked = PendingCause(Request(builders.GANG, restart.id, "new data", NOW), restart=restart)
    fault = builders.fault()
    waiting = cases(PendingCause(fault), asked)
    assert waiting.take_faults() == [fault]
    waiting.withdraw("team/another")
    assert waiting.due(now=NOW, most=1) == [asked]
    waiting.withdraw(restart.id)
    assert asked not in waiting
    assert not waiting


@pytest.mark.parametrize("action_class", ["Replace", "RestartApp"])
def test_fault_after_a_round_keeps_its_device_and_its_time(action_class: str) -> None:
    event = pending.fault_event(builders.fault(action_class=action_class, at=NOW - 9.0))
    fault = pending.synthesize_fault(event, member=builders.member(0), round_id="team/train-1", now=NOW)
    assert (fault.action_class, fault.at) == (action_class, NOW - 9.0)
    found_now = pending.synthesize_fault(
        replace(event, at=None), member=builders.member(0), round_id="team/train-1", now=NOW
    )
    assert found_now.at == NOW


def test_queue_compares_a_fault_with_those_of_its_own_pod_only() -> None:
    compared = 0

    class Uid(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    members = [builders.member(index) for index in range(300)]
    waiting = PendingQueue()
    for member in members:
        waiting.add(
            PendingCause(builders.fault(pod=replace(member.pod, uid=PodUid(Uid(member.pod.uid)))), postponed_until=1.0)
        )
    assert len(waiting) == len(members)
    assert compared <= len(members)
