"""Convert values of the journal to JSON and back; unknown input is refused."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kubemend.agent.health.catalog.catalog import FaultKey
from kubemend.agent.health.state import recurrence
from kubemend.agent.health.state.fold import ActiveFault, HealthState
from kubemend.agent.model import rounds
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerRole, PodRef, PodUid, SandboxId
from kubemend.agent.restart import intents
from kubemend.agent.restart.counts import Begun
from kubemend.common.coordination import OrderKind, StepPhase

_INTENT_VERSION = 2
_RECORD_VERSION = 1
UNREADABLE: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of parsing what another version of the agent, or a failing disk, has written."""
_LONGEST_REASON: Final = 200


def shortened(error: Exception) -> str:
    """Return the text of an error of ``UNREADABLE``: one of decoding has all that was read."""
    return repr(error)[:_LONGEST_REASON]


def intent_to_json(intent: intents.AnyIntent) -> str:
    """Serialise an intent."""
    raw = {
        "version": _INTENT_VERSION,
        "id": intent.id,
        "namespace": intent.target.pod.namespace,
        "pod": intent.target.pod.name,
        "uid": intent.target.pod.uid,
        "container": intent.target.name,
        "sandbox": intent.sandbox_id,
        "reason": intent.reason,
        "createdAt": intent.created_at,
        "grace": intent.grace_seconds,
        "strategy": intent.strategy.value,
    }
    return json.dumps(raw | _KINDS[type(intent)].encode(intent))


def intent_from_json(text: str | bytes) -> intents.AnyIntent:
    """Parse an intent. Raises an error of ``UNREADABLE`` if it is not valid.

    Version 1, which has no version field, supports single containers only; otherwise it is the same.
    """
    raw = json.loads(text)
    version = raw.get("version", 1)
    if version not in (1, _INTENT_VERSION):
        raise ValueError(f"the intent has version {version}, this agent reads version {_INTENT_VERSION}")
    common: dict[str, Any] = {
        "id": raw["id"],
        "target": _target(raw),
        "sandbox_id": SandboxId(raw["sandbox"]),
        "reason": raw["reason"],
        "created_at": raw["createdAt"],
        "grace_seconds": raw["grace"],
        "strategy": intents.Strategy(raw["strategy"]),
    }
    for kind in _KINDS.values():
        if kind.field in raw:
            return kind.decode(raw, common)
    raise ValueError(f"the intent {common['id']} is of no known kind")


def target_from_json(text: str | bytes) -> ContainerRef | None:
    """Return the target of an intent that another version of the agent may have written; None if it has none."""
    try:
        target = _target(json.loads(text))
    except UNREADABLE:
        return None
    texts = (target.pod.namespace, target.pod.name, target.pod.uid, target.name)
    return target if all(isinstance(each, str) for each in texts) else None


def _target(raw: Mapping[str, Any]) -> ContainerRef:
    pod = PodRef(namespace=raw["namespace"], name=raw["pod"], uid=PodUid(raw["uid"]))
    return ContainerRef(pod=pod, name=raw["container"])


def _swap_to_raw(intent: intents.Intent) -> dict[str, Any]:
    return {
        "old": intent.old,
        "oldAttempt": intent.old_attempt,
        "order": intent.order.value,
        "emptyCacheAfter": intent.empty_cache_after,
        "completes": intent.completes,
    }


def _swap_from_raw(raw: Mapping[str, Any], common: Mapping[str, Any]) -> intents.Intent:
    return intents.Intent(
        **common,
        old=ContainerId(raw["old"]),
        old_attempt=raw["oldAttempt"],
        order=intents.SwapOrder(raw["order"]),
        empty_cache_after=raw.get("emptyCacheAfter", 0),  # missing in the intents of older agents
        completes=raw.get("completes", False),  # the same
    )


def _pod_to_raw(intent: intents.PodIntent) -> dict[str, Any]:
    plan = [_planned_to_raw(item) for item in intent.plan]
    return {"plan": plan, "trigger": intent.trigger, "completes": intent.completes}


