"""What waits at a desk: who is next, and when somebody will be."""

from controller.app.cases import Case, Cases
from controller.model.faults import Request
from controller.restarts.objects import RestartSpec
from tests.unit.controller import builders
from tests.unit.controller.app import test_conductor

NOW = builders.NOW


def cases(*waiting: Case) -> Cases:
    found = Cases()
    for case in waiting:
        found.add(case)
    return found


def test_the_first_that_is_not_held_is_next() -> None:
    held, first, second = (
        Case(builders.fault(0), held_until=NOW + 1.0),
        Case(builders.fault(1)),
        Case(builders.fault(2)),
    )
    waiting = cases(held, first, second)
    assert waiting.next(now=NOW) is first
    assert waiting.next(now=NOW + 1.0) is held


def test_the_earliest_end_of_a_hold_counts() -> None:
    without_end = Case(builders.fault(0), held_until=float("inf"))
    late, early = Case(builders.fault(1), held_until=NOW + 9.0), Case(builders.fault(2), held_until=NOW + 3.0)
    assert cases().held_until is None
    assert cases(without_end).held_until is None
    assert cases(without_end, late, early).held_until == NOW + 3.0
    assert cases(without_end, late, early).next(now=NOW) is None


def test_what_has_happened_to_a_pod_ends_the_holds_about_it() -> None:
    one, other = (Case(builders.fault(index), held_until=float("inf")) for index in range(2))
    waiting = cases(one, other)
    waiting.look_again(pod=builders.member(1).pod.uid)
    assert waiting.next(now=NOW) is other
    waiting.look_again()
    assert waiting.next(now=NOW) is one


def test_faults_are_taken_and_requests_stay_until_they_are_withdrawn() -> None:
    restart = test_conductor.request(RestartSpec(gang=builders.GANG))
    asked = Case(Request(builders.GANG, restart.id, "new data", NOW), restart=restart)
    fault = builders.fault()
    waiting = cases(Case(fault), asked)
    assert waiting.take_faults() == [fault]
    waiting.withdraw("team/another")
    assert waiting.next(now=NOW) is asked
    waiting.withdraw(restart.id)
    assert asked not in waiting
    assert not waiting
