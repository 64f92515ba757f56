"""Values of the journal to JSON and back. Format version 1; a reader refuses what it does not know."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agent.health.fold import HealthState, Latch
from agent.model.actions import ActionClass
from agent.model.findings import FindingKind
from agent.model.workloads import ContainerId, ContainerRef, PodRef, PodUid, SandboxId
from agent.restart import intents


def intent_to_json(intent: intents.Intent) -> str:
    """Serialise an intent."""
    return json.dumps(
        {
            "id": intent.id,
            "namespace": intent.target.pod.namespace,
            "pod": intent.target.pod.name,
            "uid": intent.target.pod.uid,
            "container": intent.target.name,
            "sandbox": intent.sandbox_id,
            "old": intent.old,
            "oldAttempt": intent.old_attempt,
            "order": intent.order.value,
            "reason": intent.reason,
            "createdAt": intent.created_at,
            "grace": intent.grace_seconds,
            "strategy": intent.strategy.value,
        }
    )


def intent_from_json(text: str) -> intents.Intent:
    """Read an intent back. Raises KeyError or ValueError when it is not one of ours."""
    raw = json.loads(text)
    pod = PodRef(namespace=raw["namespace"], name=raw["pod"], uid=PodUid(raw["uid"]))
    return intents.Intent(
        id=raw["id"],
        target=ContainerRef(pod=pod, name=raw["container"]),
        sandbox_id=SandboxId(raw["sandbox"]),
        old=ContainerId(raw["old"]),
        old_attempt=raw["oldAttempt"],
        order=intents.Order(raw["order"]),
        reason=raw["reason"],
        created_at=raw["createdAt"],
        grace_seconds=raw["grace"],
        strategy=intents.Strategy(raw["strategy"]),
    )


def health_to_json(state: HealthState) -> str:
    """Serialise the latches of every device."""
    devices = {device: [_latch_to_raw(latch) for latch in latches] for device, latches in state.devices.items()}
    return json.dumps({"bootId": state.boot_id, "devices": devices})


def health_from_json(text: str) -> HealthState:
    """Read the latches back. Raises KeyError or ValueError when they are not ours."""
    raw = json.loads(text)
    devices = {device: tuple(_latch_from_raw(item) for item in items) for device, items in raw["devices"].items()}
    return HealthState(boot_id=raw["bootId"], devices=MappingProxyType(devices))


def _latch_to_raw(latch: Latch) -> dict[str, Any]:
    return {
        "kind": latch.kind.value,
        "code": latch.code,
        "action": latch.action.value,
        "firstSeen": latch.first_seen,
        "lastSeen": latch.last_seen,
        "text": latch.text,
        "count": latch.count,
    }


def _latch_from_raw(raw: Mapping[str, Any]) -> Latch:
    return Latch(
        kind=FindingKind(raw["kind"]),
        code=raw["code"],
        action=ActionClass(raw["action"]),
        first_seen=raw["firstSeen"],
        last_seen=raw["lastSeen"],
        text=raw["text"],
        count=raw["count"],
    )
