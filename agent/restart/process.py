"""Restart the program inside its container, by the launcher that is the container's main process. Pure.

The launcher (``launcher/kubemend_run.py``) kills the program and everything that it has started, holds the next one
until the agent has proven that the devices are free, and then starts it. The container stays, so kubelet sees nothing.

All that a launcher answers is untrusted: a program may have taken its place. A wrong answer can only harm its own
container: it is restarted by another strategy, or stays as it is.
"""

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubemend.agent.restart import intents
from kubemend.agent.restart.counts import Begun
from kubemend.agent.restart.steps import Resolution, Step, StepKind, StepReason
from kubemend.common import cache_volume

CACHE_VARIABLE = "KUBEMEND_CACHE"
CACHE_FOLDER = cache_volume.PATH
"""Where the launcher has its socket, unless the container's variable names another folder; both as in the launcher."""
AGAIN = 60.0
"""Seconds after a restart in which another fault calls for a new container."""
HOLD = 30.0
"""Seconds after the last order in which the launcher starts the program by itself: the agent may have died."""
FAILED_HOLD = 60.0
"""Seconds after the failure of a gang member's program in which its launcher waits for the agent's decision."""
FOLLOW_SECONDS = 20.0
"""For which the agent waits for a change of a launcher's state before it asks again."""
LONGEST_ANSWER = 4096
"""Bytes of one answer."""

_NAMES = ("kubemend_run", "kubemend-run")
_LONGEST_FOLDER = 1000
_LONGEST_REASON = 128  # as in the launcher
_MOST = 2**53
_MOST_CODE = 255
_MOST_OTHERS = 32  # as in the launcher


class State(enum.Enum):
    """The state of a launcher. ``HELD``: the program is dead, and the agent decides when it is started again.

    ``FAILED``: the program has failed by itself, and the launcher waits for the agent's decision. ``RESTARTING``: it
    restarts a program that has failed, by itself. ``ENDING``: the container has been asked to stop. That may be by a
    signal of any process in it, which the program survives: until the launcher forgets it, it obeys no order.
    """

    RUNNING = "running"
    STOPPING = "stopping"
    HELD = "held"
    FAILED = "failed"
    RESTARTING = "restarting"
    ENDING = "ending"


class Spare(enum.Enum):
    """The state of a launcher's spare interpreter. ``READY``: it has imported what the program has imported."""

    NONE = "none"
    IMPORTING = "importing"
    READY = "ready"


class NoSpare(enum.Enum):
    """Why there is no spare; values as in the launcher, except for the last two.

    ``NOT_DUE``: the launcher reports no reason, because none is due yet. ``REASON_UNKNOWN``: it reports one that is not
    among these.
    """

    DEVICE_OPENED = "DeviceOpened"
    TOO_MUCH_MEMORY = "TooMuchMemory"
    TOO_SLOW = "TooSlow"
    KILLED = "Killed"
    ENDED = "Ended"
    NOT_IMPORTABLE = "NotImportable"
    MODULE_CHANGED = "ModuleChanged"
    DISABLED = "Disabled"
    NOT_PYTHON = "NotPython"
    UNSUPPORTED = "Unsupported"
    NOT_DUE = "NotDue"
    REASON_UNKNOWN = "ReasonUnknown"


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher's answer.

    - ``program``: the number of the program that it has started last, from 1
    - ``order``: the restart that it has been ordered last; empty: none
    - ``age``: seconds since the program was started
    - ``restarts``: the program's KUBEMEND_RESTART_COUNT
    - ``spare``: the start of the spare interpreter in clock ticks since boot; 0: there is none
    - ``others``: the starts of children that were there before the launcher, which no restart kills
    - ``error``: why an order was not carried out
    - ``spare_memory``: the spare's resident bytes at its last check; 0: unknown, as from older launchers
    - ``spare_reason``, ``no_spare``: why there is no spare, for programs and for people; the text is empty if none is
      due yet
    - ``code``: the exit code of the program that has ended last, while none runs
    - ``answered``: when the answer arrived (CLOCK_MONOTONIC, seconds), until its delay is added to ``age``; then None
    """

    state: State
    program: int
    order: str = ""
    age: float = 0.0
    restarts: int = 0
    spare: int = 0
    ready: bool = False
    error: str = ""
    no_spare: str = ""
    code: int = 0
    spare_memory: int = 0
    spare_reason: NoSpare = NoSpare.NOT_DUE
    others: tuple[int, ...] = ()
    answered: float | None = field(default=None, compare=False)

    @property
    def spare_state(self) -> Spare:
        """Return the state of the spare."""
        if not self.spare:
            return Spare.NONE
        return Spare.READY if self.ready else Spare.IMPORTING


@dataclass(frozen=True, slots=True)
class LauncherUnavailable:
    """Why a container's launcher cannot be used."""

    reason: str


