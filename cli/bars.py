"""From a round's Restart object to the bars of its chart. Pure.

Times are milliseconds since the fault (or the request). The object has two kinds: when members had stopped and ran,
by the controller's clock, and how long the phases of their restarts took, by their nodes'. So phases are laid so that
they end when the member had stopped; the time before is the order's way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cli import plain
from controller.restarts.objects import Restart
from controller.rounds.status import HELD_TOGETHER

MOST_BARS: Final = 40
"""More of them nobody can read: the slowest are taken."""

ORDER: Final = "order"
STOP: Final = "stop"
HELD: Final = "held"
RELEASE: Final = "release"
RECREATE: Final = "recreate"

PHASES: Final = (STOP, "reserve", "device", "clean", "create", "start", "confirm", "wait")
"""In the order in which an agent goes through them (``agent.restart.steps``); others come after them, by name."""


class NothingToDrawError(Exception):
    """The object does not tell of any member's times; the text says why."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What a member did from ``begin`` to ``end``: ORDER, a phase, HELD, RELEASE or RECREATE."""

    step: str
    begin: float
    end: float


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
        return tuple(sorted(there, key=_place))


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
        all_dead=marks.all_dead,
        total=marks.total,
        bars=tuple(sorted(bars, key=_slowest_first)[:most]),
    )


@dataclass(frozen=True, slots=True)
class _Marks:
    """What the round's times are since the fault. Members' times are since the decision, at ``begin``."""

    decided: float | None
    all_dead: float | None
    total: float | None

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "_Marks":
        """``totalMilliseconds`` counts from the fault, all others from the decision: the last member tells them apart.

        A rolling round has no time of release: there old and new members run beside each other.
        """
        timings = status.get("timings") or {}
        total, stop = timings.get("totalMilliseconds"), timings.get("stopMilliseconds")
        last = max((each.get("runningMilliseconds", 0) for each in status.get("slowest") or ()), default=0)
        decided = max(0.0, float(total - last)) if total is not None and last else None
        rolling = total is not None and "releaseMilliseconds" not in timings
        all_dead = (decided or 0.0) + stop if stop is not None and not rolling else None
        return cls(decided, all_dead, float(total) if total is not None else None)

    @property
    def begin(self) -> float:
        return self.decided or 0.0


def _bars(status: Mapping[str, Any], *, marks: _Marks, hit: str) -> list[Bar]:
    failures = {each["member"]: each for each in status.get("failures") or ()}
    told = {each["member"]: each for each in status.get("slowest") or ()}
    return [
        _bar(name, told.get(name, {}), failure=failures.get(name), marks=marks, hit=hit)
        for name in dict.fromkeys((*told, *failures))
    ]


def _bar(member: str, told: Mapping[str, Any], *, failure: Mapping[str, Any] | None, marks: _Marks, hit: str) -> Bar:
    stopped, ran = (_since_fault(told.get(f"{name}Milliseconds"), marks) for name in ("stopped", "running"))
    why = ": ".join(filter(None, (failure.get("reason"), failure.get("message")))) if failure is not None else ""
    return Bar(
        member=member,
        node=told.get("node") or (failure or {}).get("node") or "",
        segments=(
            *_until_stopped(stopped, told.get("phases") or {}, marks=marks),
            *_since_stopped(stopped, ran, marks=marks),
        ),
        ran_at=ran,
        hit=member == hit,
        failure=why or ("failed" if failure is not None else ""),
    )


def _since_fault(milliseconds: float | None, marks: _Marks) -> float | None:
    return marks.begin + milliseconds if milliseconds is not None else None


def _until_stopped(stopped: float | None, phases: Mapping[str, float], *, marks: _Marks) -> tuple[Segment, ...]:
    """Return the order's way and the phases. Where clocks disagree, all are shortened to the time that there was."""
    if stopped is None:
        return ()
    known = {name: float(phases[name]) for name in sorted(phases, key=_place) if phases[name] > 0}
    if not known:
        return _segments(STOP, marks.begin, stopped)
    there = stopped - marks.begin
    scale = min(1.0, there / sum(known.values()))
    at = stopped - scale * sum(known.values())
    found = [*_segments(ORDER, marks.begin, at)]
    for name, length in known.items():
        found += _segments(name, at, at + scale * length)
        at += scale * length
    return tuple(found)


def _since_stopped(stopped: float | None, ran: float | None, *, marks: _Marks) -> tuple[Segment, ...]:
    if ran is None:
        held_until = marks.all_dead
        return _segments(HELD, stopped, held_until) if stopped is not None and held_until is not None else ()
    if stopped is None:
        return _segments(RECREATE, marks.begin, ran)
    if marks.all_dead is None or ran < marks.all_dead:  # rolling: nobody waited for the others
        return _segments(RELEASE, stopped, ran)
    let_go = max(stopped, marks.all_dead)
    return (*_segments(HELD, stopped, let_go), *_segments(RELEASE, let_go, ran))


def _segments(step: str, begin: float, end: float) -> tuple[Segment, ...]:
    return (Segment(step, begin, end),) if end > begin else ()


def _place(step: str) -> tuple[int, str]:
    order = (ORDER, RECREATE, *PHASES)
    late = {HELD: len(order) + 1, RELEASE: len(order) + 2}
    return (order.index(step) if step in order else late.get(step, len(order)), step)


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
