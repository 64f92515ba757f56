"""Compute the bars of a round's chart from its Restart object.

Pure. Times are milliseconds since the fault or request.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kubemend.common import plain
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.rounds import timeline
from kubemend.controller.rounds.status import HELD_TOGETHER
from kubemend.controller.rounds.timeline import Segment

MOST_BARS: Final = 40
"""More bars are unreadable: the slowest are kept."""


class NothingToDrawError(Exception):
    """The object has no times of any member; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Describe one member. ``hit``: it had the fault.

    ``ran_at`` is None if it does not run, with the reason in ``failure``.
    """

    member: str
    node: str
    segments: tuple[Segment, ...]
    ran_at: float | None
    hit: bool = False
    failure: str = ""

    @property
    def end(self) -> float:
        """Return the time of the member's last known event."""
        return max((segment.end for segment in self.segments), default=0.0)


@dataclass(frozen=True, slots=True)
class Chart:
    """Describe one round. ``members`` is their number, ``bars`` are the slowest ones, failed ones first.

    ``decided``, ``all_dead`` (no old container runs any more) and ``total`` (the last successor runs) are None if
    unknown; without ``decided`` all times are since the decision. ``held`` states whether a successor ran before all
    old containers were dead.
    """

    name: str
    gang: str
    attempt: int
    phase: str
    cause: str
    message: str
    hit: str
    node: str
    decision: str
    held: str
    members: int
    decided: float | None
    all_dead: float | None
    total: float | None
    bars: tuple[Bar, ...]

    @property
    def span(self) -> float:
        """Return the length of the chart's time axis; more than 0."""
        return max(self.total or 0.0, self.all_dead or 0.0, *(bar.end for bar in self.bars), 1.0)

    @property
    def left_out(self) -> int:
        """Return the number of members without a bar."""
        return max(0, self.members - len(self.bars))

    @property
    def steps(self) -> tuple[str, ...]:
        """Return the steps of the round, in order."""
        there = {segment.step for bar in self.bars for segment in bar.segments}
        return tuple(sorted(there, key=timeline.place))


def chart(restart: Restart, *, most: int = MOST_BARS) -> Chart:
    """Return the chart of a round that has ended. Raises NothingToDrawError."""
    status = plain.document({**restart.status})
    trigger, decision = status.get("trigger") or {}, status.get("decision") or {}
    marks = _Marks.of(status)
    bars = _bars(status, marks=marks, hit=trigger.get("member") or "")
    if not bars:
        raise NothingToDrawError(_nothing_to_draw(restart))
    return Chart(
        name=restart.id,
        gang=restart.gang.name if restart.gang is not None else restart.name,
        attempt=restart.attempt,
        phase=status.get("phase") or "",
        cause=trigger.get("code") or "",
        message=trigger.get("message") or plain.text(restart.spec.reason),
        hit=trigger.get("member") or "",
        node=trigger.get("node") or "",
        decision=" ".join(filter(None, (decision.get("kind"), f"({decision.get('reason', '')})".replace("()", "")))),
        held=_held(status.get("conditions") or ()),
        members=max((status.get("members") or {}).get("total") or 0, len(bars)),
        decided=marks.decided,
        all_dead=marks.since_fault(marks.all_dead),
        total=marks.total,
        bars=tuple(sorted(bars, key=_slowest_first)[:most]),
    )


@dataclass(frozen=True, slots=True)
class _Marks:
    """Hold the times of the round. ``decided`` and ``total`` count from the fault, the others from the decision."""

    decided: float | None
    all_dead: float | None
    released: float | None
    total: float | None

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "_Marks":
        """Read the status: ``totalMilliseconds`` counts from the fault, all other times from the decision; ``total``
        reveals the decision's time.
        """
        timings = status.get("timings") or {}
        total = timings.get("totalMilliseconds")
        last = max((each.get("runningMilliseconds", 0) for each in status.get("slowest") or ()), default=0)
        decided = max(0.0, float(total - last)) if total is not None and last else None
        return cls(
            decided,
            timeline.all_dead(timings),
            timeline.released(timings),
            float(total) if total is not None else None,
        )

    def since_fault(self, milliseconds: float | None) -> float | None:
        """Convert a time since the decision to one since the fault."""
        return (self.decided or 0.0) + milliseconds if milliseconds is not None else None

    def segments(self, timing: Mapping[str, Any]) -> Iterator[Segment]:
        """Yield the steps of a member, in times since the fault."""
        decided = self.decided or 0.0
        for segment in timeline.member(timing, released=self.released):
            yield replace(segment, begin=decided + segment.begin, end=decided + segment.end)


def _bars(status: Mapping[str, Any], *, marks: _Marks, hit: str) -> list[Bar]:
    failures = {each["member"]: each for each in status.get("failures") or ()}
    timing = {each["member"]: each for each in status.get("slowest") or ()}
    return [
        _bar(name, timing.get(name, {}), failure=failures.get(name), marks=marks, hit=hit)
        for name in dict.fromkeys((*timing, *failures))
    ]


def _bar(member: str, timing: Mapping[str, Any], *, failure: Mapping[str, Any] | None, marks: _Marks, hit: str) -> Bar:
    reason = ": ".join(filter(None, (failure.get("reason"), failure.get("message")))) if failure is not None else ""
    return Bar(
        member=member,
        node=timing.get("node") or (failure or {}).get("node") or "",
        segments=tuple(marks.segments(timing)),
        ran_at=marks.since_fault(timing.get("runningMilliseconds")),
        hit=member == hit,
        failure=reason or ("failed" if failure is not None else ""),
    )


def _held(conditions: Iterable[Mapping[str, str]]) -> str:
    for each in conditions:
        if each["type"] == HELD_TOGETHER and each["status"] == "True":
            return each.get("message") or "no new container ran before all old ones were dead"
        if each["type"] == HELD_TOGETHER:
            return f"not held together ({each['reason']}): {each.get('message', '')}"
    return ""


def _slowest_first(bar: Bar) -> tuple[bool, float, str]:
    return not bar.failure, -(bar.ran_at if bar.ran_at is not None else bar.end), bar.member


def _nothing_to_draw(restart: Restart) -> str:
    phase = plain.text(restart.phase)
    if restart.is_finished:
        return f"Restart {restart.id} is {phase} and has no times of any member"
    return f"Restart {restart.id} has not ended yet ({phase or 'requested'}): its times are recorded at its end"