@dataclass(frozen=True, slots=True)
class Program:
    """The known facts about a program during its restart.

    ``remains`` are processes of the program that live although the launcher reports that it is dead.
    ``is_free``: no old process uses the devices. ``held_by_round``: the program must not start yet.
    """

    launcher: Launcher | LauncherUnavailable
    remains: tuple[int, ...] = ()
    is_free: bool = False
    held_by_round: bool = False


def runs_launcher(arguments: Iterable[str] | None) -> bool:
    """Return whether a container's command line names the launcher; its image may run it by a shell script's name."""
    return any(name in each for each in arguments or () for name in _NAMES)


def folder(environment: Iterable[str] | None) -> str:
    """Return the folder of the launcher's socket inside the container, by its environment (``K=V``)."""
    for each in environment or ():
        key, _, value = each.partition("=")
        if key == CACHE_VARIABLE and value.startswith("/") and len(value) <= _LONGEST_FOLDER and "\0" not in value:
            return value
    return CACHE_FOLDER


def answer(line: bytes) -> Launcher:
    """Return a launcher's answer. Raises ValueError if it is not valid."""
    try:
        raw = json.loads(line.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(raw, dict) or raw.get("kubemend-run") != 1:
        raise ValueError("it is not an answer of kubemend_run.py, or of another version")
    return Launcher(
        state=State(raw.get("state")),
        program=_number(raw, "program"),
        order=_text(raw, "order"),
        age=_seconds(raw, "age"),
        restarts=_number(raw, "restarts"),
        spare=_number(raw, "spare"),
        ready=raw.get("ready") is True,
        error=_text(raw, "error"),
        no_spare=_text(raw, "no_spare"),
        code=_number(raw, "code", most=_MOST_CODE),
        spare_memory=_memory(raw.get("spare_memory")),
        spare_reason=_no_spare(raw.get("spare_reason"), reason=raw.get("no_spare")),
        others=_starts(raw.get("others", [])),
    )


def stop_request(intent: intents.ProcessIntent) -> bytes:
    """Return the order to stop the program. Repeating it renews the hold."""
    return _request(
        do="stop",
        order=intent.id,
        program=intent.program,
        grace=intent.grace_seconds,
        hold=HOLD,
        reason=_word(intent.reason),
    )


def release_request(intent: intents.ProcessIntent) -> bytes:
    """Return the order to start the program again."""
    return _request(do="release", order=intent.id)


def discard_request(intent: intents.ProcessIntent) -> bytes:
    """Return the order to end the container instead of starting the program again."""
    return _request(do="discard", order=intent.id)


def follow_request(*, hold: float) -> bytes:
    """Return the request for all changes of the state. ``hold``: seconds for which a failure waits for a decision."""
    return _request(do="follow", hold=hold, lease=3.0 * FOLLOW_SECONDS)


def verdict_request(program: int, *, ends: bool) -> bytes:
    """Return the decision about a failed program: the launcher restarts it by its own rule, or ends the container."""
    return _request(do="end" if ends else "leave", program=program)


def is_news(found: Launcher, known: Launcher | None) -> bool:
    """Return whether an answer shows another state than an earlier one, of the program or of the spare."""
    return known is None or _shown(found) != _shown(known)


def _shown(launcher: Launcher) -> tuple[object, ...]:
    return launcher.state, launcher.program, launcher.spare_state, launcher.spare_reason, launcher.no_spare


STATUS_REQUEST = b'{"do": "status"}\n'
STOPS: Final = "the launcher has been asked to stop, and obeys no order"


def fails_again(past: Iterable[Begun], *, died_at: float) -> bool:
    """Return whether a fault follows so soon after a restart of the container that a new process is not enough."""
    return any(0.0 <= died_at - each.at < AGAIN for each in past)


def next_step(intent: intents.ProcessIntent, seen: Program, *, resolution: Resolution = Resolution.FINISH) -> Step:
    """Return the one next step.

    Invariants (property-tested): STOP is returned only while the intent's own program runs and its launcher has not
    obeyed this order yet; START only while the launcher holds for this intent. A held program is started at the end,
    also to undo the restart, because the old one is dead.
    """
    launcher, container = seen.launcher, intent.container
    if isinstance(launcher, LauncherUnavailable):
        return Step(StepKind.DONE, StepReason.LAUNCHER_SILENT, container)
    if launcher.state is State.ENDING:
        undone = resolution is Resolution.UNDO
        return Step(StepKind.DONE, StepReason.UNDONE if undone else StepReason.LAUNCHER_STOPS, container)
    ours = launcher.order == intent.id
    if launcher.program != intent.program:
        return Step(StepKind.DONE, StepReason.RELAUNCHED if ours else StepReason.LAUNCHER_WON, container)
    if ours and launcher.state is State.STOPPING:
        return Step(StepKind.WAIT, StepReason.OLD_RUNS, container)
    if ours and launcher.state is State.HELD:
        return _held(intent, seen, resolution=resolution)
    if resolution is Resolution.UNDO:
        return Step(StepKind.DONE, StepReason.UNDONE, container)
    if launcher.state is State.RESTARTING:
        return Step(StepKind.WAIT, StepReason.LAUNCHER_RESTARTS, container)
    if ours:
        return Step(StepKind.DONE, StepReason.ORDER_REFUSED, container)
    return Step(StepKind.STOP, StepReason.OLD_RUNS, container)


def _held(intent: intents.ProcessIntent, seen: Program, *, resolution: Resolution) -> Step:
    if seen.remains:
        return Step(StepKind.DONE, StepReason.OLD_LEFT, intent.container)
    if resolution is Resolution.FINISH and not seen.is_free:
        return Step(StepKind.WAIT, StepReason.OLD_ON_DEVICE, intent.container)
    if resolution is Resolution.FINISH and seen.held_by_round:
        return Step(StepKind.DONE, StepReason.HELD_FOR_ROUND, intent.container)
    return Step(StepKind.START, StepReason.SUCCESSOR_READY, intent.container)


def _word(text: str) -> str:
    """Return a reason as launchers accept it: printable ASCII without spaces, at least one character."""
    return "".join(each if "!" <= each <= "~" else "-" for each in text[:_LONGEST_REASON]) or "Unknown"


def _request(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _number(raw: Mapping[str, object], name: str, *, most: int = _MOST) -> int:
    value = raw.get(name)
    if type(value) is not int or not 0 <= value <= most:  # bool is an int, too
        raise ValueError(f"{name} is not a number")
    return value


def _seconds(raw: Mapping[str, object], name: str) -> float:
    value = raw.get(name)
    if type(value) not in (int, float) or not isinstance(value, (int, float)) or not 0.0 <= value <= _MOST:
        raise ValueError(f"{name} is not a duration")
    return float(value)


def _starts(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_OTHERS:
        raise ValueError("others is not a short list")
    return tuple(_number({"others": each}, "others") for each in value)


def _memory(value: object) -> int:
    """Return a number of bytes; 0 if it is none: only people read it, so no order may fail because of it."""
    return value if type(value) is int and 0 <= value <= _MOST else 0


def _no_spare(value: object, *, reason: object) -> NoSpare:
    if not value and not reason:
        return NoSpare.NOT_DUE
    return _REPORTED.get(value, NoSpare.REASON_UNKNOWN) if isinstance(value, str) else NoSpare.REASON_UNKNOWN


_REPORTED: Final = {each.value: each for each in NoSpare if each not in (NoSpare.NOT_DUE, NoSpare.REASON_UNKNOWN)}


def _text(raw: Mapping[str, object], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name} is not text")
    return value
