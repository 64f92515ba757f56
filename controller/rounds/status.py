"""Convert a round to the status of its Restart object, and back. Pure.

The first status is kept in an annotation of the object, as JSON. ``first``, and ``render`` of a round that is not over,
contain everything that another leader needs (``parse``). At its end ``render`` returns the status, of limited size:
counts, timings, the slowest members, and those that are not back.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubemend.common import coordination
from kubemend.common.coordination import FaultKind, OrderKind
from kubemend.common.gangs import GangKey
from kubemend.common.kube import timestamps
from kubemend.controller.decisions.facts import Decision, Kind, Reason
from kubemend.controller.gangs import members as members_module
from kubemend.controller.gangs.budget import Past
from kubemend.controller.model.faults import Cause, Fault, Request
from kubemend.controller.model.members import Member, PodPhase, PodRef, PodUid
from kubemend.controller.rounds import outcome
from kubemend.controller.rounds.states import MemberPhase, MemberState, Phase, Round

Json = dict[str, Any]

REQUEST: Final = "Request"
REQUESTED: Final = "Requested"
SLOWEST: Final = 20
MOST_FAILURES: Final = 64
MOST_SLOTS: Final = 1000
"""With more slots than this a new leader finds out by itself which pods cannot be restarted in place."""
_MOST_CHARACTERS: Final = 64 * 1024
"""Of one list of slots: all annotations of an object have 256 KiB together (``TotalAnnotationSizeLimitB``)."""
_TO_RESTART: Final = frozenset({PodPhase.RUNNING, PodPhase.UNKNOWN})
HELD_TOGETHER: Final = "HeldTogether"
"""Condition: no new container ran before all old ones were dead. False has the reason, and names one pod."""
HELD_AFTER: Final = "HeldAfterMilliseconds"
"""The reason for which ``HELD_TOGETHER`` is False if all were held, but some containers had run by then."""
CANCELLED: Final = coordination.CANCELLED
"""Condition and reason: the round was cancelled before any release. Other rounds do not have it."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """``status.trigger``. ``at`` is Unix time."""

    kind: str
    member: str
    slot: str
    node: str
    code: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A new leader's knowledge of a round.

    Pods created after ``members_until``, by the API server's clock, are replacements. Other times are by this process's
    clock. ``slots`` are those of a rolling round that it began with, and had to restart; a slot without a pod is away.
    """

    cause: Cause
    decision: Decision
    trigger: Trigger
    started_at: float
    members_until: float
    slots: frozenset[str] = frozenset()


def first(
    cause: Cause,
    *,
    decision: Decision,
    attempt: int,
    hit: Member | None,
    started_at: float,
    members: Iterable[Member],
) -> Json:
    """Return the first status of a round's object.

    ``hit`` is the member at fault, if there is one; ``members`` are all pods of the gang.
    """
    written = _head(cause, decision=decision, attempt=attempt, hit=hit, started_at=started_at)
    return written | {"resume": _resume(cause, decision=decision, started_at=started_at, members=members)}


def render(state: Round) -> Json:
    """Return the round in the form of the resource (daemonset/crds/restarts.yaml)."""
    cause, decision, started_at = state.cause, state.decision, state.started_at
    one = state.members.get(cause.pod.uid) if isinstance(cause, Fault) else None
    written = _head(
        cause,
        decision=decision,
        attempt=state.ref.attempt,
        hit=one.member if one is not None else None,
        started_at=started_at,
    ) | {"phase": state.phase.value}
    if not state.phase.is_final:
        members = (each.member for each in state.members.values() if not each.replaces)
        return written | {"resume": _resume(cause, decision=decision, started_at=started_at, members=members)}
    assert state.ended is not None
    ended_at = state.started_at + state.ended
    failures = outcome.failures(state) if state.phase is not Phase.DONE else ()
    return written | {
        "members": _counts(state, failed=len(failures)),
        "timings": _timings(state),
        "completionTime": timestamps.rfc3339(ended_at),
        "slowest": [_slow(each) for each in _slowest(state)],
        "failures": [_failure(each) for each in failures[:MOST_FAILURES]],
        "conditions": [_held_together(state, at=ended_at), *_cancelled(state, at=ended_at)],
    }


