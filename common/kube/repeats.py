"""Count the occurrences of an Event, in both API groups. Pure.

In events.k8s.io only ``series`` of an existing Event may change (``ValidateEventUpdate``); in the core group ``count``,
``lastTimestamp`` and the message may, as in kubelet's own.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from kubemend.common.kube import timestamps

Object = dict[str, Any]

CORE: Final = "v1"
"""``apiVersion`` of Events of the core group."""


def core(*, message: str, count: int, at: float) -> Object:
    """Return the changed fields of a core Event with ``count`` occurrences, the last one ``at`` (Unix)."""
    return {"message": message, "count": count, "lastTimestamp": timestamps.rfc3339(at)}


def again(body: Mapping[str, Any], *, count: int, at: float) -> Object:
    """Return the patch of an Event that ``body`` would create, with ``count`` occurrences, the last one ``at``."""
    if body.get("apiVersion") == CORE:
        return core(message=str(body.get("message") or ""), count=count, at=at)
    moment = dt.datetime.fromtimestamp(at, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"series": {"count": count, "lastObservedTime": moment}}


def occurrences(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return the occurrences of an existing Event, and the last one (whole Unix seconds; 0: unknown)."""
    counted = event.get("series") or {}
    last = counted.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return int(counted.get("count") or event.get("count") or 1), timestamps.unix(last) if last else 0
