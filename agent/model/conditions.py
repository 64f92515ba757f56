"""Conditions: what kubemend says about a pod or node in its status."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from common import conditions

PREFIX: Final = "kubemend.io/"
"""Every condition of ours has a type that begins with this."""

DEVICES_HEALTHY: Final = PREFIX + "DevicesHealthy"
DEVICE_FAILURE: Final = conditions.DEVICE_FAILURE
IN_PLACE_RESTART: Final = PREFIX + "InPlaceRestart"


class ConditionStatus(enum.Enum):
    """The three values that Kubernetes knows."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


_BY_VALUE: Final = {status.value: status for status in ConditionStatus}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. ``reason`` is CamelCase and stable, ``message`` is for people."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


def ours(status: Mapping[str, Any]) -> Iterator[Condition]:
    """Yield our conditions in the status of a pod or node; a status that Kubernetes does not know reads as Unknown."""
    for condition in status.get("conditions") or ():
        if condition["type"].startswith(PREFIX):
            yield Condition(
                type=condition["type"],
                status=_BY_VALUE.get(condition.get("status", ""), ConditionStatus.UNKNOWN),
                reason=condition.get("reason", ""),
                message=condition.get("message", ""),
            )
