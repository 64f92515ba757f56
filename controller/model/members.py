"""Gangs and their members, as the API server tells of them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NewType

from common.gangs import GangKey

PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)


@dataclass(frozen=True, order=True, slots=True)
class PodRef:
    """A pod by name and identity."""

    namespace: str
    name: str
    uid: PodUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodPhase(enum.Enum):
    """A pod's ``status.phase``."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, order=True, slots=True)
class Owner:
    """A pod's or a Job's controller."""

    api_group: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of a gang.

    ``slot`` is what survives its recreation (``common.gangs.slot``). ``node`` is empty until it is scheduled.
    ``restart_policy`` is the pod's own. ``annotations`` are those of kubemend alone. ``created_at`` is Unix time by the
    API server's clock, whole seconds; 0 where it is not known. ``targets`` are the containers that restarts are for
    (``common.targets``); none where that is not known. ``gang_uid`` is the UID of what the gang is named after (its
    JobSet or Job; the pod's controller where a label alone binds): another one of the same name is another gang. Empty
    where that is not known.
    """

    pod: PodRef
    gang: GangKey
    slot: str
    node: NodeName
    phase: PodPhase
    deleting: bool = False
    restart_policy: str = "Always"
    owner: Owner | None = None
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    created_at: float = 0.0
    targets: frozenset[str] = frozenset()
    gang_uid: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has come to its end and never runs again."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: ``ready`` None is Unknown (kubelet does not report).

    ``out_of_service``: it carries that taint (KEP-2268), so its pods are known to be dead. ``kept_off``: it carries
    the one by which we keep new pods off a device that has failed.
    """

    name: NodeName
    ready: bool | None
    out_of_service: bool = False
    kept_off: bool = False
