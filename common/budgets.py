"""Limit restarts by a number within a window, and by growing waits after short lifetimes. Pure.

The agent applies these limits to restarts of containers, the controller to rounds of gangs. A recorded time in the
future comes from a clock that has since been set back and is ignored (``noted_by``).
"""

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

CLOCK_SLACK = 60.0
"""Seconds by which a recorded time may lie in the future and still count: clocks are adjusted all the time."""


class BudgetEntry(Protocol):
    """Define an entry that counts. ``at`` is its start, ``fault_at`` the time of the fault that caused it."""

    @property
    def at(self) -> float: ...
    @property
    def fault_at(self) -> float: ...


_Entry = TypeVar("_Entry", bound=BudgetEntry)


@dataclass(frozen=True, slots=True)
class Closed:
    """Describe an exhausted budget: nothing is allowed before the Unix time ``until`` (infinite: never).

    ``reason`` is for people.
    """

    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class Window:
    """Allow at most ``limit`` entries in any ``seconds``. ``what`` names the entries in messages."""

    limit: int
    seconds: float
    what: str = "restarts"

    def closed(self, past: Sequence[BudgetEntry], *, now: float) -> Closed | None:
        """Return the time before which the next entry is not allowed, or None. ``past``: oldest first."""
        if self.limit <= 0:
            return Closed(math.inf, "no restart is allowed")
        recent = self._recent(past, now=now)
        if len(recent) < self.limit:
            return None
        return Closed(recent[-self.limit].at + self.seconds, f"{len(recent)} {self.what} within {span(self.seconds)}")

    def left(self, past: Sequence[BudgetEntry], *, now: float) -> int:
        """Return how many more entries are allowed now."""
        return max(0, self.limit - len(self._recent(past, now=now)))

    def _recent(self, past: Sequence[BudgetEntry], *, now: float) -> Sequence[BudgetEntry]:
        return [each for each in past if each.at + self.seconds > now]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Impose waits of ``first_wait`` x 2^n seconds, at most ``longest_wait``, after ``free`` short lifetimes in a row.

    A lifetime of ``healthy_after`` seconds or more, from the start to the next fault, resets the backoff.
    """

    free: int = 3
    healthy_after: float = 60.0
    first_wait: float = 10.0
    longest_wait: float = 300.0

    def streak(self, past: Sequence[_Entry], *, died_at: float) -> Sequence[_Entry]:
        """Return the newest entries of ``past`` with short lifetimes, consecutive, oldest first.

        ``died_at`` (Unix seconds) is the time of the fault that the next entry is for.
        """
        found: list[_Entry] = []
        died = died_at
        for each in reversed(past):
            if died - each.at >= self.healthy_after:
                break
            found.append(each)
            died = each.fault_at
        return found[::-1]

    def closed(self, past: Sequence[BudgetEntry], *, now: float, died_at: float) -> Closed | None:
        """Return the time before which the next entry is not allowed, or None. See ``streak``."""
        streak = len(self.streak(past, died_at=died_at))
        if streak < self.free or not past:
            return None
        # Cap the exponent: two to the power of a thousand overflows a float, and a wait must not become an error.
        wait = min(self.first_wait * 2.0 ** min(streak - self.free, 64), self.longest_wait)
        until = past[-1].at + wait
        return Closed(until, f"{streak} in a row lived less than {span(self.healthy_after)}") if until > now else None


def later(one: Closed | None, other: Closed | None) -> Closed | None:
    """Return the budget that opens later, None when neither is closed."""
    return max((each for each in (one, other) if each is not None), key=lambda each: each.until, default=None)


def noted_by(noted: Iterable[_Entry], *, now: float) -> tuple[_Entry, ...]:
    """Return the entries sorted by time, without those that a clock recorded before it was set back."""
    return tuple(sorted((each for each in noted if each.at <= now + CLOCK_SLACK), key=lambda each: each.at))


def clock(moment: float) -> str:
    """Format a Unix time as Kubernetes does, rounded up to the second."""
    return dt.datetime.fromtimestamp(math.ceil(moment), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(seconds: float) -> str:
    """Format a time span for people."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