def _pod_from_raw(raw: Mapping[str, Any], common: Mapping[str, Any]) -> intents.PodIntent:
    trigger = ContainerId(raw["trigger"]) if raw["trigger"] else None
    plan = tuple(map(_planned_from_raw, raw["plan"]))
    completes = raw.get("completes", False)  # missing in the intents of older agents
    return intents.PodIntent(**common, plan=plan, trigger=trigger, completes=completes)


def _process_to_raw(intent: intents.ProcessIntent) -> dict[str, Any]:
    return {"containerId": intent.container, "program": intent.program}


def _process_from_raw(raw: Mapping[str, Any], common: Mapping[str, Any]) -> intents.ProcessIntent:
    return intents.ProcessIntent(**common, container=ContainerId(raw["containerId"]), program=raw["program"])


@dataclass(frozen=True, slots=True)
class _Kind:
    """The stored fields of one kind of intent that not all kinds have. ``field`` is in entries of this kind only."""

    field: str
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[Mapping[str, Any], Mapping[str, Any]], intents.AnyIntent]


_KINDS: Final[Mapping[type[intents.AnyIntent], _Kind]] = MappingProxyType(
    {
        intents.Intent: _Kind("old", _swap_to_raw, _swap_from_raw),
        intents.PodIntent: _Kind("plan", _pod_to_raw, _pod_from_raw),
        intents.ProcessIntent: _Kind("containerId", _process_to_raw, _process_from_raw),
    }
)


def _planned_to_raw(planned: intents.Planned) -> dict[str, Any]:
    return {
        "name": planned.name,
        "role": planned.role.value,
        "old": list(planned.old),
        "oldAttempt": planned.old_attempt,
        "startupProbe": planned.has_startup_probe,
    }


def _planned_from_raw(raw: Mapping[str, Any]) -> intents.Planned:
    return intents.Planned(
        name=raw["name"],
        role=ContainerRole(raw["role"]),
        old=tuple(map(ContainerId, raw["old"])),
        old_attempt=raw["oldAttempt"],
        has_startup_probe=raw["startupProbe"],
    )


def names_to_json(names: frozenset[str]) -> str:
    """Serialise names."""
    return json.dumps(sorted(names))


def begun_from_row(
    pod: object, names: object, at: object, fault_at: object, device: object
) -> tuple[Begun | None, str]:
    """Parse a counted restart, whose texts are bytes; return also what of it cannot be read, "" if all can.

    Without its pod or its time it is None; the rest has a substitute.
    """
    try:
        if not (isinstance(pod, bytes) and isinstance(at, float)):
            raise TypeError("the pod is no text, or the time no number")
        uid, unread = PodUid(pod.decode()), []
    except UNREADABLE as error:
        return None, f"a restart of an unknown pod or time: {shortened(error)}"
    containers: frozenset[str] = frozenset()
    try:
        containers = _names_from_json(names)
    except UNREADABLE:
        unread.append("containers")
    if not isinstance(fault_at, float):
        unread.append("time of the fault")
        fault_at = at
    device_name = device.decode(errors="replace") if isinstance(device, bytes) else None
    return Begun(uid, containers, at, fault_at, device_name), f"{', '.join(unread)} of pod {uid}" if unread else ""


def _names_from_json(text: object) -> frozenset[str]:
    names = json.loads(text) if isinstance(text, bytes) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("the names are no list of texts")
    return frozenset(names)


def record_to_json(record: rounds.Record) -> str:
    """Serialise the record of a member in a round."""
    order, step_result = record.order, record.step_result
    return json.dumps(
        {
            "version": _RECORD_VERSION,
            "namespace": record.pod.namespace,
            "pod": record.pod.name,
            "uid": record.pod.uid,
            "boot": record.boot,
            "renewedAt": record.renewed_at,
            "writtenAt": record.written_at,
            "names": sorted(record.names),
            "released": record.released,
            "order": {
                "round": order.round,
                "attempt": order.attempt,
                "pod": order.pod,
                "kind": order.kind.value,
                "causeCode": order.cause_code,
                "causeMessage": order.cause_message,
                "holdSeconds": order.hold_seconds,
                "containers": sorted(order.containers),
                "strategy": order.strategy,
                "grace": order.grace_seconds,
            },
            "stepResult": {
                "phase": step_result.phase.value,
                "reason": step_result.reason,
                "detail": step_result.detail,
                "seconds": dict(step_result.seconds),
                "unheldSeconds": step_result.unheld_seconds,
            },
        }
    )


