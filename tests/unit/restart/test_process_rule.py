"""The rule for a program that its launcher restarts, while launcher, agent and program do what they want in between."""

import json
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import counts, intents, process, spares, steps
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, NoSpare, Program, State
from kubemend.agent.restart.steps import Resolution
from launcher import kubemend_run
from tests.unit.restart import builders

INTENT = intents.ProcessIntent(
    "r1", builders.TARGET, builders.SANDBOX, ContainerId("c1"), program=3, reason="Xid31", created_at=1000.0
)
RUNS = Launcher(State.RUNNING, program=3)
OTHERS = replace(RUNS, order="r0")
STOPPING = Launcher(State.STOPPING, program=3, order="r1")
HELD = Launcher(State.HELD, program=3, order="r1")
AGAIN = Launcher(State.RUNNING, program=4, order="r1")
VALID = {
    "kubemend-run": 1,
    "state": "running",
    "error": "",
    "order": "r1",
    "program": 4,
    "age": 1.5,
    "restarts": 3,
    "spare": 77,
    "ready": True,
    "no_spare": "",
    "code": 0,
}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(Program(RUNS), ("stop", "OldRuns"), id="begins-with-the-stop"),
        pytest.param(Program(OTHERS), ("stop", "OldRuns"), id="after-an-earlier-restart"),
        pytest.param(Program(replace(HELD, order="r0")), ("stop", "OldRuns"), id="takes-over-what-another-agent-held"),
        pytest.param(
            Program(replace(RUNS, state=State.FAILED)), ("stop", "OldRuns"), id="after-a-failure-that-is-held"
        ),
        pytest.param(Program(STOPPING), ("wait", "OldRuns"), id="waits-for-its-end"),
        pytest.param(Program(HELD), ("wait", "OldOnDevice"), id="waits-for-the-devices"),
        pytest.param(Program(HELD, is_free=True), ("start", "SuccessorReady"), id="starts"),
        pytest.param(Program(HELD, held_by_round=True), ("wait", "OldOnDevice"), id="the-devices-come-first"),
        pytest.param(
            Program(HELD, is_free=True, held_by_round=True), ("done", "HeldForRound"), id="waits-for-the-round"
        ),
        pytest.param(Program(HELD, remains=(9,), is_free=True), ("done", "OldLeft"), id="never-two-programs"),
        pytest.param(Program(AGAIN), ("done", "Relaunched"), id="done"),
        pytest.param(
            Program(replace(AGAIN, state=State.RESTARTING)), ("done", "Relaunched"), id="done-and-failed-again"
        ),
        pytest.param(Program(replace(AGAIN, order="")), ("done", "LauncherWon"), id="the-launcher-was-faster"),
        pytest.param(Program(replace(RUNS, state=State.RESTARTING)), ("wait", "LauncherRestarts"), id="is-about-to"),
        pytest.param(Program(replace(RUNS, order="r1")), ("done", "OrderRefused"), id="cannot-be-killed"),
        pytest.param(Program(replace(HELD, state=State.ENDING)), ("done", "LauncherStops"), id="asked-to-stop"),
        pytest.param(Program(LauncherUnavailable("no answer")), ("done", "LauncherSilent"), id="silent"),
    ],
)
def test_finishes(seen: Program, expected: tuple[str, str]) -> None:
    step = process.next_step(INTENT, seen)
    assert (step.kind.value, step.reason.value) == expected
    assert step.container == "c1"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(Program(RUNS), ("done", "Undone"), id="nothing-done-yet"),
        pytest.param(Program(STOPPING), ("wait", "OldRuns"), id="too-late"),
        pytest.param(Program(HELD), ("start", "SuccessorReady"), id="what-is-dead-is-started"),
        pytest.param(Program(HELD, held_by_round=True), ("start", "SuccessorReady"), id="also-in-a-round"),
        pytest.param(Program(AGAIN), ("done", "Relaunched"), id="done"),
        pytest.param(Program(replace(HELD, state=State.ENDING)), ("done", "Undone"), id="asked-to-stop"),
    ],
)
def test_undoes(seen: Program, expected: tuple[str, str]) -> None:
    step = process.next_step(INTENT, seen, resolution=Resolution.UNDO)
    assert (step.kind.value, step.reason.value) == expected


