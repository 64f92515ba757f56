"""What fails about one pod, container, device or gang ends there: it is counted, told with its traceback, and the rest
goes on.

A part that runs for ever takes the process with it when it ends (``common.aio``). That is right for what concerns all.
It would be wrong for one thing of many: who can make it fail, by a name or an annotation say, could end the process as
often as it starts. So whatever goes through many things does the work on each of them ``within`` a block of its own.
"""

import collections
import contextlib
import enum
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from common import aio

log = structlog.get_logger(__name__)

_CONCERNS_ALL: Final = (MemoryError, aio.EternalTaskEndedError)
_FRAMES: Final = 30
_LONGEST_TRACEBACK: Final = 8192
_LONGEST_WORD: Final = 256
_TOLD_A_MINUTE: Final = 60
"""So many failures are told each minute; more are only counted. Who can have one happen can have it happen often."""


class Part(enum.Enum):
    """What kind of work was given up: label values of ``kubemend_contained_failures_total``."""

    CONDITION = "condition"
    CONTAINER = "container"
    DEVICE = "device"
    EVENT = "event"
    FAULT = "fault"
    FINDING = "finding"
    GANG = "gang"
    HANG = "hang"
    HEARTBEAT = "heartbeat"
    HUB = "hub"
    JOBSET = "jobset"
    LISTENER = "listener"
    MEMBER = "member"
    NODE = "node"
    OBJECT = "object"
    OWNER = "owner"
    PLACEMENT = "placement"
    RECORD = "record"
    RECREATION = "recreation"
    REPLAY = "replay"
    REQUEST = "request"
    RESTART = "restart"
    ROUND = "round"
    STRAGGLER = "straggler"
    STREAM = "stream"
    TAINT = "taint"
    VERIFICATION = "verification"


_failures: collections.Counter[Part] = collections.Counter()
"""Like the log, there is one for the process; ``common.process_metrics`` shows it."""
_counting: Final = threading.Lock()

OF_AGENT: Final = (
    Part.CONDITION,
    Part.CONTAINER,
    Part.DEVICE,
    Part.EVENT,
    Part.FAULT,
    Part.FINDING,
    Part.HANG,
    Part.HEARTBEAT,
    Part.HUB,
    Part.LISTENER,
    Part.MEMBER,
    Part.OBJECT,
    Part.OWNER,
    Part.RECORD,
    Part.REPLAY,
    Part.REQUEST,
    Part.RESTART,
    Part.ROUND,
    Part.TAINT,
    Part.VERIFICATION,
)
OF_CONTROLLER: Final = (
    Part.EVENT,
    Part.GANG,
    Part.JOBSET,
    Part.LISTENER,
    Part.MEMBER,
    Part.NODE,
    Part.OBJECT,
    Part.PLACEMENT,
    Part.RECREATION,
    Part.RESTART,
    Part.ROUND,
    Part.STRAGGLER,
    Part.STREAM,
)


@dataclass(slots=True)
class Work:
    """The work of one block. ``error`` is why it was given up."""

    error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether it was given up."""
        return self.error is not None


@contextlib.contextmanager
def within(part: Part, about: object, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[Work]:
    """Contain what the block raises, which is work on one thing of many: ``about`` names the thing.

    What is no mere error (a cancellation, an interrupt), what concerns the whole process (no memory, a part that has
    ended), and errors of the kinds ``passing``, which somebody else expects, pass.
    """
    work = Work()
    try:
        yield work
    except passing:
        raise
    except Exception as error:
        if _concerns_all(error):
            raise
        work.error = error
        given_up(part)
        _tell(part, about, error)


def given_up(part: Part) -> None:
    """Count work that was given up without an error to tell."""
    with _counting:
        _failures[part] += 1


def why(error: BaseException) -> str:
    """Return in one line for people what has failed, and where; the log has the rest."""
    return f"a defect of ours ({type(error).__name__} in {_where(error)}); work.failed in the log has the traceback"


def count(parts: Iterable[Part] = tuple(Part)) -> int:
    """Return how often work of these parts was given up since the process began."""
    return sum(_failures[part] for part in parts)


def _concerns_all(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.subgroup(_CONCERNS_ALL) is not None
    return isinstance(error, _CONCERNS_ALL)


class _Minute:
    """Allows so many in each minute."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._told = 0

    def allows(self) -> bool:
        """Whether one more may be told now; it counts then."""
        now = time.monotonic()
        if now - self._began >= 60.0:
            self._began, self._told = now, 0
        self._told += 1
        return self._told <= _TOLD_A_MINUTE


_minute = _Minute()


def _tell(part: Part, about: object, error: Exception) -> None:
    if _minute.allows():
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-_FRAMES)
        log.error(
            "work.failed",
            part=part.value,
            about=str(about)[:_LONGEST_WORD],
            where=_where(error),
            exception="".join(lines)[-_LONGEST_TRACEBACK:],
        )


def _where(error: BaseException) -> str:
    """Return the place that raised it: file, line and function."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    if not frames:
        return "an unknown place"
    last = frames[-1]
    return f"{'/'.join(last.filename.split('/')[-2:])}:{last.lineno} {last.name}"
