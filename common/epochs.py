"""How high an epoch can be. Leaders count from 1, so none has led more often than once a second since 1970.

Agents obey no lower epoch than they have obeyed. Without a bound, one write by somebody who has the controller's token
for a moment would bind them for ever; below the Unix time there is always a higher one for the true leader to take, a
second later at most.
"""

from typing import Final

_NO_CLOCK_IS_EARLIER: Final = 1_767_225_600
"""2026-01-01. A node whose clock begins in 1970 obeys its leader all the same."""

CLOCK_SKEW: Final = 60
"""Seconds by which the clocks of nodes may differ: without it a leader whose clock is ahead would not be heard."""


def highest(now: float, *, skew: int = CLOCK_SKEW) -> int:
    """Return the highest epoch that can be believed at ``now`` (Unix seconds). Whoever obeys grants twice the skew."""
    return int(max(now, _NO_CLOCK_IS_EARLIER)) + skew
