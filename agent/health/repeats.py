"""What it says when a fault comes again and again. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.model.actions import ActionClass

BURST_SECONDS = 180.0
"""One fault prints many lines (an Xid 13 one for each processor that it hit): lines this close are one event.
NVSentinel takes the same three minutes."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """A fault that came ``count`` times ``within`` seconds on one device asks for ``action``, too.

    ``same`` names the evidence (``agent.health.evidence``) that must be equal for two of them to count together.
    """

    count: int
    within: float
    action: ActionClass
    same: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f" with the same {' and '.join(self.same)}" if self.same else ""
        return f"{self.count} within {span(self.within)}{place} also ask for {self.action.value}"

    def reached(self, times: Iterable[float]) -> bool:
        """Whether events at these times (seconds, any order) were ever so many within so long."""
        events: list[float] = []
        for time in sorted(times):
            if not events or time - events[-1] >= BURST_SECONDS:
                events.append(time)
        return any(last - first <= self.within for first, last in zip(events, events[self.count - 1 :], strict=False))


def span(seconds: float) -> str:
    """Write a duration for people, in the largest unit that divides it: ``24 h`` and not ``1 d``, as people say."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length and not seconds % length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