@dataclass
class Simulation:
    """A launcher whose program is alive or dead; what the launcher itself does is in ``turn``."""

    launcher: Launcher | LauncherUnavailable = RUNS
    programs: int = 1
    killed: list[int] = field(default_factory=list)
    is_free: bool = False

    def turn(self, event: str) -> None:
        """Something happens that no step has ordered."""
        match event, self.launcher:
            case "dies", Launcher(State.STOPPING):
                self.programs, self.launcher = 0, replace(self.launcher, state=State.HELD)
            case "dies", Launcher(State.RUNNING):
                self.programs, self.launcher = 0, replace(self.launcher, state=State.RESTARTING)
            case "hold-ends", Launcher(State.HELD):
                self._start()
            case "restarts", Launcher(State.RESTARTING):
                self._start()
            case "frees", _:
                self.is_free = True

    def take(self, step: steps.Step) -> None:
        """Do what the launcher does when it gets this order."""
        launcher = self.launcher
        assert isinstance(launcher, Launcher)
        if step.kind is steps.StepKind.STOP:
            assert launcher.program == INTENT.program
            self.killed.append(launcher.program)
            self.launcher = replace(launcher, state=State.STOPPING, order=INTENT.id)
        elif step.kind is steps.StepKind.START:
            assert launcher.state is State.HELD
            self._start()

    def _start(self) -> None:
        assert isinstance(self.launcher, Launcher)
        self.programs += 1
        assert self.programs == 1, "two programs"
        self.launcher = replace(self.launcher, state=State.RUNNING, program=self.launcher.program + 1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["step", "dies", "hold-ends", "restarts", "frees", "agent-dies"]), max_size=12),
    st.booleans(),
)
def test_any_order_of_events_ends_with_one_program_and_at_most_one_kill(events: list[str], undo: bool) -> None:
    """An agent that dies has lost its answer; the next one reads the launcher's state again, to finish or to undo."""
    simulation, resolution = Simulation(), Resolution.FINISH
    for event in [*events, *["step", "dies", "frees", "restarts"] * 4]:
        if event == "agent-dies" and undo:
            resolution = Resolution.UNDO
        elif event == "step":
            step = process.next_step(
                INTENT, Program(simulation.launcher, is_free=simulation.is_free), resolution=resolution
            )
            if step.kind is not steps.StepKind.DONE:
                simulation.take(step)
        else:
            simulation.turn(event)
    assert simulation.killed in ([], [INTENT.program])
    simulation.turn("restarts")
    assert simulation.programs == 1


def test_a_valid_answer_is_read() -> None:
    found = process.answer(json.dumps(VALID).encode())
    assert found == Launcher(State.RUNNING, 4, "r1", age=1.5, restarts=3, spare=77, ready=True)


def test_children_from_before_the_launcher_are_read() -> None:
    found = process.answer(json.dumps(VALID | {"others": [3, 4]}).encode())
    assert found.others == (3, 4)


@pytest.mark.parametrize(
    ("change", "memory", "reason"),
    [
        ({}, 0, NoSpare.NOT_DUE),
        ({"spare_memory": 2**53}, 2**53, NoSpare.NOT_DUE),
        ({"spare_memory": 2**53 + 1}, 0, NoSpare.NOT_DUE),
        ({"spare_memory": -1}, 0, NoSpare.NOT_DUE),
        ({"spare_memory": True}, 0, NoSpare.NOT_DUE),
        ({"spare_memory": [1]}, 0, NoSpare.NOT_DUE),
        ({"no_spare": "it uses /dev/nvidia0", "spare_reason": "DeviceOpened"}, 0, NoSpare.DEVICE_OPENED),
        ({"no_spare": "of an older launcher"}, 0, NoSpare.REASON_UNKNOWN),
        ({"no_spare": "of a newer one", "spare_reason": "Melted"}, 0, NoSpare.REASON_UNKNOWN),
        ({"spare_reason": "NotDue"}, 0, NoSpare.REASON_UNKNOWN),
        ({"spare_reason": {}, "no_spare": "x"}, 0, NoSpare.REASON_UNKNOWN),
    ],
)
def test_what_only_people_read_of_a_spare_makes_no_answer_invalid(
    change: dict[str, object], memory: int, reason: NoSpare
) -> None:
    found = process.answer(json.dumps(VALID | change).encode())
    assert (found.spare_memory, found.spare_reason) == (memory, reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted({*VALID, "others", "spare_memory", "spare_reason"} - {"kubemend-run"})), JSON
    )
)
def test_any_answer_is_an_error_or_gives_a_bounded_condition(change: dict[str, object]) -> None:
    try:
        found = process.answer(json.dumps(VALID | change).encode())
    except ValueError:
        return
    assert 0 <= found.spare_memory <= 2**53
    condition = spares.condition({"trainer": found})
    assert condition.reason in spares.REASONS
    assert condition.message.isprintable()
    assert len(condition.message) <= spares.LONGEST_REASON + len("trainer: ")


