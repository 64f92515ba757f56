"""The patch that brings conditions in the API to what they should be. Pure."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from agent.model.conditions import Condition


def merge(
    *, desired: Mapping[str, Condition], known: Mapping[str, Condition], uid: str, now: float
) -> dict[str, Any] | None:
    """Return a strategic merge patch for a status subresource, or None when nothing differs.

    ``desired`` and ``known`` are keyed by type; ``now`` is Unix time. Lists of conditions merge by ``type``, so other
    writers' conditions stay. ``lastTransitionTime`` is sent only when the status changes; otherwise the merge keeps
    the old one (API conventions, "typical status properties"). The UID is a precondition: a new object of the same
    name is never patched.
    """
    changed = [
        _entry(condition, known.get(condition.type), now=now)
        for condition in desired.values()
        if known.get(condition.type) != condition
    ]
    return {"metadata": {"uid": uid}, "status": {"conditions": changed}} if changed else None


def _entry(condition: Condition, before: Condition | None, *, now: float) -> dict[str, str]:
    entry = {
        "type": condition.type,
        "status": condition.status.value,
        "reason": condition.reason,
        "message": condition.message,
    }
    if before is None or before.status is not condition.status:
        entry["lastTransitionTime"] = _rfc3339(now)
    return entry


def _rfc3339(now: float) -> str:
    return dt.datetime.fromtimestamp(int(now), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
