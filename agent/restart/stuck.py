"""Decide whether a killed container still ends, or is stuck in the kernel. Pure: thread states in, a result out.

The duration proves nothing: a driver frees pinned memory at some 240 ms per GiB (measured on an H100), and a busy node
is slow. A thread that waits inside the kernel (state D), at the same place, while no thread of its process runs or has
used any CPU time for a while, is stuck.
"""

from dataclasses import dataclass, replace
from typing import Final

from kubemend.agent.model.hangs import Thread

WINDOW: Final = 30.0
"""Seconds without any change. One process that ends can keep others waiting for the driver's locks."""

GAP: Final = 5.0
"""Seconds for which the time between two readings counts at most. What keeps the agent from reading for longer, such as
a suspend of the machine, may keep the process from ending."""

_UNINTERRUPTIBLE: Final = "D"
_RUNS: Final = "R"


@dataclass(frozen=True, slots=True)
class UnchangedThreads:
    """The state of a killed container's threads, and the seconds without a change up to the reading at ``read_at``."""

    threads: tuple[Thread, ...]
    seconds: float
    read_at: float


def follow(before: UnchangedThreads | None, threads: tuple[Thread, ...], *, now: float) -> UnchangedThreads:
    """Record one more reading; ``now`` is of a monotonic clock, in seconds."""
    if before is not None and before.threads == threads:
        return replace(before, seconds=before.seconds + watched(before.read_at, now), read_at=now)
    return UnchangedThreads(threads, 0.0, now)


def watched(since: float, now: float) -> float:
    """Return the seconds between two readings, as far as they count."""
    return min(now - since, GAP)


def is_stuck(still: UnchangedThreads | None, *, window: float = WINDOW) -> bool:
    """Return whether it no longer ends. A running container, or one that was not read for that long, is not stuck."""
    if still is None or still.seconds < window:
        return False
    states = {thread.state for thread in still.threads}
    return _UNINTERRUPTIBLE in states and _RUNS not in states
