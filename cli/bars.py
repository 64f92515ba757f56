"""From a round's Restart object to the bars of its chart. Pure. Times are milliseconds since the fault or request."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cli import plain
from controller.restarts.objects import Restart
from controller.rounds import laid_out
from controller.rounds.laid_out import Segment
from controller.rounds.status import HELD_TOGETHER

MOST_BARS: Final = 40
"""More of them nobody can read: the slowest are taken."""


class NothingToDrawError(Exception):
    """The object does not tell of any member's times; the text says why."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One member. ``hit``: the fault was its. ``ran_at`` is None where it does not run, ``failure`` says why."""

    member: str
    node: str
    segments: tuple[Segment, ...]
    ran_at: float | None
    hit: bool = False
    failure: str = ""

    @property
    def end(self) -> float:
        """When the last that is known of it happened."""
        return max((segment.end for segment in self.segments), default=0.0)


@dataclass(frozen=True, slots=True)
class Chart:
    """One round. ``members`` is how many it has, ``bars`` are the slowest of them, those that failed first.

    ``decided``, ``all_dead`` (nothing old runs any more) and ``total`` (the last one runs again) are None where they
    are not known; without ``decided`` all times are since the decision. ``held`` says whether anything new ran before
    everything old was dead.
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
        """How much time the chart shows; more than 0."""
        return max(self.total or 0.0, self.all_dead or 0.0, *(bar.end for bar in self.bars), 1.0)

    @property
    def left_out(self) -> int:
        """How many members have no bar."""
        return max(0, self.members - len(self.bars))

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that it has, in the order in which they are gone through."""
        there = {segment.step for bar in self.bars for segment in bar.segments}
        return tuple(sorted(there, key=laid_out.place))


def chart(restart: Restart, *, most: int = MOST_BARS) -> Chart:
    """Return the chart of a round that has ended. Raises NothingToDrawError."""
    status = plain.document({**restart.status})
    trigger, decision = status.get("trigger") or {}, status.get("decision") or {}
    marks = _Marks.of(status)
    bars = _bars(status, marks=marks, hit=trigger.get("member") or "")
    if not bars:
        raise NothingToDrawError(_why_nothing(restart))
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
    """What the round's times are. ``decided`` and ``total`` count from the fault, ``all_dead`` from the decision."""

    decided: float | None
    all_dead: float | None
    total: float | None

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "_Marks":
        """``totalMilliseconds`` counts from the fault, all others from the decision: the last tells when it was."""
        timings = status.get("timings") or {}
        total = timings.get("totalMilliseconds")
        last = max((each.get("runningMilliseconds", 0) for each in status.get("slowest") or ()), default=0)
        decided = max(0.0, float(total - last)) if total is not None and last else None
        return cls(decided, laid_out.all_dead(timings), float(total) if total is not None else None)

    def since_fault(self, milliseconds: float | None) -> float | None:
        """Return a time since the decision as one since the fault."""
        return (self.decided or 0.0) + milliseconds if milliseconds is not None else None

    def segments(self, told: Mapping[str, Any]) -> Iterator[Segment]:
        """Yield what a member did, since the fault."""
        decided = self.decided or 0.0
        for segment in laid_out.member(told, all_dead=self.all_dead):
            yield replace(segment, begin=decided + segment.begin, end=decided + segment.end)


def _bars(status: Mapping[str, Any], *, marks: _Marks, hit: str) -> list[Bar]:
    failures = {each["member"]: each for each in status.get("failures") or ()}
    told = {each["member"]: each for each in status.get("slowest") or ()}
    return [
        _bar(name, told.get(name, {}), failure=failures.get(name), marks=marks, hit=hit)
        for name in dict.fromkeys((*told, *failures))
    ]


def _bar(member: str, told: Mapping[str, Any], *, failure: Mapping[str, Any] | None, marks: _Marks, hit: str) -> Bar:
    why = ": ".join(filter(None, (failure.get("reason"), failure.get("message")))) if failure is not None else ""
    return Bar(
        member=member,
        node=told.get("node") or (failure or {}).get("node") or "",
        segments=tuple(marks.segments(told)),
        ran_at=marks.since_fault(told.get("runningMilliseconds")),
        hit=member == hit,
        failure=why or ("failed" if failure is not None else ""),
    )


def _held(conditions: Iterable[Mapping[str, str]]) -> str:
    for each in conditions:
        if each["type"] == HELD_TOGETHER and each["status"] == "True":
            return each.get("message") or "nothing new ran before everything old was dead"
        if each["type"] == HELD_TOGETHER:
            return f"not held together ({each['reason']}): {each.get('message', '')}"
    return ""


def _slowest_first(bar: Bar) -> tuple[bool, float, str]:
    return not bar.failure, -(bar.ran_at if bar.ran_at is not None else bar.end), bar.member


def _why_nothing(restart: Restart) -> str:
    phase = plain.text(restart.phase)
    if restart.is_finished:
        return f"Restart {restart.id} is {phase}, and does not tell of any member's times"
    return f"Restart {restart.id} has not ended yet ({phase or 'requested'}): its times are told at its end"
