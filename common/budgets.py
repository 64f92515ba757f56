"""How often something may be restarted: a number within a window, and waits that grow while nothing lasts. Pure.

The agent counts restarts of containers with it, the controller rounds of gangs. A time that lies in the future was
noted by a clock that has been set back since: it says nothing (``noted_by``).
"""

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

CLOCK_SLACK = 60.0
"""Seconds by which a noted time may lie in the future and still count: clocks are nudged all the time."""


class Noted(Protocol):
    """Something that counts. ``at`` is when it was begun, ``fault_at`` when that happened which it was begun for."""

    @property
    def at(self) -> float: ...
    @property
    def fault_at(self) -> float: ...


_Noted = TypeVar("_Noted", bound=Noted)


@dataclass(frozen=True, slots=True)
class Closed:
    """A budget that allows nothing until a Unix time (infinite: never), and for people why."""

    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Window:
    """At most ``limit`` in any ``seconds``. ``what`` is counted, for people."""

    limit: int
    seconds: float
    what: str = "restarts"

    def closed(self, past: Sequence[Noted], *, now: float) -> Closed | None:
        """Return until when the next one is not allowed, None when it is now. ``past``: oldest first."""
        if self.limit <= 0:
            return Closed(math.inf, "it allows none")
        recent = self._recent(past, now=now)
        if len(recent) < self.limit:
            return None
        return Closed(recent[-self.limit].at + self.seconds, f"{len(recent)} {self.what} within {span(self.seconds)}")

    def left(self, past: Sequence[Noted], *, now: float) -> int:
        """Return how many it allows now."""
        return max(0, self.limit - len(self._recent(past, now=now)))

    def _recent(self, past: Sequence[Noted], *, now: float) -> Sequence[Noted]:
        return [each for each in past if each.at + self.seconds > now]


@dataclass(frozen=True, slots=True)
class Backoff:
    """After ``free`` young deaths in a row come waits of ``first_wait`` x 2^n, at most ``longest_wait`` seconds.

    What lived ``young`` seconds or longer, from its start to the next fault, starts the backoff over.
    """

    free: int = 3
    young: float = 60.0
    first_wait: float = 10.0
    longest_wait: float = 300.0

    def streak(self, past: Sequence[_Noted], *, died_at: float) -> Sequence[_Noted]:
        """Return the newest of ``past`` that died young, one after the other, oldest first.

        ``died_at`` (Unix seconds) is when the fault came that the next one is for.
        """
        found: list[_Noted] = []
        died = died_at
        for each in reversed(past):
            if died - each.at >= self.young:
                break
            found.append(each)
            died = each.fault_at
        return found[::-1]

    def closed(self, past: Sequence[Noted], *, now: float, died_at: float) -> Closed | None:
        """Return until when the next one is not allowed, None when it is now. See ``streak``."""
        streak = len(self.streak(past, died_at=died_at))
        if streak < self.free or not past:
            return None
        # Two to the power of a thousand is no float any more: a waiting time must not become an error.
        wait = min(self.first_wait * 2.0 ** min(streak - self.free, 64), self.longest_wait)
        until = past[-1].at + wait
        return Closed(until, f"{streak} in a row lived less than {span(self.young)}") if until > now else None


def later(one: Closed | None, other: Closed | None) -> Closed | None:
    """Return the one that opens later, None when neither is closed."""
    return max((each for each in (one, other) if each is not None), key=lambda each: each.until, default=None)


def noted_by(noted: Iterable[_Noted], *, now: float) -> tuple[_Noted, ...]:
    """Return these in their order, without those that were noted by a clock that has been set back since."""
    return tuple(sorted((each for each in noted if each.at <= now + CLOCK_SLACK), key=lambda each: each.at))


def clock(moment: float) -> str:
    """Return a Unix time as Kubernetes writes times, rounded up to the second."""
    return dt.datetime.fromtimestamp(math.ceil(moment), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(seconds: float) -> str:
    """Return a time span for people."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
