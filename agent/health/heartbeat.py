"""Is a container still beating? Pure: a state and one look at its heartbeat file in, the next state out.

No clock is compared with a file's time: the wall clock jumps, and a jump must not kill anybody. A beat is a change of
the file between two looks, and silence is what the monotonic clock counts while the file stays the same. Whatever
keeps a container from beating, or us from seeing it, stops the count, and it begins anew afterwards.
"""

import enum
from dataclasses import dataclass, replace

LOOKS_PER_TIMEOUT = 4
LONGEST_PERIOD = 15.0
"""Seconds: a long timeout is looked after more often than it needs, so that its metric moves."""

_SOONEST = 0.01  # seconds to the next look: rounding must not make it come at once, again and again
_SLEPT = 1.0  # seconds; less is a difference between two readings of the clocks


class Pulse(enum.Enum):
    """``UNKNOWN`` is "could not tell", never a kind of hung."""

    NOT_STARTED = "NotStarted"
    BEATING = "Beating"
    HUNG = "Hung"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Mark:
    """What changes whenever a file is touched or replaced. The times are the file's own (nanoseconds): only whether
    they differ means anything."""

    device: int
    inode: int
    modified: int
    changed: int


class Blank(enum.Enum):
    """What a look shows instead of a mark. ``PAUSED``: the container is frozen or stopped, and cannot beat."""

    ABSENT = "absent"
    PAUSED = "paused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Look:
    """One look: when it began and ended (CLOCK_MONOTONIC), and for how long the node has been suspended since its boot
    (seconds all)."""

    began: float
    ended: float
    slept: float
    sight: Mark | Blank


@dataclass(frozen=True, slots=True)
class Heart:
    """What is known of one container's heartbeat.

    ``started``: it has touched the file since it began. ``last`` is what the file showed last, None before anything
    was seen of it. ``silent`` counts the seconds without a touch up to ``counted_to``, which is None while the count
    does not run.
    """

    pulse: Pulse = Pulse.UNKNOWN
    started: bool = False
    last: Mark | Blank | None = None
    silent: float = 0.0
    counted_to: Look | None = None


REMEMBERED = Heart(started=True)
"""Where to begin with a container of which an earlier agent knew that it beats."""


def period(timeout: float) -> float:
    """Return how many seconds lie between two looks. A hang is found within ``timeout`` and one period more."""
    return min(timeout / LOOKS_PER_TIMEOUT, LONGEST_PERIOD)


def until_next_look(heart: Heart, *, timeout: float) -> float:
    """Return in how many seconds to look again: at the earliest moment at which it could count as hung, or sooner."""
    left = timeout - heart.silent if heart.pulse is Pulse.BEATING else timeout
    return min(period(timeout), max(left, _SOONEST))


def after(heart: Heart, look: Look, *, timeout: float) -> Heart:
    """Return what is known after one more look.

    What the first look finds proves nothing: the file may be older than the container. One that is taken away again
    withdraws the heartbeat until it is touched once more.
    """
    if look.sight is Blank.ABSENT:
        return Heart(pulse=Pulse.NOT_STARTED, last=look.sight)
    if isinstance(look.sight, Blank):
        return replace(heart, pulse=Pulse.UNKNOWN, silent=0.0, counted_to=None)
    known = replace(heart, last=look.sight, silent=0.0, counted_to=look)
    if heart.last not in (None, look.sight):
        return replace(known, pulse=Pulse.BEATING, started=True)
    if not heart.started:
        return replace(known, pulse=Pulse.NOT_STARTED)
    silent = _silence(heart, look, timeout=timeout)
    return replace(known, pulse=Pulse.HUNG if silent >= timeout else Pulse.BEATING, silent=silent)


def _silence(heart: Heart, look: Look, *, timeout: float) -> float:
    """Return how long the file has stood still, now that one more look has found it unchanged.

    A look that comes late counts for two periods at most: when we could not run, the container may not have either.
    A node that has slept begins the count anew.
    """
    since = heart.counted_to
    if since is None or look.slept - since.slept > _SLEPT:
        return 0.0
    return heart.silent + min(look.began - since.ended, 2 * period(timeout))
