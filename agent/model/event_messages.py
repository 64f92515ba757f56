"""Messages that kubemend records as Kubernetes Events. Conditions show states, Events show what happened."""

import enum
from dataclasses import dataclass

from kubemend.agent.model.workloads import PodRef


class Level(enum.Enum):
    """The two Event types of Kubernetes."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class EventMessage:
    """One occurrence that concerns a pod, or (``about`` None) this node.

    ``reason`` is CamelCase and stable, ``message`` is for people, ``at`` is Unix time. ``subject`` (a device, a
    container) separates messages with the same reason on the same object. Messages that agree in object, reason and
    subject form one series: recorded once and then counted. ``container`` names the container concerned, if any.
    """

    about: PodRef | None
    reason: str
    message: str
    at: float
    level: Level = Level.WARNING
    subject: str = ""
    container: str = ""
