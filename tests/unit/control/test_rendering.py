"""How the progress of a restart reads, from the very objects that the agent sends."""

import pytest

from agent.actuator.outcomes import Outcome, Result
from agent.actuator.progress import Begun, Decided, Event, Joined, Queued, Reported, StepTaken
from agent.control import events, rendering
from agent.model.workloads import ContainerId
from agent.restart import admission
from agent.restart.admission import Decision, Reason, Verb
from agent.restart.intents import Strategy
from agent.restart.steps import Step, StepKind, Why
from agent.restart.verification import Check, CheckState
from tests.unit.restart import builders

ACT = Decision(Verb.ACT, Reason.ADMITTED, strategy=Strategy.SWAP)
HOLD = Decision(Verb.HOLD, Reason.RUNTIME_UNAVAILABLE, "no socket")
REFUSE = Decision(Verb.REFUSE, Reason.POD_DELETING, "the pod is being deleted")
STOP = Step(StepKind.STOP, Why.OLD_RUNS, ContainerId("c"))
WAIT = Step(StepKind.WAIT, Why.INIT_RUNS, ContainerId("i"))
SWAPPED = Outcome(Result.SWAPPED, phases={"stop": 0.0213, "create": 0.004})
STUCK = Outcome(Result.STUCK, phases={"stop": 8.0}, detail="no answer within 8 s")
CLEANED = Outcome(Result.SWAPPED, phases={"stop": 0.0213}, notes=("/dev/shm: 3 files removed",))
PASSED = Check("one-running", CheckState.PASSED)
UNKNOWN = Check("devices-answer", CheckState.UNKNOWN, "the driver could not be asked")
WRONG = Check("kubelet-agrees", CheckState.FAILED, "kubelet reports no container for trainer")

LINES = [
    (Queued(), "queued    other restarts go first"),
    (
        Joined(admission.Cause("Xid31", "Xid 31 on GPU-0", 0.0)),
        "joined    it is being restarted already because Xid 31 on GPU-0",
    ),
    (Decided(ACT), "decided   act: Admitted; strategy swap, SIGKILL"),
    (
        Decided(Decision(Verb.ACT, Reason.ADMITTED, "not swap: hidden", strategy=Strategy.RESET, grace_seconds=10.0)),
        "decided   act: Admitted: not swap: hidden; strategy reset, 10 s grace",
    ),
    (Decided(HOLD), "decided   hold: RuntimeUnavailable: no socket"),
    (
        Begun(1000.0, "r1", Strategy.SWAP, ["logger", "trainer"], 4),
        "begun     restart r1 of logger, trainer, in the journal",
    ),
    (StepTaken(STOP, "trainer", 3, 0.0123), "stop      trainer (attempt 3) 12 ms"),
    (StepTaken(STOP, "trainer", None, 0.01, "not found"), "stop      trainer failed: not found"),
    (StepTaken(WAIT, "prepare", 1, 0.1), "wait      prepare (attempt 1) 100 ms, InitRuns"),
    (Reported(SWAPPED, (), settled=False), "acted     Swapped in 25 ms (stop 21, create 4)"),
    (
        Reported(SWAPPED, (PASSED,), settled=True),
        "verified  Swapped in 25 ms (stop 21, create 4)",
    ),
    (
        Reported(SWAPPED, (PASSED, UNKNOWN), settled=True),
        "settled   Swapped in 25 ms (stop 21, create 4); devices-answer unknown",
    ),
    (Reported(CLEANED, (), settled=False), "acted     Swapped in 21 ms (stop 21); /dev/shm: 3 files removed"),
    (Reported(STUCK, (), settled=True), "settled   Stuck in 8000 ms (stop 8000); no answer within 8 s"),
]


@pytest.mark.parametrize(("event", "text"), LINES)
def test_each_event_is_a_line(event: Event, text: str) -> None:
    assert rendering.Lines().line(events.at(12.4, events.encode(event))) == f"     12 ms  {text}"


def test_what_was_asked_for_is_said_first() -> None:
    event = events.accepted(builders.TARGET, who="uid 0")
    assert rendering.Lines().line(events.at(0.0, event)) == "      0 ms  accepted  default/trainer-0, container trainer"


ENDS = [
    (Reported(SWAPPED, (PASSED,), settled=True), True, "done      Swapped"),
    (
        Reported(SWAPPED, (UNKNOWN,), settled=True),
        False,
        "FAILED    NotVerified: devices-answer unknown: the driver could not be asked",
    ),
    (
        Reported(SWAPPED, (WRONG,), settled=True),
        False,
        "FAILED    NotVerified: kubelet-agrees failed: kubelet reports no container for trainer",
    ),
    (Reported(STUCK, (), settled=True), False, "FAILED    Stuck: no answer within 8 s"),
    (Decided(REFUSE), False, "FAILED    PodDeleting: the pod is being deleted"),
    (Decided(HOLD), False, "FAILED    RuntimeUnavailable: given up: no socket"),
]


@pytest.mark.parametrize(("last", "ok", "text"), ENDS)
def test_the_end_says_whether_it_was_done_and_why_not(last: Event, ok: bool, text: str) -> None:
    end = events.done(last, stopped=False)
    assert end["ok"] is ok
    assert rendering.Lines().line(events.at(0.0, end)) == f"      0 ms  {text}"


@pytest.mark.parametrize("last", [None, Decided(ACT), Decided(HOLD), Reported(SWAPPED, (), settled=False)])
def test_what_an_agent_that_was_stopped_leaves_open_is_no_success(last: Event | None) -> None:
    end = events.done(last, stopped=True)
    assert (end["ok"], end["reason"]) == (False, "AgentStopped")


def test_a_wait_for_the_same_is_said_once() -> None:
    lines = rendering.Lines()
    wait = events.at(0.0, events.encode(StepTaken(WAIT, "prepare", 1, 1.0)))
    other = events.at(0.0, events.encode(StepTaken(WAIT, "shipper", 1, 1.0)))
    assert [lines.line(event) is not None for event in (wait, wait, other, wait)] == [True, False, True, True]


def test_what_a_newer_agent_tells_is_no_error() -> None:
    assert rendering.Lines().line({"event": "frozen", "ms": 1.0}) == "      1 ms  frozen"


def test_lost_events_are_owned_up_to() -> None:
    assert "3 events" in str(rendering.Lines().line(events.at(0.0, events.missed(3))))
