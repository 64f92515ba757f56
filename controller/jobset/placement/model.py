"""Pods that want a domain for themselves, pods and Jobs that hold one, and the nodes that domains are made of."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from controller.jobset.model import NO_STRINGS


@dataclass(frozen=True, order=True, slots=True)
class Domain:
    """All nodes whose label ``topology`` has this value: a rack, a node pool."""

    topology: str
    value: str

    def __str__(self) -> str:
        return f"{self.topology}={self.value}"


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint with effect NoSchedule or NoExecute; PreferNoSchedule keeps nobody off."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's; empty ``key`` and ``effect`` mean every one. ``exists``: whatever the taint's value is."""

    key: str
    exists: bool
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """One NodeSelectorRequirement; ``of_field``: about the node's name instead of a label."""

    key: str
    operator: str
    values: tuple[str, ...]
    of_field: bool = False


@dataclass(frozen=True, slots=True)
class Needs:
    """What a pod needs of its node; pods of one template need the same.

    ``terms`` is its required node affinity: one of them must hold, each whole; None where it has none.
    ``requests`` are amounts by resource.
    """

    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] | None = None
    requests: tuple[tuple[str, Fraction], ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of any JobSet's Job. ``job`` is its Job's key (``naming.job_key``), unique in the cluster.

    ``topology``: the label whose values are domains, where its Job is to have one for itself, else empty. ``node``:
    empty until it is bound. ``gates`` are its scheduling gates, ours among them while it waits for a domain. ``over``:
    it has ended and holds nothing; one that is being deleted still does. Of the ``needs`` of one that does not wait
    only the selector is known.
    """

    namespace: str
    name: str
    uid: str
    job: str
    topology: str = ""
    node: str = ""
    gates: tuple[str, ...] = ()
    over: bool = False
    needs: Needs = Needs()
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node. ``usable``: ready, and not cordoned. ``allocatable`` are amounts by resource."""

    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: NO_STRINGS)
    usable: bool = True
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, Fraction] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seeker:
    """A Job of which pods may wait. ``pods``: how many run at once, though they are created a few at a time."""

    job: str
    name: str
    pods: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A Job has this domain, and these pods of it may go there."""

    job: str
    domain: Domain
    pods: tuple[Pod, ...]


class Reason(enum.Enum):
    """Why a Job's pods go on waiting."""

    NO_DOMAIN = "NoDomain"
    NO_ROOM = "NoRoom"
    ALL_HELD = "AllHeld"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A Job whose pods go on waiting; ``message`` is for people."""

    job: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Placements:
    """What comes of one look."""

    assigned: tuple[Assignment, ...] = ()
    waiting: tuple[Waiting, ...] = ()