def parse(status: Mapping[str, Any], *, created_at: float) -> Kept:
    """Return the state that ``render`` kept of a round that is not over. Raises KeyError, ValueError or TypeError.

    ``created_at`` is when its object was created, by the API server's clock, which counts whole seconds: a pod may have
    been replaced in the same one, or been created while a request waited. So the newest pod with which the round began
    tells replacements apart.
    """
    resume, written, decided = status["resume"], status["trigger"], status["decision"]
    trigger = Trigger(
        kind=written["kind"],
        member=written["member"],
        slot=written["slot"],
        node=written["node"],
        code=written["code"],
        message=written["message"],
        at=float(resume["causeAt"]),
    )
    decision = Decision(
        Kind(decided["kind"]), Reason(decided["reason"]), decided["detail"], recreate=frozenset(resume["recreate"])
    )
    members_until = float(resume.get("newestMemberAt", created_at))  # older controllers wrote none
    slots = frozenset(resume.get("slots", ()))
    return Kept(_cause(trigger, resume), decision, trigger, float(resume["startedAt"]), members_until, slots)


def past(status: Mapping[str, Any], *, created_at: float) -> Past:
    """Return the budget's record of a round, by its object. Missing times default to the object's creation."""
    trigger = status.get("trigger") or {}
    at = _moment(status.get("completionTime"), default=_moment(status.get("startTime"), default=created_at))
    is_request = trigger.get("kind") == REQUEST
    return Past(
        at=at,
        fault_at=min(_moment(trigger.get("time"), default=created_at), at),
        slot=str(trigger.get("slot") or ""),
        code="" if is_request else str(trigger.get("code") or ""),
    )


def _head(cause: Cause, *, decision: Decision, attempt: int, hit: Member | None, started_at: float) -> Json:
    """Return the fields that are known at the begin and do not change."""
    return {
        "phase": Phase.STOPPING.value,
        "attempt": attempt,
        "trigger": _trigger(cause, hit=hit),
        "decision": {
            "kind": decision.kind.value,
            "reason": decision.reason.value,
            "detail": decision.detail,
        },
        "startTime": timestamps.rfc3339(started_at),
    }


def _trigger(cause: Cause, *, hit: Member | None) -> Json:
    time = timestamps.rfc3339(cause.at)
    if isinstance(cause, Request):
        message = f"requested by {cause.by}" + (f": {cause.reason}" if cause.reason else "")
        nowhere = {"kind": REQUEST, "member": "", "slot": "", "node": ""}
        return nowhere | {"code": REQUESTED, "message": message, "time": time}
    return {
        "kind": cause.kind.value,
        "member": cause.pod.name,
        "slot": hit.slot if hit is not None else "",
        "node": hit.node if hit is not None else "",
        "code": cause.code,
        "message": cause.message,
        "time": time,
    }


def _resume(cause: Cause, *, decision: Decision, started_at: float, members: Iterable[Member]) -> Json:
    """Return the fields that only another leader needs."""
    everyone = tuple(members)
    kept: Json = {
        "gang": str(cause.gang),
        "startedAt": started_at,
        "causeAt": cause.at,
        "newestMemberAt": max((each.created_at for each in everyone), default=0.0),
        "recreate": _listed(decision.recreate),
    }
    if isinstance(cause, Request):
        if cause.max_unavailable is not None:
            begun = members_module.by_slot(everyone).items()
            kept["slots"] = _listed(slot for slot, each in begun if each.phase in _TO_RESTART)
        return kept | {"by": cause.by, "reason": cause.reason, "all": cause.recreate, "atATime": cause.max_unavailable}
    return kept | {
        "id": cause.id,
        "pod": [cause.pod.namespace, cause.pod.name, cause.pod.uid],
        "container": cause.container,
        "exitCode": cause.exit_code,
        "actionClass": cause.action_class,
        "device": cause.device,
    }


def _listed(slots: Iterable[str]) -> list[str]:
    """Return slots for another leader; none if there are too many for an annotation."""
    found = sorted(slots)
    is_short = len(found) <= MOST_SLOTS and sum(map(len, found)) <= _MOST_CHARACTERS
    return found if is_short else []


def _cause(trigger: Trigger, resume: Mapping[str, Any]) -> Cause:
    gang = GangKey.parse(resume["gang"])
    if trigger.kind == REQUEST:
        return Request(gang, resume["by"], resume["reason"], trigger.at, resume["atATime"], resume["all"])
    namespace, name, uid = resume["pod"]
    return Fault(
        id=resume["id"],
        pod=PodRef(namespace, name, PodUid(uid)),
        gang=gang,
        kind=FaultKind(trigger.kind),
        code=trigger.code,
        message=trigger.message,
        at=trigger.at,
        container=resume["container"],
        exit_code=resume["exitCode"],
        action_class=resume["actionClass"],
        device=resume["device"],
    )


