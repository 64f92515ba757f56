"""A verdict: the health of one device, folded from its findings."""

import enum
from dataclasses import dataclass

from kubemend.agent.model.actions import ActionClass


class Health(enum.Enum):
    """Health of a device. ``UNKNOWN`` never counts as healthy."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


_RANK = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.DEGRADED: 2, Health.UNHEALTHY: 3}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The health of a device, the action it needs, and the time since when.

    ``reason`` is CamelCase and stable (``Xid79``); ``message`` is for people; ``since`` is the Unix time of the first
    evidence, or 0 when there is none.
    """

    device: str
    health: Health
    action: ActionClass
    reason: str
    message: str
    since: float = 0.0

    @property
    def gravity(self) -> tuple[int, int]:
        """Return its order among others: a known fault takes precedence over an unknown state."""
        return _RANK[self.health], self.action.severity
