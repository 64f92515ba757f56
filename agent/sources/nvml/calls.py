"""NVML calls: which are in flight since when, so that a worker detects a hanging driver, and their outcomes as values.

"Not supported" is not a fault, and an error is not an answer.
"""

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

WAITS: Final = 4
"""Waits in one deadline, at least: a process that was stopped in the middle of a wait sees only the end of it."""

_LATE: Final = 0.5
"""Seconds. A wait that returns later than this was not scheduled, so the threads of the calls may not have been."""

_RENEWALS: Final = 4
"""Of one call's deadline: on a machine that is always late, a driver that hangs is detected all the same."""


@dataclass(frozen=True, slots=True)
class Value(Generic[T]):
    """The call answered."""

    value: T


@dataclass(frozen=True, slots=True)
class Unsupported:
    """This device or driver does not have it (NOT_SUPPORTED, FUNCTION_NOT_FOUND). Never a fault."""


@dataclass(frozen=True, slots=True)
class Lost:
    """GPU_IS_LOST: the GPU has fallen off the bus or is otherwise inaccessible."""


@dataclass(frozen=True, slots=True)
class ResetRequired:
    """RESET_REQUIRED: every call on this GPU fails until it is reset."""


@dataclass(frozen=True, slots=True)
class ReadError:
    """Any other error: no evidence about the device. ``code`` is the nvmlReturn_t, ``text`` its name for people."""

    code: int
    text: str


Failure = Unsupported | Lost | ResetRequired | ReadError
Outcome = Value[T] | Failure


@dataclass(slots=True)
class _Call:
    name: str
    thread: int  # as the kernel numbers it
    allowed: float  # seconds
    due: float  # time.monotonic() at which it counts as stuck
    waited: float | None = None  # seconds for which its thread has waited for a CPU so far, as of the latest wait
    announced: bool = False
    renewals: int = 0


class Calls:
    """The calls in flight, at most one per thread.

    A call is stuck when it takes longer than ``deadline`` seconds. Its time begins again when the whole process was not
    scheduled in it: stopped, or starved. The time in which its thread was ready to run and had no CPU does not count: a
    cgroup's limit stops a process for most of each tenth of a second. ``announce`` is called with its name, or with
    None while nothing is stuck: a few times in each deadline and when a stuck call has returned after all. In the
    latter case ``came_back`` is called too.
    """

    def __init__(
        self,
        *,
        deadline: float,
        announce: Callable[[str | None], None],
        came_back: Callable[[], None],
        cpu_wait: Callable[[int], float | None] | None = None,
    ) -> None:
        """``cpu_wait`` returns for how many seconds a thread has waited for a CPU so far, None if that is unknown;
        default: ``cpu_waits``.
        """
        self._deadline = deadline
        self._announce = announce
        self._came_back = came_back
        self._cpu_wait = cpu_wait if cpu_wait is not None else cpu_waits
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._woke: float | None = None  # time.monotonic() at the end of the latest wait
        self._announce_at = 0.0  # time.monotonic()

    @contextlib.contextmanager
    def during(self, name: str, *, wait: float = 0.0) -> Iterator[None]:
        """Mark a call as in flight; ``wait`` is the time in seconds that its own arguments let it wait."""
        allowed = self._deadline + wait
        call = _Call(name, threading.get_native_id(), allowed=allowed, due=time.monotonic() + allowed)
        with self._lock:
            self._calls[threading.get_ident()] = call
        try:
            yield
        finally:
            with self._lock:
                del self._calls[threading.get_ident()]
                announced = call.announced
            if announced:
                self._announce(self._stuck(time.monotonic()))
                self._came_back()

    def readable(self, fd: int) -> bool:
        """Wait until ``fd`` is readable and return True; return False a few times in each deadline.

        Announces as often, also while ``fd`` is always readable. For the one thread that makes no calls.
        """
        began = self._woke if self._woke is not None else time.monotonic()
        wait = min(self._deadline / WAITS, self._until_due())
        ready, _, _ = select.select([fd], [], [], wait)
        now = self._woke = time.monotonic()
        if now - began - wait > _LATE:
            self._renew(now)
        self._credit_cpu_waits()
        if not ready or now >= self._announce_at or not self._until_due():
            self._announce_at = now + self._deadline / WAITS
            self._announce(self._stuck(now))
        return bool(ready)

    def _credit_cpu_waits(self) -> None:
        with self._lock:
            for call in self._calls.values():
                waited = self._cpu_wait(call.thread)
                if waited is not None and call.waited is not None and not call.announced:
                    call.due += max(0.0, waited - call.waited)
                call.waited = waited

    def _until_due(self) -> float:
        """Return the seconds until the next call in flight becomes stuck (infinity when none can)."""
        with self._lock:
            dues = [call.due for call in self._calls.values() if not call.announced]
        return max(0.0, min(dues) - time.monotonic()) if dues else float("inf")

    def _renew(self, now: float) -> None:
        with self._lock:
            for call in self._calls.values():
                if not call.announced and call.renewals < _RENEWALS:
                    call.renewals += 1
                    call.due = max(call.due, now + call.allowed)

    def _stuck(self, now: float) -> str | None:
        with self._lock:
            late = [call for call in self._calls.values() if call.due <= now]
            for call in late:
                call.announced = True
        return min(late, key=lambda call: call.due).name if late else None


def cpu_waits(thread: int) -> float | None:
    """Return for how many seconds a thread of this process was ready to run and had no CPU; None if that is unknown.

    The second number of ``schedstat`` (the kernel's Documentation/scheduler/sched-stats.rst), in nanoseconds. It grows
    while a cgroup's CPU limit is used up, and on a machine with more work than CPUs.
    """
    try:
        with open(f"/proc/self/task/{thread}/schedstat") as file:  # noqa: PTH123 - the worker imports little
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
