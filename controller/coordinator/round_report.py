"""Turn a cause into a round's record, and report the round's end in the log, metrics, traces and Events."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from kubemend.common.gangs import GangKey
from kubemend.common.kube import timestamps
from kubemend.controller.coordinator import round_metrics, spans
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.decisions.facts import Decision
from kubemend.controller.gangs.budget import Past
from kubemend.controller.model.faults import Cause, Fault, Request
from kubemend.controller.model.members import Member, Owner
from kubemend.controller.model.rounds import Cancelled
from kubemend.controller.restarts import names
from kubemend.controller.restarts.events import ObjectRef
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.rounds import status
from kubemend.controller.rounds.states import Limits, Phase, Round

log = structlog.get_logger(__name__)

REQUESTED = "Requested"
"""The code of a round that was requested."""

NOT_RESUMED = "NotResumed"
"""The reason of a round that a new leader cannot resume."""

LOST = "RoundLost"
"""The code of a round that takes over the members of one whose object was never written."""

INTERNAL = "Internal"
"""The reason of a round or request that ends with an internal error."""


def code_of(cause: Cause) -> str:
    """Return a cause's short and stable name."""
    return cause.code if isinstance(cause, Fault) else REQUESTED


def message_of(cause: Cause) -> str:
    """Return a cause as readable text."""
    return cause.message if isinstance(cause, Fault) else f"request of {cause.by}: {cause.reason}".removesuffix(": ")


def ids_of(cause: Cause) -> dict[str, str]:
    """Return a cause's identifiers for the log: the fault with its pod and device, or the request."""
    if isinstance(cause, Request):
        return {"request": cause.by}
    return {"fault": cause.id, "pod": str(cause.pod), "device": cause.device}


def request_of(restart: Restart, *, key: GangKey, members: int) -> Request:
    """Return the request in a Restart object. ``members`` is the gang's size, which a percentage refers to."""
    return Request(
        gang=key,
        by=restart.id,
        reason=restart.spec.reason,
        at=restart.created_at,
        max_unavailable=restart.spec.unavailable(members),
    )


def limits(policy: Limits, restart: Restart | None) -> Limits:
    """Return a round's limits: the operator's, unless its Restart object overrides them."""
    if restart is None:
        return policy
    whole = policy.whole if restart.spec.timeout_seconds is None else float(restart.spec.timeout_seconds)
    return replace(policy, whole=whole, grace=restart.spec.grace_seconds)


def cancelled() -> Cancelled:
    """Return the event of a Restart object's deletion."""
    return Cancelled("its Restart object was deleted")


def owner_of(key: GangKey, members: Sequence[Member]) -> Owner | None:
    """Return the owner of the whole gang if its pods name one: its Restart objects are deleted with it."""
    if key.kind != "Job":
        return None
    return next((member.owner for member in members if member.owner is not None and member.owner.kind == "Job"), None)


def past_of(cause: Cause, *, members: Iterable[Member], now: float) -> Past:
    """Return the budget's record of a round that begins now."""
    if isinstance(cause, Request):
        return Past(at=now, fault_at=cause.at)
    slot = next((member.slot for member in members if member.pod.uid == cause.pod.uid), "")
    return Past(at=now, fault_at=cause.at, slot=slot, code=cause.code)


def history(restarts: Iterable[Restart], *, uid: str, begun: Mapping[str, Past]) -> tuple[Past, ...]:
    """Return a gang's rounds so far, oldest first: ``begun`` by this leader, previous leaders' from their objects.

    ``restarts`` are all objects of the gang. ``uid`` belongs to the object that the gang is named after: rounds of a
    previous object of that name do not count. If it is empty, all count.
    """
    former = (
        status.past(restart.status, created_at=restart.created_at)
        for restart in restarts
        if restart.is_round and restart.id not in begun and same_uid(restart.gang_uid, uid)
    )
    return tuple(sorted((*former, *begun.values()), key=lambda each: each.at))


def same_uid(one: str, other: str) -> bool:
    """Return whether two gangs of one name are the same. If either's UID is unknown, they are taken to be."""
    return not one or not other or one == other


def refused(decision: Decision, *, now: float) -> dict[str, Any]:
    """Return the status of a request that is not carried out."""
    return {
        "phase": "Refused",
        "decision": {"kind": decision.kind.value, "reason": decision.reason.value, "detail": decision.detail},
        "completionTime": timestamps.rfc3339(now),
    }


def failed(status: Mapping[str, Any], *, reason: str, message: str, now: float) -> dict[str, Any]:
    """Return the status of a round that cannot continue; ``status`` is the one so far."""
    failure = {"member": "", "node": "", "reason": reason, "message": message}
    before = {name: value for name, value in status.items() if name != "resume"}
    return {
        **before,
        "phase": Phase.FAILED.value,
        "completionTime": timestamps.rfc3339(now),
        "failures": [failure],
    }


def report_refusal(cause: Cause, decision: Decision, *, dependencies: Dependencies) -> None:
    """Record a warning Event on the pod: its gang is not restarted, why, and that the owner must act."""
    assert isinstance(cause, Fault)
    dependencies.events.record(
        ObjectRef("v1", "Pod", cause.pod.namespace, cause.pod.name, cause.pod.uid),
        reason=decision.reason.value,
        message=f"gang {cause.gang} is not restarted after {cause.message}: {decision.detail}",
        warning=True,
        subject=str(cause.gang),
        may_repeat=True,
    )


def report_end(ended: Round, *, dependencies: Dependencies) -> None:
    """Count, log and trace a round's end, and record an Event."""
    rendered = status.render(ended)
    phase, took = ended.phase, rendered.get("timings", {}).get("totalMilliseconds")
    round_metrics.count_end(ended, rendered, metrics=dependencies.metrics, gpus=dependencies.gpus)
    if dependencies.trace is not None:
        dependencies.trace(spans.of_round(ended, rendered))
    log.info(
        "round.ended",
        round=ended.ref.id,
        gang=str(ended.ref.gang),
        attempt=ended.ref.attempt,
        phase=phase.value,
        reason=ended.reason,
        detail=ended.detail,
        members=rendered.get("members"),
        timings=rendered.get("timings"),
        failures=rendered.get("failures"),
    )
    restart = dependencies.restarts.restarts().get(ended.ref.id)
    if restart is None:
        return
    counts = rendered.get("members", {})
    dependencies.events.record(
        ObjectRef(names.API_VERSION, names.KIND, restart.namespace, restart.name, restart.uid),
        reason=f"Round{phase.value}",
        message=f"attempt {ended.ref.attempt} of {ended.ref.gang}: {counts.get('running', 0)} of "
        f"{counts.get('total', 0)} members run after {took} ms",
        warning=phase is not Phase.DONE,
    )