def _counts(state: Round, *, failed: int) -> Json:
    current = outcome.current(state)
    return {
        "total": len(state.newest.keys() | state.awaited.keys()),
        "inPlace": sum(each.order is OrderKind.RESTART and each.running is not None for each in current),
        "recreated": len(_recreated(state)),
        "stopped": sum(not each.old_runs for each in current),
        "running": sum(each.phase is MemberPhase.RUNNING for each in current),
        "failed": failed,
    }


def _recreated(state: Round) -> set[str]:
    return {each.member.slot for each in state.members.values() if each.recreated or each.replaces}


def _timings(state: Round) -> Json:
    """Return the timings. ``totalMilliseconds`` counts from the fault, the others from the decision."""
    written: Json = {}
    everyone = state.members.values()
    if state.stopped is not None:
        written["stopMilliseconds"] = _milliseconds(state.stopped)
        dead = state.old_dead if state.old_dead is not None else state.stopped
        written["recreateMilliseconds"] = _milliseconds(state.stopped - dead) if _recreated(state) else 0
    if (last := max((each.running for each in everyone if each.running is not None), default=None)) is not None:
        if state.stopped is not None and not state.rolling:
            written["releaseMilliseconds"] = _milliseconds(max(last - state.stopped, 0.0))
        written["totalMilliseconds"] = _milliseconds(max(state.started_at - state.cause.at, 0.0) + last)
    return written


def _slowest(state: Round) -> list[MemberState]:
    everyone = outcome.current(state)
    return sorted(everyone, key=lambda each: (-(each.running or 0.0), -(each.stopped or 0.0), each.member.slot))[
        :SLOWEST
    ]


def _slow(one: MemberState) -> Json:
    written: Json = {"member": one.member.pod.name, "node": one.member.node}
    if one.stopped is not None:
        written["stoppedMilliseconds"] = _milliseconds(one.stopped)
    if one.running is not None:
        written["runningMilliseconds"] = _milliseconds(one.running)
    if one.late:
        written["startedLate"] = True
    return written | {"phases": {name: _milliseconds(seconds) for name, seconds in one.seconds.items()}}


def _failure(failure: outcome.Failure) -> Json:
    return {
        "member": failure.member,
        "node": failure.node,
        "reason": failure.reason,
        "message": failure.detail,
    }


def _held_together(state: Round, *, at: float) -> Json:
    holds, reason, message = True, "AllHeld", ""
    if state.rolling:
        holds, reason, message = False, "Rolling", "members were restarted one after another"
    elif self_released := [each for each in outcome.unheld(state) if each.self_released]:
        holds, reason, message = (
            False,
            "RanUnheld",
            _with_example(self_released, "were released before all old containers were stopped"),
        )
    elif old := outcome.old_may_run(state):
        holds, reason, message = (
            False,
            "OldMayRun",
            _with_example(old, "may still have old containers, next to new ones"),
        )
    elif unheld_seconds := outcome.unheld(state):
        worst_first = sorted(unheld_seconds, key=lambda each: each.unheld_seconds, reverse=True)
        what = f"ran for {max(_milliseconds(worst_first[0].unheld_seconds), 1)} ms at most before they were held"
        holds, reason, message = False, HELD_AFTER, _with_example(worst_first, what)
    return {
        "type": HELD_TOGETHER,
        "status": "True" if holds else "False",
        "lastTransitionTime": timestamps.rfc3339(at),
        "reason": reason,
        "message": message,
    }


def _cancelled(state: Round, *, at: float) -> list[Json]:
    if state.reason != CANCELLED:
        return []
    written = {"status": "True", "lastTransitionTime": timestamps.rfc3339(at), "reason": CANCELLED}
    return [{"type": CANCELLED, **written, "message": state.detail}]


def _with_example(found: Iterable[MemberState], what: str) -> str:
    names = [each.member.pod.name for each in found]
    return f"{len(names)} members {what}, such as {names[0]}"


def _moment(text: str | None, *, default: float) -> float:
    return float(timestamps.unix(text)) if text else default


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
