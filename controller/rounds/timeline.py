"""Compute the steps of one member of an ended round, from the round's record. Pure.

The record has two kinds of times: when members had stopped and ran, by the controller's clock, and how long the phases
of their restarts took, by their nodes' clocks. So the phases until the death of the old container are placed so that
they end when the member had stopped; the time before them is the order's transfer. All times here are milliseconds
since the decision.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

ORDER: Final = "order"
STOP: Final = "stop"
START: Final = "start"
FREE: Final = "free"
HELD: Final = "held"
RELEASE: Final = "release"
RECREATE: Final = "recreate"

_PHASES: Final = ("prepare", "reserve", "create", START, STOP, FREE, "device", "proof", "clean", "confirm", "wait")
"""In the order in which an agent runs them (``agent.restart.steps``); others come after them, by name."""
_LATE_PHASES: Final = ("prepare", "reserve", STOP, FREE, "create", "device", "proof", "clean", START, "confirm", "wait")
"""The same for a member whose new container is started after the death of the old one."""
_BEFORE: Final = (ORDER, RECREATE, *_PHASES)
_LATE: Final = (HELD, RELEASE)
_AFTER_DEATH: Final = (HELD, "confirm", "wait")


@dataclass(frozen=True, slots=True)
class Segment:
    """The step of a member from ``begin`` to ``end``: ORDER, a phase, HELD, RELEASE or RECREATE."""

    step: str
    begin: float
    end: float


def released(timings: Mapping[str, float]) -> float | None:
    """Return when the members were released, by ``status.timings``; None if they were not, or nothing waited.

    A rolling round with known ``totalMilliseconds`` has no time of release: in it old and new members run side by side.
    """
    rolling = "totalMilliseconds" in timings and "releaseMilliseconds" not in timings
    return None if rolling else timings.get("stopMilliseconds")


def all_dead(timings: Mapping[str, float]) -> float | None:
    """Return when all old containers were dead; the release may come later, because it waits for recreated members."""
    stopped = released(timings)
    return stopped - timings.get("recreateMilliseconds", 0) if stopped is not None else None


def member(slowest: Mapping[str, Any], *, released: float | None) -> tuple[Segment, ...]:
    """Return one of ``status.slowest`` as consecutive segments, without empty ones."""
    stopped, ran = slowest.get("stoppedMilliseconds"), slowest.get("runningMilliseconds")
    phases, late = slowest.get("phases") or {}, bool(slowest.get("startedLate"))
    starts = phases.get(START, 0) if late and stopped is not None else 0
    begun = stopped + starts if stopped is not None else None
    if begun is not None and ran is not None:
        begun = min(begun, ran)
    segments = [*_until_stopped(stopped, phases, late=late)]
    if stopped is not None and begun is not None:
        segments.append(Segment(START, stopped, begun))
    segments += _since_stopped(begun, ran, released)
    return tuple(segment for segment in segments if segment.end > segment.begin)


def place(name: str) -> tuple[int, str]:
    """Return the key that sorts steps by name into the order in which they run."""
    if name in _LATE:
        return len(_BEFORE) + 1 + _LATE.index(name), name
    return (_BEFORE.index(name) if name in _BEFORE else len(_BEFORE)), name


def _until_stopped(stopped: float | None, phases: Mapping[str, float], *, late: bool) -> Iterator[Segment]:
    """Yield the order's transfer and the phases. If clocks disagree, all are shortened to the available time."""
    if stopped is None:
        return
    after = (*_AFTER_DEATH, START) if late else _AFTER_DEATH
    if "create" in phases and "reserve" not in phases:  # a swap, which removes one of two new containers
        after = (*after, "remove")
    before = {name: length for name, length in phases.items() if name not in after}
    total = sum(before.values())
    if not total:
        yield Segment(STOP, 0.0, stopped)
        return
    order = _LATE_PHASES if late else _PHASES
    scale, at = min(1.0, stopped / total), max(0.0, stopped - total)
    yield Segment(ORDER, 0.0, at)
    for name in sorted(before, key=lambda name: (order.index(name) if name in order else len(order), name)):
        begin, at = at, at + scale * before[name]
        yield Segment(name, begin, at)


def _since_stopped(stopped: float | None, ran: float | None, released: float | None) -> Iterator[Segment]:
    if stopped is None:
        if ran is not None:
            yield Segment(RECREATE, 0.0, ran)
    elif ran is None:
        if released is not None:
            yield Segment(HELD, stopped, released)
    elif released is None or ran < released:  # the member did not wait for the others
        yield Segment(RELEASE, stopped, ran)
    else:
        released_at = max(stopped, released)
        yield Segment(HELD, stopped, released_at)
        yield Segment(RELEASE, released_at, ran)
