"""A round's status: limited in size, and complete for a new leader."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.coordination import FaultKind, StepPhase
from kubemend.controller.decisions.facts import Decision, Kind, Reason
from kubemend.controller.model.faults import Cause, Fault, Request
from kubemend.controller.model.members import PodPhase
from kubemend.controller.model.rounds import MemberSeen, PodGone, RoundEvent, StepResult
from kubemend.controller.rounds import machine, status
from kubemend.controller.rounds.states import Limits, Phase, Round
from tests.unit.controller import builders
from tests.unit.controller.builders import GANG, NOW
from tests.unit.controller.rounds.test_machine import IN_PLACE, REF, uid

CRD = Path(__file__).parents[4] / "daemonset" / "crds" / "restarts.yaml"


def begun(size: int = 2, *, cause: Cause | None = None, decision: Decision = IN_PLACE) -> Round:
    return machine.begin(
        REF,
        cause=cause or builders.fault(),
        decision=decision,
        members=builders.gang(size),
        nodes=builders.nodes(size),
        now=NOW,
    ).round


def reported(state: Round, phase: StepPhase, indexes: range, *, at: float, **more: Any) -> Round:
    return machine.advance(state, [StepResult(uid(index), phase, **more) for index in indexes], now=NOW + at).round


def done(size: int) -> Round:
    state = reported(begun(size), StepPhase.STOPPED, range(size - 1), at=0.05)
    state = reported(
        state, StepPhase.STOPPED, range(size - 1, size), at=0.08, seconds={"stop": 0.02}, unheld_seconds=0.004
    )
    return reported(state, StepPhase.RUNNING, range(size), at=0.1)


def test_done_round_has_complete_status() -> None:
    at = "2023-11-14T22:13:20Z"
    assert status.render(done(2)) == {
        "phase": "Done",
        "attempt": 4,
        "trigger": {
            "kind": "Exit",
            "member": "train-0-0",
            "slot": "train/0",
            "node": "node-0",
            "code": "Exit1",
            "message": "exited with 1",
            "time": "2023-11-14T22:13:19Z",
        },
        "decision": {"kind": "InPlace", "reason": "MemberFailed", "detail": ""},
        "startTime": at,
        "members": {"total": 2, "inPlace": 2, "recreated": 0, "stopped": 2, "running": 2, "failed": 0},
        "timings": {
            "stopMilliseconds": 80,
            "recreateMilliseconds": 0,
            "releaseMilliseconds": 20,
            "totalMilliseconds": 200,
        },
        "completionTime": at,
        "slowest": [
            {
                "member": "train-1-0",
                "node": "node-1",
                "stoppedMilliseconds": 80,
                "runningMilliseconds": 100,
                "phases": {"stop": 20},
            },
            {
                "member": "train-0-0",
                "node": "node-0",
                "stoppedMilliseconds": 50,
                "runningMilliseconds": 100,
                "phases": {},
            },
        ],
        "failures": [],
        "conditions": [
            {
                "type": "HeldTogether",
                "status": "False",
                "lastTransitionTime": at,
                "reason": "HeldAfterMilliseconds",
                "message": "1 members ran for 4 ms at most before they were held, such as train-1-0",
            }
        ],
    }


def test_wait_for_recreated_members_begins_at_the_last_death() -> None:
    state = reported(begun(2), StepPhase.STOPPED, range(1), at=0.05, reason="NotStarted")
    state = reported(state, StepPhase.STUCK, range(1, 2), at=0.06, reason="Stuck")
    steps: tuple[tuple[float, RoundEvent], ...] = (
        (0.5, PodGone(uid(1))),
        (1.0, MemberSeen(builders.member(1, generation=1, phase=PodPhase.PENDING))),
        (2.0, StepResult(uid(1, 1), StepPhase.STOPPED)),
        (2.5, StepResult(uid(0), StepPhase.RUNNING)),
        (2.5, StepResult(uid(1, 1), StepPhase.RUNNING)),
    )
    for at, event in steps:
        state = machine.advance(state, [event], now=NOW + at).round
    found = status.render(state)
    assert (found["timings"]["stopMilliseconds"], found["timings"]["recreateMilliseconds"]) == (2000, 1500)
    assert found["members"] == {"total": 2, "inPlace": 1, "recreated": 1, "stopped": 2, "running": 2, "failed": 0}
    late = {each["member"]: each.get("startedLate") for each in status.render(state)["slowest"]}
    assert late == {"train-0-0": True, "train-1-1": None}


def test_worst_unheld_member_is_named() -> None:
    state = begun(3)
    for index, unheld_seconds in enumerate((0.0, 0.002, 0.115)):
        state = reported(state, StepPhase.STOPPED, range(index, index + 1), at=0.1, unheld_seconds=unheld_seconds)
    state = reported(state, StepPhase.RUNNING, range(3), at=0.2)
    (held,) = [each for each in status.render(state)["conditions"] if each["type"] == "HeldTogether"]
    assert (held["status"], held["reason"]) == ("False", "HeldAfterMilliseconds")
    assert held["message"] == "2 members ran for 115 ms at most before they were held, such as train-2-0"


def test_conditions_of_a_round_that_held_all_of_one_that_rolled_and_of_a_cancelled_one() -> None:
    at = {"lastTransitionTime": "2023-11-14T22:13:20Z"}
    held = {"type": "HeldTogether", **at, "status": "True", "reason": "AllHeld", "message": ""}
    state = reported(reported(begun(), StepPhase.STOPPED, range(2), at=0.1), StepPhase.RUNNING, range(2), at=0.2)
    assert status.render(state)["conditions"] == [held]

    (rolled,) = status.render(replace(state, max_unavailable=1))["conditions"]
    assert (rolled["status"], rolled["reason"]) == ("False", "Rolling")
    assert rolled["message"] == "members were restarted one after another"

    cancelled = replace(state, phase=Phase.FAILED, reason="Cancelled", detail="by a user")
    assert status.render(cancelled)["conditions"] == [
        held,
        {"type": "Cancelled", **at, "status": "True", "reason": "Cancelled", "message": "by a user"},
    ]


def test_slowest_members_come_first() -> None:
    state = reported(begun(3), StepPhase.STOPPED, range(3), at=0.1)
    for index, at in ((1, 0.2), (0, 0.3), (2, 0.4)):
        state = reported(state, StepPhase.RUNNING, range(index, index + 1), at=at)
    assert [each["member"] for each in status.render(state)["slowest"]] == ["train-2-0", "train-0-0", "train-1-0"]


def test_five_thousand_members_fit_into_a_small_object() -> None:
    state = reported(begun(5000), StepPhase.STOPPED, range(5000), at=0.1)
    state = machine.advance(state, (), now=NOW + Limits().release + Limits().reconnect + 0.2).round
    assert state.phase is Phase.FAILED
    found = status.render(state)
    assert (found["members"]["total"], found["members"]["failed"]) == (5000, 5000)
    assert (len(found["slowest"]), len(found["failures"])) == (status.SLOWEST, status.MOST_FAILURES)
    assert len(json.dumps(found)) < 20_000


def test_failures_have_their_reasons() -> None:
    state = reported(begun(), StepPhase.REFUSED, range(1), at=0.1, reason="NotOptedIn", detail="no annotation")
    found = status.render(state)
    assert found["failures"][0] == {
        "member": "train-0-0",
        "node": "node-0",
        "reason": "NotOptedIn",
        "message": "no annotation",
    }
    assert [each["reason"] for each in found["failures"]] == ["NotOptedIn", "NotStopped"]
    assert (found["conditions"][0]["status"], found["conditions"][0]["reason"]) == ("False", "OldMayRun")


CAUSES: tuple[Cause, ...] = (
    builders.fault(),
    builders.fault(kind=FaultKind.DEVICE, exit_code=None, action_class="Replace", device="GPU-1", code="Xid79"),
    Request(GANG, "team/again", "new weights", NOW - 5.5, max_unavailable=2),
    Request(GANG, "team/again", "", NOW - 5.5, recreate=True),
)


@given(
    cause=st.sampled_from(CAUSES),
    kind=st.sampled_from((Kind.IN_PLACE, Kind.IN_PLACE_AND_RECREATE, Kind.RECREATE_ALL)),
    recreate=st.frozensets(st.sampled_from(("train/0", "train/1"))),
)
def test_new_leader_reads_the_decision(cause: Cause, kind: Kind, recreate: frozenset[str]) -> None:
    decision = Decision(kind, Reason.MEMBERS_LOST, "because", recreate)
    written = json.dumps(status.render(begun(cause=cause, decision=decision)))
    kept = status.parse(json.loads(written), created_at=NOW)
    assert (kept.cause, kept.decision, kept.started_at) == (cause, decision, NOW)
    assert kept.members_until == builders.member(0).created_at


@pytest.mark.parametrize("cause", CAUSES)
def test_first_status_equals_rendered_status(cause: Cause) -> None:
    hit = builders.member(0) if isinstance(cause, Fault) else None
    first = status.first(
        cause, decision=IN_PLACE, attempt=REF.attempt, hit=hit, started_at=NOW, members=builders.gang(2)
    )
    assert first == status.render(begun(cause=cause))


@pytest.mark.parametrize(
    ("cause", "message"),
    [(CAUSES[2], "requested by team/again: new weights"), (CAUSES[3], "requested by team/again")],
)
def test_request_is_named_with_its_reason(cause: Cause, message: str) -> None:
    assert status.render(begun(cause=cause))["trigger"]["message"] == message


@pytest.mark.parametrize(("cause", "slots"), [(CAUSES[2], {"train/0"}), (CAUSES[3], set()), (CAUSES[0], set())])
def test_new_leader_knows_the_slots_that_a_rolling_round_had_to_restart(cause: Cause, slots: set[str]) -> None:
    members = [builders.member(0), builders.member(1, phase=PodPhase.SUCCEEDED)]
    first = status.first(cause, decision=IN_PLACE, attempt=1, hit=None, started_at=NOW, members=members)
    assert status.parse(first, created_at=NOW).slots == slots


@pytest.mark.parametrize(
    ("count", "characters", "is_kept"),
    [
        (status.MOST_SLOTS, 9, True),
        (status.MOST_SLOTS + 1, 9, False),
        (64, 1024, True),
        (64, 1025, False),
    ],
)
def test_slots_are_kept_as_far_as_they_fit_into_an_annotation(count: int, characters: int, *, is_kept: bool) -> None:
    slots = frozenset(f"{number:0{characters}}" for number in range(count))
    decision = Decision(Kind.RECREATE_ALL, Reason.MEMBERS_LOST, "because", slots)
    kept = status.parse(status.render(begun(decision=decision)), created_at=NOW)
    assert kept.decision.recreate == (slots if is_kept else frozenset())


def test_status_without_resume_data_is_refused() -> None:
    with pytest.raises(KeyError):
        status.parse(status.render(done(2)), created_at=NOW)


def test_budget_counts_round_from_when_members_ran() -> None:
    found = status.past(status.render(done(2)), created_at=NOW - 3.0)
    assert (found.at, found.fault_at, found.slot, found.code) == (NOW, NOW - 1.0, "train/0", "Exit1")


def test_budget_counts_unfinished_round_from_its_begin() -> None:
    found = status.past(status.render(begun(cause=CAUSES[2])), created_at=NOW - 3.0)
    assert (found.at, found.fault_at, found.slot, found.code) == (NOW, NOW - 6.0, "", "")


def test_budget_counts_unknown_round_from_its_creation() -> None:
    assert status.past({}, created_at=NOW).at == NOW


def test_status_fits_the_resources_schema() -> None:
    crd = yaml.safe_load(CRD.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    failed = reported(begun(), StepPhase.REFUSED, range(1), at=0.1, reason="NotOptedIn")
    for found in (status.render(done(2)), status.render(failed)):
        _fits(found, schema, "status")


def _fits(value: Any, schema: dict[str, Any], path: str) -> None:
    if schema["type"] == "object" and "properties" in schema:
        for name, inner in value.items():
            assert name in schema["properties"], f"{path}.{name} would be pruned"
            _fits(inner, schema["properties"][name], f"{path}.{name}")
    elif schema["type"] == "array":
        assert len(value) <= schema.get("maxItems", len(value)), path
        for inner in value:
            _fits(inner, schema["items"], f"{path}[]")
    elif "enum" in schema:
        assert value in schema["enum"], path