def record_from_json(text: str | bytes) -> rounds.Record:
    """Parse a record. Raises an error of ``UNREADABLE`` if it is not valid."""
    raw = json.loads(text)
    if raw["version"] != _RECORD_VERSION:
        raise ValueError(f"the record has version {raw['version']}, this agent reads version {_RECORD_VERSION}")
    pod = PodRef(namespace=raw["namespace"], name=raw["pod"], uid=PodUid(raw["uid"]))
    order, step_result = raw["order"], raw["stepResult"]
    return rounds.Record(
        order=rounds.Order(
            round=order["round"],
            attempt=order["attempt"],
            pod=PodUid(order["pod"]),
            kind=OrderKind(order["kind"]),
            cause_code=order["causeCode"],
            cause_message=order["causeMessage"],
            hold_seconds=order["holdSeconds"],
            containers=frozenset(order["containers"]),
            strategy=order["strategy"],
            grace_seconds=order["grace"],
        ),
        pod=pod,
        step_result=rounds.StepResult(
            round=order["round"],
            pod=pod,
            phase=StepPhase(step_result["phase"]),
            reason=step_result["reason"],
            detail=step_result["detail"],
            seconds=MappingProxyType(dict(step_result["seconds"])),
            unheld_seconds=step_result["unheldSeconds"],
            attempt=order["attempt"],
        ),
        boot=raw["boot"],
        renewed_at=raw["renewedAt"],
        written_at=raw["writtenAt"],
        names=frozenset(raw["names"]),
        released=raw["released"],
    )


def health_to_json(state: HealthState) -> str:
    """Serialise the active faults of every device, and the place in the kernel log up to which they are folded."""
    devices = {
        device: [_active_fault_to_raw(fault) for fault in active_faults]
        for device, active_faults in state.devices.items()
    }
    return json.dumps({"bootId": state.boot_id, "devices": devices, "newestKey": state.newest_key})


def health_from_json(text: str) -> HealthState:
    """Parse active faults. Raises KeyError or ValueError if they are not valid. Older agents stored no key."""
    raw = json.loads(text)
    devices = {
        device: tuple(_active_fault_from_raw(item) for item in items) for device, items in raw["devices"].items()
    }
    return HealthState(
        boot_id=raw["bootId"], devices=MappingProxyType(devices), newest_key=str(raw.get("newestKey", ""))
    )


def _active_fault_to_raw(fault: ActiveFault) -> dict[str, Any]:
    return {
        "kind": fault.kind.value,
        "code": fault.code,
        "action": fault.action.value,
        "firstSeen": fault.first_seen,
        "lastSeen": fault.last_seen,
        "text": fault.text,
        "count": fault.count,
    }


def _active_fault_from_raw(raw: Mapping[str, Any]) -> ActiveFault:
    return ActiveFault(
        kind=FindingKind(raw["kind"]),
        code=raw["code"],
        action=ActionClass(raw["action"]),
        first_seen=raw["firstSeen"],
        last_seen=raw["lastSeen"],
        text=raw["text"],
        count=raw["count"],
    )


def recurrence_to_json(history: recurrence.History) -> str:
    """Serialise the faults that count when they repeat."""
    faults = [
        {
            "device": fault.device,
            "kind": fault.key.kind.value,
            "code": fault.key.code,
            "same": list(fault.same),
            "came": [[each.at, each.pod] for each in occurrences],
        }
        for fault, occurrences in history.faults.items()
    ]
    return json.dumps(faults)


def recurrence_from_json(text: str) -> recurrence.History:
    """Parse them. Raises KeyError, TypeError or ValueError if they are not valid."""
    faults = {
        recurrence.Fault(raw["device"], FaultKey(FindingKind(raw["kind"]), raw["code"]), tuple(raw["same"])): tuple(
            recurrence.Occurrence(at, pod) for at, pod in raw["came"]
        )
        for raw in json.loads(text)
    }
    return recurrence.History(MappingProxyType(faults))
