"""Pods that wait for a domain, pods and Jobs that occupy one, and the nodes of domains."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from kubemend.controller.jobset.spec.model import NO_STRINGS


@dataclass(frozen=True, order=True, slots=True)
class Domain:
    """All nodes whose label ``topology`` has this value: a rack, a node pool."""

    topology: str
    value: str

    def __str__(self) -> str:
        return f"{self.topology}={self.value}"


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint with effect NoSchedule or NoExecute; PreferNoSchedule excludes no pod."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration; empty ``key`` and ``effect`` match all. ``exists``: any value of the taint matches."""

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
    """A pod's requirements for its node; pods of one template have the same.

    ``terms`` is its required node affinity: one of them must hold, each completely; None if it has none. ``requests``
    are amounts by resource.
    """

    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    terms: tuple[tuple[Requirement, ...], ...] | None = None
    requests: tuple[tuple[str, Fraction], ...] = ()


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of any JobSet's Job. ``job`` is its Job's key (``naming.job_key``), unique in the cluster.

    ``topology``: the label whose values are domains, if its Job is to have one for itself, else empty. ``node``: empty
    until it is bound. ``gates`` are its scheduling gates, including kubemend's while it waits for a domain. ``over``:
    it has ended and occupies nothing; a pod that is being deleted still does. Of the ``needs`` of a pod that does not
    wait only the selector is known.
    """

    namespace: str
    name: str
    uid: str
    job: str
    topology: str = ""
    node: str = ""
    gates: tuple[str, ...] = ()
    over: bool = False
    deleting: bool = False
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
    """A Job whose pods may wait. ``pods``: how many run at once, though they are created a few at a time."""

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
    """Why a Job's pods must still wait."""

    NO_DOMAIN = "NoDomain"
    NO_ROOM = "NoRoom"
    ALL_HELD = "AllHeld"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A Job whose pods must still wait; ``message`` is readable text."""

    job: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Placements:
    """The result of one placement."""

    assigned: tuple[Assignment, ...] = ()
    waiting: tuple[Waiting, ...] = ()
