"""Decide whether a container's heartbeat is alive. Pure: a state and one check of the file in, the next state out.

No clock is compared with a file's time: the wall clock jumps, and a jump must not cause a restart. A beat is a change
of the file between two checks, and silence is the monotonic time in which the file stays the same. Anything that keeps
a container from beating, or the agent from observing it, stops the count, which then restarts from zero.
"""

import enum
from dataclasses import dataclass, replace

POLLS_PER_TIMEOUT = 4
LONGEST_PERIOD = 15.0
"""Seconds: with a long timeout the file is checked more often than needed, so that its metric moves."""

_SOONEST = 0.01  # seconds to the next check: rounding must not cause a busy loop
_SLEPT = 1.0  # seconds; less is a difference between two readings of the clocks


class HeartbeatStatus(enum.Enum):
    """``UNKNOWN`` never counts as hung."""

    NOT_STARTED = "NotStarted"
    BEATING = "Beating"
    HUNG = "Hung"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Mark:
    """The attributes that change whenever a file is touched or replaced.

    The times are the file's own (nanoseconds): they are only compared for equality.
    """

    device: int
    inode: int
    modified: int
    changed: int


class Blank(enum.Enum):
    """The result of a check without a mark. ``PAUSED``: the container is frozen or stopped, and cannot beat."""

    ABSENT = "absent"
    PAUSED = "paused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Poll:
    """One check: its begin and end (CLOCK_MONOTONIC), and the node's total suspend time since boot (all in seconds)."""

    began: float
    ended: float
    slept: float
    result: Mark | Blank


@dataclass(frozen=True, slots=True)
class HeartbeatState:
    """The state of one container's heartbeat.

    ``started``: it has touched the file since it began. ``last`` is the last result, None before the first check.
    ``silent`` counts the seconds without a touch up to ``counted_to``, which is None while the count does not run.
    """

    status: HeartbeatStatus = HeartbeatStatus.UNKNOWN
    started: bool = False
    last: Mark | Blank | None = None
    silent: float = 0.0
    counted_to: Poll | None = None


REMEMBERED = HeartbeatState(started=True)
"""The initial state for a container that had a heartbeat under a previous agent."""


def period(timeout: float) -> float:
    """Return the seconds between two checks. A hang is detected within ``timeout`` plus one period."""
    return min(timeout / POLLS_PER_TIMEOUT, LONGEST_PERIOD)


def until_next_poll(state: HeartbeatState, *, timeout: float) -> float:
    """Return the seconds until the next check: the earliest moment at which it could count as hung, or sooner."""
    left = timeout - state.silent if state.status is HeartbeatStatus.BEATING else timeout
    return min(period(timeout), max(left, _SOONEST))


def after(state: HeartbeatState, poll: Poll, *, timeout: float) -> HeartbeatState:
    """Return the state after one more check.

    The first result proves nothing, because the file may be older than the container. A removed file withdraws the
    heartbeat until the file is touched again.
    """
    if poll.result is Blank.ABSENT:
        return HeartbeatState(status=HeartbeatStatus.NOT_STARTED, last=poll.result)
    if isinstance(poll.result, Blank):
        return replace(state, status=HeartbeatStatus.UNKNOWN, silent=0.0, counted_to=None)
    known = replace(state, last=poll.result, silent=0.0, counted_to=poll)
    if state.last not in (None, poll.result):
        return replace(known, status=HeartbeatStatus.BEATING, started=True)
    if not state.started:
        return replace(known, status=HeartbeatStatus.NOT_STARTED)
    silent = _silence(state, poll, timeout=timeout)
    return replace(known, status=HeartbeatStatus.HUNG if silent >= timeout else HeartbeatStatus.BEATING, silent=silent)


def _silence(state: HeartbeatState, poll: Poll, *, timeout: float) -> float:
    """Return for how long the file has been unchanged, after one more check has found it unchanged.

    A late check counts for at most two periods: if the agent could not run, the container may not have either. A
    suspend of the node restarts the count.
    """
    since = state.counted_to
    if since is None or poll.slept - since.slept > _SLEPT:
        return 0.0
    return state.silent + min(poll.began - since.ended, 2 * period(timeout))