def test_the_launcher_has_the_agents_reasons() -> None:
    launchers = {
        kubemend_run.DEVICE_OPENED,
        kubemend_run.TOO_MUCH_MEMORY,
        kubemend_run.TOO_SLOW,
        kubemend_run.KILLED,
        kubemend_run.ENDED,
        kubemend_run.NOT_IMPORTABLE,
        kubemend_run.MODULE_CHANGED,
        kubemend_run.DISABLED,
        kubemend_run.NOT_PYTHON,
        kubemend_run.UNSUPPORTED,
    }
    assert launchers == {each.value for each in NoSpare} - {"NotDue", "ReasonUnknown"}


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        (RUNS, process.Spare.NONE),
        (replace(RUNS, no_spare="it uses /dev/nvidia0"), process.Spare.NONE),
        (replace(RUNS, spare=77), process.Spare.IMPORTING),
        (replace(RUNS, spare=77, ready=True), process.Spare.READY),
        (replace(RUNS, ready=True), process.Spare.NONE),
    ],
)
def test_the_state_of_the_spare(launcher: Launcher, expected: process.Spare) -> None:
    assert launcher.spare_state is expected


CHANGES: tuple[dict[str, object], ...] = (
    {"kubemend-run": 2},
    {"others": "77"},
    {"others": [True]},
    {"others": [-1]},
    {"others": [1] * 33},
    {"state": "dead"},
    {"state": []},
    {"program": -1},
    {"program": True},
    {"program": 2**53 + 1},
    {"program": 1.0},
    {"age": -1},
    {"age": float("inf")},
    {"age": float("nan")},
    {"age": 10**400},
    {"age": "1"},
    {"order": None},
    {"error": "two\nlines"},
    {"no_spare": None},
    {"code": -1},
    {"code": 256},
)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b"\xff",
        b"[]",
        b"[" * 4000,
        b" " * 4097,
        *(json.dumps(VALID | change).encode() for change in CHANGES),
    ],
)
def test_an_answer_that_is_not_valid_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is the JSON library's in some cases
        process.answer(text)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("Xid31", "Xid31"), ("", "Unknown"), ("a b\n\0é", "a-b---"), ("x" * 200, "x" * 128)],
)
def test_launchers_accept_every_order(reason: str, expected: str) -> None:
    request = kubemend_run.request_of(process.stop_request(replace(INTENT, reason=reason, grace_seconds=3600.0)))
    assert request is not None
    assert request.order == kubemend_run.Order("r1", 3, 3600.0, process.HOLD, expected)
    assert kubemend_run.request_of(process.release_request(INTENT)) == kubemend_run.Request(release="r1")
    assert kubemend_run.request_of(process.STATUS_REQUEST) == kubemend_run.Request()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("python", "/launcher/kubemend_run.py", "--", "python", "train.py"), True),
        (("sh", "-c", "exec kubemend-run -- python train.py"), True),
        (("kubemend", "run"), False),
        ((), False),
        (None, False),
    ],
)
def test_a_launcher_is_recognised_by_the_command(arguments: tuple[str, ...] | None, expected: bool) -> None:
    assert process.runs_launcher(arguments) is expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (None, process.CACHE_FOLDER),
        (("PATH=/bin",), process.CACHE_FOLDER),
        (("KUBEMEND_CACHE=/cache",), "/cache"),
        (("KUBEMEND_CACHE=",), process.CACHE_FOLDER),
        (("KUBEMEND_CACHE=relative",), process.CACHE_FOLDER),
        (("KUBEMEND_CACHE=/" + "a" * 1000,), process.CACHE_FOLDER),
        (("KUBEMEND_CACHE=/a\0b",), process.CACHE_FOLDER),
    ],
)
def test_the_folder_of_the_socket(environment: tuple[str, ...] | None, expected: str) -> None:
    assert process.folder(environment) == expected


@pytest.mark.parametrize(("since", "expected"), [(0.0, True), (59.9, True), (60.0, False), (-1.0, False)], ids=str)
def test_a_fault_soon_after_a_restart_is_one_again(since: float, expected: bool) -> None:
    past = (counts.Begun(builders.POD.uid, frozenset({"trainer"}), at=1000.0, fault_at=999.0),)
    assert process.fails_again(past, died_at=1000.0 + since) is expected
