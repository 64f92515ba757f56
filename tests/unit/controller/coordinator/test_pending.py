"""The causes that a worker has queued: which is next, and when."""

from dataclasses import replace

import pytest

from kubemend.controller.coordinator import pending
from kubemend.controller.coordinator.pending import PendingCause, PendingQueue
from kubemend.controller.model.faults import Request
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
    assert waiting.next(now=NOW) is first
    assert waiting.next(now=NOW + 1.0) is held


def test_postponed_until_is_the_earliest_end() -> None:
    without_end = PendingCause(builders.fault(0), postponed_until=float("inf"))
    late, early = (
        PendingCause(builders.fault(1), postponed_until=NOW + 9.0),
        PendingCause(builders.fault(2), postponed_until=NOW + 3.0),
    )
    assert cases().postponed_until is None
    assert cases(without_end).postponed_until is None
    assert cases(without_end, late, early).postponed_until == NOW + 3.0
    assert cases(without_end, late, early).next(now=NOW) is None


def test_change_of_pod_ends_its_holds() -> None:
    one, other = (PendingCause(builders.fault(index), postponed_until=float("inf")) for index in range(2))
    waiting = cases(one, other)
    waiting.recheck(pod=builders.member(1).pod.uid)
    assert waiting.next(now=NOW) is other
    waiting.recheck()
    assert waiting.next(now=NOW) is one


def test_fault_replaces_only_those_of_its_pod_whose_hold_has_no_end() -> None:
    without_end, other = (PendingCause(builders.fault(index), postponed_until=float("inf")) for index in range(2))
    timed, newest = PendingCause(builders.fault(0), postponed_until=NOW + 1.0), PendingCause(builders.fault(0))
    waiting = cases(without_end, other, timed, newest)
    assert without_end not in waiting
    assert waiting.take_all() == [other, timed, newest]


def test_take_faults_keeps_requests_until_withdrawn() -> None:
    restart = test_coordinator.request(RestartSpec(gang=builders.GANG))
    asked = PendingCause(Request(builders.GANG, restart.id, "new data", NOW), restart=restart)
    fault = builders.fault()
    waiting = cases(PendingCause(fault), asked)
    assert waiting.take_faults() == [fault]
    waiting.withdraw("team/another")
    assert waiting.next(now=NOW) is asked
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
