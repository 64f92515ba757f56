"""Compute the patch from the conditions in the API to the desired ones. Pure."""

from collections.abc import Mapping
from typing import Any

from kubemend.agent.model.conditions import Condition
from kubemend.common.kube import timestamps


def merge(
    *, desired: Mapping[str, Condition], known: Mapping[str, Condition], uid: str, now: float, heartbeat: bool = False
) -> dict[str, Any] | None:
    """Return a strategic merge patch for a status subresource, or None if nothing differs.

    ``desired`` and ``known`` are keyed by type; ``now`` is Unix time. Lists of conditions merge by ``type``, so other
    writers' conditions stay. ``lastTransitionTime`` is sent only when the status changes; otherwise the merge keeps the
    old one (API conventions, "typical status properties"). The UID is a precondition: a new object of the same name is
    never patched. With ``heartbeat`` every condition is sent, changed or not, with the time at which it was last known
    to hold: only nodes' conditions have a field for that (core/v1 ``NodeCondition``).
    """
    changed = [
        _entry(condition, known.get(condition.type), now=now, heartbeat=heartbeat)
        for condition in desired.values()
        if heartbeat or known.get(condition.type) != condition
    ]
    return {"metadata": {"uid": uid}, "status": {"conditions": changed}} if changed else None


def _entry(condition: Condition, before: Condition | None, *, now: float, heartbeat: bool) -> dict[str, str]:
    entry = {
        "type": condition.type,
        "status": condition.status.value,
        "reason": condition.reason,
        "message": condition.message,
    }
    if heartbeat:
        entry["lastHeartbeatTime"] = timestamps.rfc3339(now)
    if before is None or before.status is not condition.status:
        entry["lastTransitionTime"] = timestamps.rfc3339(now)
    return entry
