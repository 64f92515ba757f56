"""How often one container may be restarted in place, and when it may be again. Pure.

The first restarts are immediate: that is the point of the project. Only a container that dies young again and
again is slowed down, and only one that spent its whole budget is left to its owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """``limit`` restarts per ``window`` seconds; after ``free`` young deaths in a row waits of ``first_wait`` x 2^n.

    A successor that lived ``young`` seconds or longer starts the backoff over.
    """

    limit: int = 10
    window: float = 3600.0
    free: int = 3
    young: float = 60.0
    first_wait: float = 10.0
    longest_wait: float = 300.0

    def reopens_at(self, past: Sequence[float], *, now: float) -> float | None:
        """Return the Unix time at which the next restart is allowed, or None when it is allowed now.

        ``past`` are the Unix times of earlier restarts of the same container, oldest first.
        """
        candidates = [time for time in (self._window_opens(past, now=now), self._backoff_ends(past, now=now)) if time]
        latest = max(candidates, default=now)
        return latest if latest > now else None

    def left(self, past: Sequence[float], *, now: float) -> int:
        """Return how many restarts the current window still allows."""
        return max(0, self.limit - sum(time > now - self.window for time in past))

    def _window_opens(self, past: Sequence[float], *, now: float) -> float | None:
        recent = [time for time in past if time > now - self.window]
        if len(recent) < self.limit:
            return None
        return recent[-self.limit] + self.window if self.limit > 0 else float("inf")

    def _backoff_ends(self, past: Sequence[float], *, now: float) -> float | None:
        streak = 0
        later = now
        for time in reversed(past):
            if later - time >= self.young:
                break
            streak += 1
            later = time
        if streak < self.free or not past:
            return None
        wait = min(self.first_wait * 2.0 ** (streak - self.free), self.longest_wait)
        return past[-1] + wait
