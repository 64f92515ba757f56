"""Conditions that kubemend publishes in the status of pods and nodes."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubemend.common import conditions, plain

PREFIX: Final = "kubemend.io/"
"""Prefix of every condition type of kubemend."""

DEVICES_HEALTHY: Final = PREFIX + "DevicesHealthy"
DEVICE_FAILURE: Final = conditions.DEVICE_FAILURE
IN_PLACE_RESTART: Final = PREFIX + "InPlaceRestart"
WARM_SPARE: Final = PREFIX + "WarmSpare"


class ConditionStatus(enum.Enum):
    """The three condition statuses of Kubernetes."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


_BY_VALUE: Final = {status.value: status for status in ConditionStatus}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. ``reason`` is CamelCase and stable, ``message`` is for people.

    It is one line without control characters, because ``kubectl`` prints it as it is, and it may have parts that a pod
    has chosen: the path of its heartbeat file, the name of a thread.
    """

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", plain.text(self.message))


def ours(status: Mapping[str, Any]) -> Iterator[Condition]:
    """Yield kubemend's conditions in the status of a pod or node. A status unknown to Kubernetes reads as Unknown."""
    for condition in status.get("conditions") or ():
        if condition["type"].startswith(PREFIX):
            yield Condition(
                type=condition["type"],
                status=_BY_VALUE.get(condition.get("status", ""), ConditionStatus.UNKNOWN),
                reason=condition.get("reason", ""),
                message=condition.get("message", ""),
            )
