"""Compute the steps of one member of an ended round, from the round's record. Pure.

The record has two kinds of times: when members had stopped and ran, by the controller's clock, and how long the phases
of their restarts took, by their nodes' clocks. So the phases are placed so that they end when the member had stopped;
the time before them is the order's transfer. All times here are milliseconds since the decision.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

ORDER: Final = "order"
STOP: Final = "stop"
FREE: Final = "free"
HELD: Final = "held"
RELEASE: Final = "release"
RECREATE: Final = "recreate"

_PHASES: Final = (STOP, FREE, "reserve", "device", "proof", "clean", "create", "start", "confirm", "wait")
"""In the order in which an agent runs them (``agent.restart.steps``); others come after them, by name."""
_BEFORE: Final = (ORDER, RECREATE, *_PHASES)
_LATE: Final = (HELD, RELEASE)


@dataclass(frozen=True, slots=True)
class Segment:
    """The step of a member from ``begin`` to ``end``: ORDER, a phase, HELD, RELEASE or RECREATE."""

    step: str
    begin: float
    end: float


def all_dead(timings: Mapping[str, float]) -> float | None:
    """Return when all old containers were dead, by ``status.timings``; None if they were not, or nothing waited.

    A rolling round with known ``totalMilliseconds`` has no time of release: in it old and new members run side by side.
    """
    rolling = "totalMilliseconds" in timings and "releaseMilliseconds" not in timings
    return None if rolling else timings.get("stopMilliseconds")


def member(told: Mapping[str, Any], *, all_dead: float | None) -> tuple[Segment, ...]:
    """Return one of ``status.slowest`` as consecutive segments, without empty ones."""
    stopped, ran = told.get("stoppedMilliseconds"), told.get("runningMilliseconds")
    segments = (*_until_stopped(stopped, told.get("phases") or {}), *_since_stopped(stopped, ran, all_dead))
    return tuple(segment for segment in segments if segment.end > segment.begin)


def place(name: str) -> tuple[int, str]:
    """Return the key that sorts steps by name into the order in which they run."""
    if name in _LATE:
        return len(_BEFORE) + 1 + _LATE.index(name), name
    return (_BEFORE.index(name) if name in _BEFORE else len(_BEFORE)), name


def _until_stopped(stopped: float | None, phases: Mapping[str, float]) -> Iterator[Segment]:
    """Yield the order's transfer and the phases. If clocks disagree, all are shortened to the available time."""
    if stopped is None:
        return
    total = sum(phases.values())
    if not total:
        yield Segment(STOP, 0.0, stopped)
        return
    scale, at = min(1.0, stopped / total), max(0.0, stopped - total)
    yield Segment(ORDER, 0.0, at)
    for name in sorted(phases, key=place):
        begin, at = at, at + scale * phases[name]
        yield Segment(name, begin, at)


def _since_stopped(stopped: float | None, ran: float | None, all_dead: float | None) -> Iterator[Segment]:
    if stopped is None:
        if ran is not None:
            yield Segment(RECREATE, 0.0, ran)
    elif ran is None:
        if all_dead is not None:
            yield Segment(HELD, stopped, all_dead)
    elif all_dead is None or ran < all_dead:  # the member did not wait for the others
        yield Segment(RELEASE, stopped, ran)
    else:
        let_go = max(stopped, all_dead)
        yield Segment(HELD, stopped, let_go)
        yield Segment(RELEASE, let_go, ran)
