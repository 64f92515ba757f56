"""A verdict: the folded health of one device."""

import enum
from dataclasses import dataclass

from agent.model.actions import ActionClass


class Health(enum.Enum):
    """``UNKNOWN`` is a verdict of its own, never a kind of healthy."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about a device, what should be done, and since when.

    ``reason`` is CamelCase and stable (``Xid79``); ``message`` is for people; ``since`` is the Unix time of the
    first evidence, or 0 when there is none.
    """

    device: str
    health: Health
    action: ActionClass
    reason: str
    message: str
    since: float = 0.0
