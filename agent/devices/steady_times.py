"""Convert the wall-clock times at which faults were last seen to a clock that is never set."""

from collections.abc import Callable, Hashable


class SteadyTimes:
    """The times at which faults were last seen, by ``clock``. Each is converted once: the wall clock may be set later.

    ``now`` is Unix time; both are in seconds.
    """

    def __init__(self, *, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self._now = now
        self._clock = clock
        self._seen: dict[Hashable, tuple[float, float]] = {}  # Unix time, and by ``clock``

    def of(self, fault: Hashable, *, last_seen: float) -> float:
        """Return when a fault was last seen, by ``clock``; ``last_seen`` is Unix time."""
        known = self._seen.get(fault)
        if known is None or known[0] != last_seen:
            age = max(0.0, self._now() - last_seen)
            known = self._seen[fault] = last_seen, self._clock() - age
        return known[1]
