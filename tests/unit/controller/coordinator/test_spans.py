"""A round's record as a trace: the times of all steps, each within its parent."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.coordination import StepPhase
from kubemend.controller.coordinator import spans
from kubemend.controller.coordinator.spans import Span
from kubemend.controller.decisions.facts import Decision, Kind, Reason
from kubemend.controller.model.faults import Request
from kubemend.controller.model.rounds import RoundRef, StepResult
from kubemend.controller.rounds import machine, status
from kubemend.controller.rounds.states import Limits, Phase, Round
from tests.unit.controller import builders
from tests.unit.controller.builders import GANG, NOW

REF = RoundRef("team", "train-4", GANG, 4)
IN_PLACE = Decision(Kind.IN_PLACE, Reason.MEMBER_FAILED)
MILLISECOND = 0.001


def begun(size: int = 2, *, max_unavailable: int | None = None) -> Round:
    request = Request(GANG, "ada", "new data", at=NOW - 0.1, max_unavailable=max_unavailable)
    return machine.begin(
        REF,
        cause=builders.fault() if max_unavailable is None else request,
        decision=IN_PLACE,
        members=builders.gang(size),
        nodes=builders.nodes(size),
        now=NOW,
    ).round


def advance(state: Round, phase: StepPhase, *indexes: int, at: float, **more: Any) -> Round:
    results = [StepResult(builders.member(index).pod.uid, phase, **more) for index in indexes]
    return machine.advance(state, results, now=NOW + at).round


def done() -> Round:
    state = advance(begun(), StepPhase.STOPPED, 0, at=0.05, seconds={"stop": 0.02, "create": 0.01, "start": 0.015})
    state = advance(state, StepPhase.STOPPED, 1, at=0.08)
    return advance(state, StepPhase.RUNNING, 0, 1, at=0.1)


def trace(ended: Round) -> Span:
    return spans.of_round(ended, status.render(ended))


def laid(span: Span) -> list[tuple[str, int, int]]:
    """Return the direct children: names, and milliseconds since the decision."""
    return [(each.name, ms(each.begin), ms(each.end)) for each in span.children]


def ms(moment: float) -> int:
    return round((moment - NOW) * 1000)


def named(root: Span, member: str) -> Span:
    (found,) = [each for each in root.children if each.attributes.get("kubemend.member") == member]
    return found


def test_successful_round_has_its_spans() -> None:
    root = trace(done())
    assert (root.name, ms(root.begin), ms(root.end), root.error) == ("round", -100, 100, "")
    assert laid(root) == [
        ("decide", -100, 0),
        ("stop", 0, 80),
        ("release", 80, 100),
        ("member", 0, 100),
        ("member", 0, 100),
    ]
    first, last = named(root, "train-0-0"), named(root, "train-1-0")
    assert laid(first) == [
        ("order", 0, 5),
        ("create", 5, 15),
        ("start", 15, 30),
        ("stop", 30, 50),
        ("held", 50, 80),
        ("release", 80, 100),
    ]
    # its agent reported no phases, and it was the last to stop
    assert laid(last) == [("stop", 0, 80), ("release", 80, 100)]
    assert first.attributes["kubemend.node"] == "node-0"


def test_round_span_has_identifying_attributes() -> None:
    attributes = trace(done()).attributes
    assert attributes["kubemend.round"] == "team/train-4"
    assert attributes["kubemend.gang"] == "team/Job/train"
    assert (attributes["kubemend.cause"], attributes["kubemend.member"]) == ("Exit1", "train-0-0")
    assert (attributes["kubemend.decision"], attributes["kubemend.phase"]) == ("InPlace", "Done")
    assert (attributes["kubemend.members.running"], attributes["kubemend.HeldTogether"]) == (2, "AllHeld")


def test_phases_of_a_deviating_clock_are_shortened() -> None:
    state = advance(begun(), StepPhase.STOPPED, 0, at=0.05, seconds={"stop": 0.3, "start": 0.1})
    state = advance(state, StepPhase.STOPPED, 1, at=0.05)
    root = trace(advance(state, StepPhase.RUNNING, 0, 1, at=0.06))
    start, stop, *_ = named(root, "train-0-0").children
    assert (ms(start.begin), ms(stop.end)) == (0, 50)
    assert stop.end - stop.begin == pytest.approx(3 * (start.end - start.begin), rel=0.01)


def test_round_without_release_has_failed_stop_span() -> None:
    state = advance(begun(), StepPhase.STUCK, 0, at=0.1, reason="Stuck", detail="pid 7 cannot be killed")
    ended = machine.advance(state, (), now=NOW + Limits().whole + 1.0).round
    assert ended.phase is Phase.FAILED
    root = trace(ended)
    first = status.render(ended)["failures"][0]
    assert root.error == f"{first['reason']}: {first['message']}"
    by_name = {each.name: each for each in root.children}
    assert by_name["stop"].error == "not all old containers were stopped"
    assert "release" not in by_name
    assert named(root, first["member"]).error == root.error


def test_rolling_round_has_no_common_release_span() -> None:
    state = begun(max_unavailable=1)
    for index in range(2):
        state = advance(state, StepPhase.STOPPED, index, at=0.1 + index)
        state = advance(state, StepPhase.RUNNING, index, at=0.2 + index)
    assert state.phase is Phase.DONE
    root = trace(state)
    assert "release" not in [each.name for each in root.children]
    assert [each.name for each in named(root, "train-0-0").children] == ["stop", "release"]
    assert root.attributes["kubemend.cause"] == "Requested"


milliseconds = st.integers(min_value=0, max_value=10_000)
members = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "stoppedMilliseconds": milliseconds,
            "runningMilliseconds": milliseconds,
            "phases": st.dictionaries(st.sampled_from(["stop", "create", "start", "novel"]), milliseconds),
        },
    ),
    max_size=4,
)


@given(
    timings=st.fixed_dictionaries({}, optional={"stopMilliseconds": milliseconds, "releaseMilliseconds": milliseconds}),
    slowest=members,
)
def test_any_record_gives_spans_inside_their_parents(timings: Mapping[str, int], slowest: list[dict[str, Any]]) -> None:
    ended = done()
    record = status.render(ended) | {
        "timings": timings,
        "slowest": [{"member": f"m-{index}", "node": "n"} | each for index, each in enumerate(slowest)],
    }
    for span in spans.of_round(ended, record).walk():
        assert span.begin <= span.end
        for child in span.children:
            assert span.begin - MILLISECOND <= child.begin
            assert child.end <= span.end + MILLISECOND
