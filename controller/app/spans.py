"""From a round's record to the spans of its trace. Pure.

The record has two kinds of times: when members had stopped and ran, by the controller's clock, and how long the phases
of their restarts took, by their nodes'. So phases are laid so that they end when the member had stopped. Like the
record, a trace tells of the slowest members and of those that are not back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from controller.rounds.states import Phase, Round

Attribute = str | int

ROUND: Final = "round"
DECIDE: Final = "decide"
STOP: Final = "stop"
RELEASE: Final = "release"
MEMBER: Final = "member"
HELD: Final = "held"
RECREATE: Final = "recreate"

_PHASES: Final = ("stop", "reserve", "device", "clean", "create", "start", "confirm", "wait")
"""In the order in which an agent goes through them (``agent.restart.steps``); others come after them, by name."""


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time, and what happened in it. Times are Unix seconds; ``error`` says why it did not end well."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    children: tuple["Span", ...] = ()
    error: str = ""

    def walk(self) -> Iterator["Span"]:
        """Yield it and everything below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def of_round(ended: Round, told: Mapping[str, Any]) -> Span:
    """Return the trace of a round that has ended. ``told`` is its status."""
    assert ended.ended is not None
    fault_at, decided_at = min(ended.cause.at, ended.started_at), ended.started_at
    ended_at = decided_at + ended.ended
    timings = told.get("timings", {})
    stopped_at = _after(decided_at, timings.get("stopMilliseconds"))
    released_at = stopped_at if "releaseMilliseconds" in timings else None
    failures = {each["member"]: f"{each['reason']}: {each['message']}" for each in told.get("failures", ())}
    steps = [Span(DECIDE, fault_at, decided_at)]
    if stopped_at is None:
        steps.append(Span(STOP, decided_at, ended_at, error="not everything old was stopped"))
    else:
        steps.append(Span(STOP, decided_at, stopped_at))
    if released_at is not None:
        steps.append(Span(RELEASE, released_at, released_at + timings["releaseMilliseconds"] / 1000))
    slowest = {each["member"]: each for each in told.get("slowest", ())}
    members = [
        _member(
            slowest.get(name, {"member": name}),
            decided_at=decided_at,
            released_at=released_at,
            ended_at=ended_at,
            error=failures.get(name, ""),
        )
        for name in dict.fromkeys((*slowest, *failures))
    ]
    return Span(
        ROUND,
        fault_at,
        max([ended_at, *(each.end for each in (*steps, *members))]),
        _attributes(ended, told),
        (*steps, *members),
        error="" if ended.phase is Phase.DONE else next(iter(failures.values()), ended.reason or ended.phase.value),
    )


def _attributes(ended: Round, told: Mapping[str, Any]) -> Mapping[str, Attribute]:
    trigger, decision = told["trigger"], told["decision"]
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
    known |= {f"members.{name}": count for name, count in told.get("members", {}).items()}
    known |= {each["type"]: each["reason"] for each in told.get("conditions", ())}
    return _named(known)


def _named(attributes: Mapping[str, Attribute]) -> Mapping[str, Attribute]:
    return MappingProxyType({f"kubemend.{name}": value for name, value in attributes.items() if value != ""})


def _member(
    told: Mapping[str, Any], *, decided_at: float, released_at: float | None, ended_at: float, error: str
) -> Span:
    stopped_at = _after(decided_at, told.get("stoppedMilliseconds"))
    ran_at = _after(decided_at, told.get("runningMilliseconds"))
    steps = [*_restart(told.get("phases", {}), decided_at, stopped_at)]
    if ran_at is not None and stopped_at is None:
        steps.append(Span(RECREATE, decided_at, ran_at))
    elif ran_at is not None and stopped_at is not None:
        let_go_at = stopped_at if released_at is None else min(max(stopped_at, released_at), ran_at)
        if released_at is not None:  # in a rolling round nobody waits for the others
            steps.append(Span(HELD, stopped_at, let_go_at))
        steps.append(Span(RELEASE, let_go_at, ran_at))
    until = ran_at if ran_at is not None else ended_at
    return Span(
        MEMBER,
        decided_at,
        max([until, *(each.end for each in steps)]),
        _named({"member": told["member"], "node": told.get("node", "")}),
        tuple(each for each in steps if each.end > each.begin),
        error=error,
    )


def _restart(phases: Mapping[str, int], decided_at: float, stopped_at: float | None) -> Iterator[Span]:
    """Yield the phases until a member had stopped. Where clocks disagree, all are shortened to the time there was."""
    if stopped_at is None:
        return
    known = {name: phases[name] / 1000 for name in sorted(phases, key=_place)}
    total = sum(known.values())
    scale = min(1.0, (stopped_at - decided_at) / total) if total else 1.0
    at = stopped_at - scale * total
    for name, length in known.items():
        yield Span(name, at, at + scale * length)
        at += scale * length


def _place(phase: str) -> tuple[int, str]:
    return (_PHASES.index(phase) if phase in _PHASES else len(_PHASES), phase)


def _after(begin: float, milliseconds: int | None) -> float | None:
    return None if milliseconds is None else begin + milliseconds / 1000
