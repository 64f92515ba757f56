"""Does what was killed still end, or is it stuck in the kernel? Pure: what its threads do in, a verdict out.

How long it takes says nothing: a driver frees pinned memory at some 240 ms per GiB (measured on an H100), and a busy
node is slow. A thread that waits inside the kernel (state D), at the same place, while none of its process runs or has
used any CPU time for a while, is stuck.
"""

from dataclasses import dataclass
from typing import Final

from agent.model.hangs import Thread

WINDOW: Final = 30.0
"""Seconds for which nothing may have moved. One process that ends can keep others waiting for the driver's locks."""

_UNINTERRUPTIBLE: Final = "D"
_RUNS: Final = "R"


@dataclass(frozen=True, slots=True)
class Still:
    """What the threads of a container that was killed were last seen to do, and since when that is unchanged."""

    threads: tuple[Thread, ...]
    since: float


def follow(before: Still | None, threads: tuple[Thread, ...], *, now: float) -> Still:
    """Take one more look in; ``now`` is of a clock in seconds that does not go back."""
    if before is not None and before.threads == threads:
        return before
    return Still(threads, now)


def is_stuck(still: Still | None, *, now: float, window: float = WINDOW) -> bool:
    """Whether it does not end any more. What runs, or has not been looked at, is not stuck."""
    if still is None or now - still.since < window:
        return False
    states = {thread.state for thread in still.threads}
    return _UNINTERRUPTIBLE in states and _RUNS not in states
