"""Rules for faults that occur repeatedly. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from kubemend.agent.model.actions import ActionClass

BURST_SECONDS = 180.0
"""One fault prints many lines (an Xid 13 prints one for each processor that it hit): lines this close are one event.

NVSentinel uses the same three minutes.
"""


@dataclass(frozen=True, slots=True)
class Repeats:
    """A fault that occurred ``count`` times ``within`` seconds on one device calls for ``action`` as well.

    ``same`` names the evidence (``agent.health.state.evidence``) that must be equal for two occurrences to count
    together.
    """

    count: int
    within: float
    action: ActionClass
    same: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f" with the same {' and '.join(self.same)}" if self.same else ""
        return f"{self.count} within {span(self.within)}{place} also call for {self.action.value}"

    def reached(self, times: Iterable[float]) -> bool:
        """Return whether lines at these times (seconds, any order) ever reached the count within the time."""
        found = events(times)
        return any(last - first <= self.within for first, last in zip(found, found[self.count - 1 :], strict=False))


def events(times: Iterable[float]) -> list[float]:
    """Return the time of the first line of each event."""
    found: list[float] = []
    for time in sorted(times):
        if not found or time - found[-1] >= BURST_SECONDS:
            found.append(time)
    return found


def span(seconds: float) -> str:
    """Format a duration in the largest unit that divides it, up to hours: ``24 h``, not ``1 d``."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length and not seconds % length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
