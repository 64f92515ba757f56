"""Gangs and their members, as the API server has them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, NewType

from kubemend.common import coordination
from kubemend.common.gangs import GangKey

PodRef = coordination.PodRef
PodUid = coordination.PodUid
NodeName = NewType("NodeName", str)


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

    ``slot`` survives its recreation (``common.gangs.slot``). ``node`` is empty until it is scheduled.
    ``restart_policy`` is the pod's own. ``annotations`` are only those of kubemend. ``created_at`` is Unix time by the
    API server's clock, whole seconds; 0 if it is not known. ``targets`` are the containers to restart
    (``common.targets``); none if that is not known. ``gang_uid`` is the UID of the object that the gang is named after
    (its JobSet or Job; if only a label forms the gang, the pod's controller): another object of the same name is
    another gang. Empty if it is not known. ``left_out``: its Job would not count its end
    (``controller.gangs.job_accounting.is_left_out``). ``device_failure``: the pod is being deleted because of a device
    of its node, and this is the fault's code; "" for any other pod. ``eviction_requested``: an EvictionRequest asks for
    its eviction (``controller.watches.evictions``).
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
    left_out: bool = False
    device_failure: str = ""
    eviction_requested: bool = False

    @property
    def is_over(self) -> bool:
        """Return whether it has ended and never runs again."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: ``ready`` None is Unknown (kubelet does not report).

    ``out_of_service``: it has that taint (KEP-2268), so its pods are known to be dead. ``kept_off``: it has kubemend's
    taint, which keeps new pods off a failed device. ``leaving``: its maintenance is planned (KEP-5683), and the
    scheduler puts no new pods there. ``addresses``: from which its processes connect to pods, as far as the object
    names them.
    """

    name: NodeName
    ready: bool | None
    out_of_service: bool = False
    kept_off: bool = False
    leaving: bool = False
    addresses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node has changed. ``view`` None: the node no longer exists."""

    name: NodeName
    view: NodeView | None


class Sample(NamedTuple):
    """One device of one member (coordination/v1 ``DeviceSample``).

    No dataclass: thousands come in each second.

    ``utilization`` is 0 to 1, ``clock`` a ratio to the device's maximum, ``power`` a ratio to its limit. Each is
    negative if it is not known.
    """

    pod: PodUid
    device: str
    utilization: float
    clock: float
    power: float
