"""How a case becomes a round's record, and what people are told of its end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from common.gangs import GangKey
from common.kube import timestamps
from controller.app import counting, spans
from controller.app.outside import Outside
from controller.decisions.facts import Decision
from controller.gangs.budget import Past
from controller.model.faults import Cause, Fault, Request
from controller.model.members import Member, Owner
from controller.model.rounds import Cancelled
from controller.restarts import names
from controller.restarts.events import ObjectRef
from controller.restarts.objects import Restart
from controller.rounds import status
from controller.rounds.states import Limits, Phase, Round

log = structlog.get_logger(__name__)

REQUESTED = "Requested"
"""The code of a round that somebody has asked for."""

NOT_RESUMED = "NotResumed"
"""The reason of a round that a new leader cannot go on with."""

INTERNAL = "Internal"
"""The reason of what ends for a defect of ours."""


def code_of(cause: Cause) -> str:
    """Return a cause's short and stable name."""
    return cause.code if isinstance(cause, Fault) else REQUESTED


def message_of(cause: Cause) -> str:
    """Return a cause for people."""
    return cause.message if isinstance(cause, Fault) else f"request of {cause.by}: {cause.why}".removesuffix(": ")


def ids_of(cause: Cause) -> dict[str, str]:
    """Return what a cause is known by in the log: the fault with its pod and device, or the request."""
    if isinstance(cause, Request):
        return {"request": cause.by}
    return {"fault": cause.id, "pod": str(cause.pod), "device": cause.device}


def request_of(restart: Restart, *, key: GangKey, members: int) -> Request:
    """Return what a Restart object asks for. ``members`` is the gang's size, which a percentage refers to."""
    return Request(
        gang=key,
        by=restart.id,
        why=restart.spec.reason,
        at=restart.created_at,
        max_unavailable=restart.spec.unavailable(members),
    )


def limits(policy: Limits, restart: Restart | None) -> Limits:
    """Return a round's limits: the operator's, but for what its Restart object asks."""
    if restart is None or restart.spec.timeout_seconds is None:
        return policy
    return replace(policy, whole=float(restart.spec.timeout_seconds))


def cancelled() -> Cancelled:
    """Return the event of a Restart object's deletion."""
    return Cancelled("its Restart object was deleted")


def owner_of(key: GangKey, members: Sequence[Member]) -> Owner | None:
    """Return who owns all of a gang, where its pods say so: then its Restart objects go with it."""
    if key.kind != "Job":
        return None
    return next((member.owner for member in members if member.owner is not None and member.owner.kind == "Job"), None)


def past_of(cause: Cause, *, members: Iterable[Member], now: float) -> Past:
    """Return how the budget counts a round that begins now."""
    if isinstance(cause, Request):
        return Past(at=now, fault_at=cause.at)
    slot = next((member.slot for member in members if member.pod.uid == cause.pod.uid), "")
    return Past(at=now, fault_at=cause.at, slot=slot, code=cause.code)


def history(key: GangKey, *, uid: str, restarts: Iterable[Restart], begun: Mapping[str, Past]) -> tuple[Past, ...]:
    """Return a gang's rounds so far, oldest first: those of former leaders by their objects, ``begun`` by this one.

    ``uid`` is of what the gang is named after: rounds of a former one of that name do not count. Empty: all do.
    """
    former = (
        status.past(restart.status, created_at=restart.created_at)
        for restart in restarts
        if restart.is_round and restart.gang == key and restart.id not in begun and same_uid(restart.gang_uid, uid)
    )
    return tuple(sorted((*former, *begun.values()), key=lambda each: each.at))


def same_uid(one: str, other: str) -> bool:
    """Whether two gangs of one name are the same, as far as it is known what they are named after."""
    return not one or not other or one == other


def refused(decision: Decision, *, now: float) -> dict[str, Any]:
    """Return the status of a request that is not carried out."""
    return {
        "phase": "Refused",
        "decision": {"kind": decision.kind.value, "reason": decision.reason.value, "detail": decision.detail},
        "completionTime": timestamps.rfc3339(now),
    }


def failed(told: Mapping[str, Any], *, reason: str, why: str, now: float) -> dict[str, Any]:
    """Return the status of a round that cannot be gone on with; ``told`` is what was said of it before."""
    failure = {"member": "", "node": "", "reason": reason, "message": why}
    before = {name: value for name, value in told.items() if name != "resume"}
    return {
        **before,
        "phase": Phase.FAILED.value,
        "completionTime": timestamps.rfc3339(now),
        "failures": [failure],
    }


def tell_refusal(cause: Cause, decision: Decision, *, outside: Outside) -> None:
    """Tell on the pod that its gang is not restarted, and why: somebody has to look after it."""
    assert isinstance(cause, Fault)
    outside.events.tell(
        ObjectRef("v1", "Pod", cause.pod.namespace, cause.pod.name, cause.pod.uid),
        reason=decision.reason.value,
        message=f"gang {cause.gang} is not restarted after {cause.message}: {decision.detail}",
        warning=True,
        subject=str(cause.gang),
        may_repeat=True,
    )


def tell_end(ended: Round, *, outside: Outside) -> None:
    """Count, log, trace and announce a round's end."""
    told = status.render(ended)
    phase, took = ended.phase, told.get("timings", {}).get("totalMilliseconds")
    counting.count_end(ended, told, metrics=outside.metrics, gpus=outside.gpus)
    if outside.trace is not None:
        outside.trace(spans.of_round(ended, told))
    log.info(
        "round.ended",
        round=ended.ref.id,
        gang=str(ended.ref.gang),
        attempt=ended.ref.attempt,
        phase=phase.value,
        reason=ended.reason,
        detail=ended.detail,
        members=told.get("members"),
        timings=told.get("timings"),
        failures=told.get("failures"),
    )
    restart = outside.restarts.restarts().get(ended.ref.id)
    if restart is None:
        return
    counts = told.get("members", {})
    outside.events.tell(
        ObjectRef(names.API_VERSION, names.KIND, restart.namespace, restart.name, restart.uid),
        reason=f"Round{phase.value}",
        message=f"attempt {ended.ref.attempt} of {ended.ref.gang}: {counts.get('running', 0)} of "
        f"{counts.get('total', 0)} members run after {took} ms",
        warning=phase is not Phase.DONE,
    )
