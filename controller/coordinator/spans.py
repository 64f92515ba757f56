"""Convert a round's record to the spans of its trace. Pure.

Like the record, a trace contains the slowest members and those that are not back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kubemend.controller.rounds import timeline
from kubemend.controller.rounds.states import Phase, Round

Attribute = str | int

ROUND: Final = "round"
DECIDE: Final = "decide"
MEMBER: Final = "member"


@dataclass(frozen=True, slots=True)
class Span:
    """A period and its attributes. Times are Unix seconds; ``error`` is why it did not end well."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    children: tuple["Span", ...] = ()
    error: str = ""

    def walk(self) -> Iterator["Span"]:
        """Yield the span and all its descendants."""
        yield self
        for child in self.children:
            yield from child.walk()


def of_round(ended: Round, status: Mapping[str, Any]) -> Span:
    """Return the trace of a round that has ended with this status."""
    assert ended.ended is not None
    fault_at, decided_at = min(ended.cause.at, ended.started_at), ended.started_at
    ended_at = decided_at + ended.ended
    timings = status.get("timings", {})
    stopped_at = _after(decided_at, timings.get("stopMilliseconds"))
    failures = {each["member"]: f"{each['reason']}: {each['message']}" for each in status.get("failures", ())}
    steps = [Span(DECIDE, fault_at, decided_at)]
    if stopped_at is None:
        steps.append(Span(timeline.STOP, decided_at, ended_at, error="not all old containers were stopped"))
    else:
        steps.append(Span(timeline.STOP, decided_at, stopped_at))
        if "releaseMilliseconds" in timings:
            steps.append(Span(timeline.RELEASE, stopped_at, stopped_at + timings["releaseMilliseconds"] / 1000))
    slowest = {each["member"]: each for each in status.get("slowest", ())}
    members = [
        _member(
            slowest.get(name, {"member": name}),
            decided_at=decided_at,
            ended_at=ended_at,
            released=timeline.released(timings),
            error=failures.get(name, ""),
        )
        for name in dict.fromkeys((*slowest, *failures))
    ]
    return Span(
        ROUND,
        fault_at,
        max([ended_at, *(each.end for each in (*steps, *members))]),
        _attributes(ended, status),
        (*steps, *members),
        error="" if ended.phase is Phase.DONE else next(iter(failures.values()), ended.reason or ended.phase.value),
    )


def _attributes(ended: Round, status: Mapping[str, Any]) -> Mapping[str, Attribute]:
    trigger, decision = status["trigger"], status["decision"]
    known: dict[str, Attribute] = {
        "round": ended.ref.id,
        "gang": str(ended.ref.gang),
        "attempt": ended.ref.attempt,
        "phase": ended.phase.value,
        "cause": trigger["code"],
        "cause.kind": trigger["kind"],
        "cause.message": trigger["message"],
        "member": trigger["member"],
        "node": trigger["node"],
        "decision": decision["kind"],
        "decision.reason": decision["reason"],
    }
    known |= {f"members.{name}": count for name, count in status.get("members", {}).items()}
    known |= {each["type"]: each["reason"] for each in status.get("conditions", ())}
    return _named(known)


def _named(attributes: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
    return MappingProxyType({f"kubemend.{name}": value for name, value in attributes.items() if value != ""})


def _member(
    timing: Mapping[str, Any], *, decided_at: float, ended_at: float, released: float | None, error: str
) -> Span:
    steps = [
        Span(segment.step, decided_at + segment.begin / 1000, decided_at + segment.end / 1000)
        for segment in timeline.member(timing, released=released)
    ]
    ran_at = _after(decided_at, timing.get("runningMilliseconds"))
    return Span(
        MEMBER,
        decided_at,
        max([ran_at if ran_at is not None else ended_at, *(step.end for step in steps)]),
        _named({"member": timing["member"], "node": timing.get("node", "")}),
        tuple(steps),
        error=error,
    )


def _after(begin: float, milliseconds: int | None) -> float | None:
    return None if milliseconds is None else begin + milliseconds / 1000
