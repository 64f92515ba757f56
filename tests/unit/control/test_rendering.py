"""The text of a restart's progress, from the objects that the agent sends."""

import pytest

from kubemend.agent.actuator.progress import Begun, Decided, Event, Freeing, Joined, Queued, Reported, StepTaken
from kubemend.agent.control import events, rendering
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import admission
from kubemend.agent.restart.admission import Decision, Verb
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restart.steps import Step, StepKind, StepReason
from kubemend.agent.restart.verification import Check, CheckState
from tests.unit.restart import builders

ACT = Decision(Verb.ACT, Reason.ADMITTED, strategy=Strategy.SWAP)
POSTPONED = Decision(Verb.POSTPONE, Reason.RUNTIME_UNAVAILABLE, "no socket")
REFUSE = Decision(Verb.REFUSE, Reason.POD_DELETING, "the pod is being deleted")
STOP = Step(StepKind.STOP, StepReason.OLD_RUNS, ContainerId("c"))
WAIT = Step(StepKind.WAIT, StepReason.INIT_RUNS, ContainerId("i"))
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
        "joined    a restart is already in progress because Xid 31 on GPU-0",
    ),
    (Decided(ACT), "decided   act: Admitted; strategy swap, SIGKILL"),
    (
        Decided(Decision(Verb.ACT, Reason.ADMITTED, "not swap: hidden", strategy=Strategy.RESET, grace_seconds=10.0)),
        "decided   act: Admitted: not swap: hidden; strategy reset, 10 s grace",
    ),
    (Decided(POSTPONED), "decided   postpone: RuntimeUnavailable: no socket"),
    (
        Begun(1000.0, "r1", Strategy.SWAP, ["logger", "trainer"], 4),
        "begun     restart r1 of logger, trainer, in the journal",
    ),
    (StepTaken(STOP, "trainer", 3, 0.0123), "stop      trainer (attempt 3) 12 ms"),
    (StepTaken(STOP, "trainer", None, 0.01, "not found"), "stop      trainer failed: not found"),
    (Freeing("trainer", 41 << 30), "freeing   trainer: the driver is freeing memory, 41.0 GiB left"),
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
def test_each_event_is_one_line(event: Event, text: str) -> None:
    assert rendering.Lines().line(events.at(12.4, events.encode(event))) == f"     12 ms  {text}"


def test_accepted_request_is_the_first_line() -> None:
    event = events.accepted(builders.TARGET, requester="uid 0")
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
    (Decided(POSTPONED), False, "FAILED    RuntimeUnavailable: timed out: no socket"),
]


@pytest.mark.parametrize(("last", "ok", "text"), ENDS)
def test_last_line_has_result_and_reason(last: Event, ok: bool, text: str) -> None:
    end = events.done(last, stopped=False)
    assert end["ok"] is ok
    assert rendering.Lines().line(events.at(0.0, end)) == f"      0 ms  {text}"


@pytest.mark.parametrize("last", [None, Decided(ACT), Decided(POSTPONED), Reported(SWAPPED, (), settled=False)])
def test_restart_left_open_by_stopped_agent_is_not_success(last: Event | None) -> None:
    end = events.done(last, stopped=True)
    assert (end["ok"], end["reason"]) == (False, "AgentStopped")


def test_repeated_wait_is_one_line() -> None:
    lines = rendering.Lines()
    wait = events.at(0.0, events.encode(StepTaken(WAIT, "prepare", 1, 1.0)))
    other = events.at(0.0, events.encode(StepTaken(WAIT, "shipper", 1, 1.0)))
    assert [lines.line(event) is not None for event in (wait, wait, other, wait)] == [True, False, True, True]


def test_unknown_event_of_newer_agent_is_not_an_error() -> None:
    assert rendering.Lines().line({"event": "frozen", "ms": 1.0}) == "      1 ms  frozen"


def test_lost_events_are_reported() -> None:
    assert "3 events" in str(rendering.Lines().line(events.at(0.0, events.missed(3))))


def test_name_of_a_process_does_not_control_the_terminal() -> None:
    """The message of a hang has the name of a thread, which is any 15 bytes of the program's choice."""
    message = "no heartbeat in /beat for 61 s (timeout 60 s; threads: 1 S; \x1b[2J\nverified (7) S)"
    line = rendering.Lines().line({"event": "joined", "ms": 1.0, "cause": "Hung", "message": message})
    assert line is not None
    assert line.isprintable()
    assert line.endswith("threads: 1 S;  [2J verified (7) S)")
