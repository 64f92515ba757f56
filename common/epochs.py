"""Bound the epoch of a leader. Leaders count from 1, so no epoch exceeds the seconds since 1970.

Agents accept no epoch below the highest that they have accepted. Without a bound, one write with a briefly stolen
controller token would lock agents out indefinitely. Below the Unix time, the true leader can always take a higher
epoch, a second later at most.
"""

from typing import Final

_NO_CLOCK_IS_EARLIER: Final = 1_767_225_600
"""2026-01-01. Nodes whose clock starts in 1970 still accept their leader."""

CLOCK_SKEW: Final = 60
"""Seconds by which the clocks of nodes may differ: without this, agents would reject a leader whose clock is ahead."""


def highest(now: float, *, skew: int = CLOCK_SKEW) -> int:
    """Return the highest epoch that is credible at ``now`` (Unix seconds). Agents allow twice the skew."""
    return int(max(now, _NO_CLOCK_IS_EARLIER)) + skew
