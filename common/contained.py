"""Contain an unexpected error in the work on one pod, container, device or gang: count and log it, and continue.

A task of the process that ends takes the process with it (``common.aio``). That is right for faults that concern
everything. It would be wrong for one object of many: a user able to trigger the error, for example by a name or an
annotation, could end the process as often as it starts. So code that handles many objects runs the work on each of them
``within`` a block of its own.
"""

import collections
import enum
import threading
import time
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

import structlog

from kubemend.common import aio

log = structlog.get_logger(__name__)

_CONCERNS_ALL: Final = (MemoryError, aio.EternalTaskEndedError)
_FRAMES: Final = 30
_LONGEST_TRACEBACK: Final = 8192
_LONGEST_NAME: Final = 256
_LOGGED_PER_MINUTE: Final = 60
"""Log at most this many failures each minute; further ones are only counted.

A user able to trigger one failure can trigger many.
"""


class Part(enum.Enum):
    """Name the kind of work that failed: label values of ``kubemend_contained_failures_total``."""

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
"""One counter for the process, like the log; ``common.process_metrics`` exports it."""
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


class Work:
    """Represent the work of one block. ``error`` is the error that ended it.

    Not a generator with ``contextlib``, which takes twice as long: thousands of messages are handled in each round, in
    a block each.
    """

    __slots__ = ("_about", "_part", "_passing", "error")

    def __init__(self, part: Part, about: object, passing: tuple[type[Exception], ...]) -> None:
        self.error: Exception | None = None
        self._part = part
        self._about = about
        self._passing = passing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing) or _concerns_all(error):
            return False
        self.error = error
        given_up(self._part)
        _log_failure(self._part, self._about, error)
        return True

    @property
    def failed(self) -> bool:
        """Return whether an error ended the work."""
        return self.error is not None


def within(part: Part, about: object, *, passing: tuple[type[Exception], ...] = ()) -> Work:
    """Contain errors of the block, which works on one object of many: ``about`` names the object.

    Not contained: BaseExceptions such as cancellation and interrupt, errors that concern the whole process (out of
    memory, an ended component), and errors of the types ``passing``, which the caller handles.
    """
    return Work(part, about, passing)


def given_up(part: Part) -> None:
    """Count work that was abandoned without an error to log."""
    with _counting:
        _failures[part] += 1


def describe(error: BaseException) -> str:
    """Describe in one line what failed, and where; the log has the rest."""
    return f"internal error ({type(error).__name__} in {_where(error)}); log event work.failed has the traceback"


def count(parts: Iterable[Part] = tuple(Part)) -> int:
    """Return how often work of these kinds was abandoned since the process started."""
    return sum(_failures[part] for part in parts)


def _concerns_all(error: Exception) -> bool:
    if isinstance(error, ExceptionGroup):
        return error.subgroup(_CONCERNS_ALL) is not None
    return isinstance(error, _CONCERNS_ALL)


class _Minute:
    """Allow a limited number in each minute."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._logged = 0

    def allows(self) -> bool:
        """Return whether one more may be logged now, and count it."""
        now = time.monotonic()
        if now - self._began >= 60.0:
            self._began, self._logged = now, 0
        self._logged += 1
        return self._logged <= _LOGGED_PER_MINUTE


_minute = _Minute()


def _log_failure(part: Part, about: object, error: Exception) -> None:
    if _minute.allows():
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-_FRAMES)
        log.error(
            "work.failed",
            part=part.value,
            about=str(about)[:_LONGEST_NAME],
            where=_where(error),
            exception="".join(lines)[-_LONGEST_TRACEBACK:],
        )


def _where(error: BaseException) -> str:
    """Return the place that raised the error: file, line and function."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    if not frames:
        return "an unknown place"
    last = frames[-1]
    return f"{'/'.join(last.filename.split('/')[-2:])}:{last.lineno} {last.name}"
