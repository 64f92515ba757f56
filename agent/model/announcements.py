"""Announcements: what kubemend tells people in Kubernetes Events. Conditions say what holds, these what happened."""

import enum
from dataclasses import dataclass

from agent.model.workloads import PodRef


class Level(enum.Enum):
    """The two types of Event that Kubernetes knows."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Announcement:
    """One thing that happened to a pod, or (``about`` None) to this node.

    ``reason`` is CamelCase and stable, ``message`` for people, ``at`` Unix time. ``subject`` tells apart what has the
    same reason on the same object (a device, a container): what agrees in all three is one story, told once and then
    counted. ``container`` is the one that it is about, where it is about one.
    """

    about: PodRef | None
    reason: str
    message: str
    at: float
    level: Level = Level.WARNING
    subject: str = ""
    container: str = ""
