"""A round: its values, its input (events) and its output (effects). The rules: ``controller.rounds``.

Effects may be lost, and are repeated until an event answers them. Events may arrive twice or out of order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.common.coordination import OrderKind, StepPhase
from kubemend.common.gangs import GangKey
from kubemend.controller.model.members import Member, NodeName, PodRef, PodUid


@dataclass(frozen=True, slots=True)
class StepResult:
    """An agent's result for one member (coordination/v1 ``StepResult``).

    ``seconds`` are the lengths of phases; ``unheld_seconds``: how long a successor ran before it was held.
    """

    pod: PodUid
    phase: StepPhase
    reason: str = ""
    detail: str = ""
    seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unheld_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PodGone:
    """The API server no longer has the pod, or its node is known to be dead: none of its containers runs."""

    pod: PodUid


@dataclass(frozen=True, slots=True)
class MemberDropped:
    """The pod is gone, and its owner creates no other one for it: it was scaled down, suspended or deleted."""

    pod: PodUid


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """The pod still exists, but in no gang or in another one: its labels were changed. Nothing of it has ended."""

    pod: PodUid


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A member is new or has changed: scheduled, running, over, being deleted. It may be a replacement."""

    member: Member


@dataclass(frozen=True, slots=True)
class FaultReported:
    """Another fault of a member of this gang during the round. ``at`` is Unix time; None: just now.

    ``needs_recreation``: one of its devices is not usable (its action class is ResetDevice, RebootNode or Replace).
    """

    pod: PodUid
    code: str
    message: str
    needs_recreation: bool = False
    at: float | None = None


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """Whether a node's agent is connected. ``lost``: by its Node object, the node is not ready or unreachable.

    ``out_of_service``: it has that taint (KEP-2268), so none of its pods runs.
    """

    node: NodeName
    connected: bool
    lost: bool = False
    out_of_service: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The request for the round was withdrawn, or the gang is deleted or suspended."""

    reason: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Only time has passed."""


RoundEvent = (
    StepResult
    | PodGone
    | MemberDropped
    | MemberLeft
    | MemberSeen
    | FaultReported
    | NodeChanged
    | Cancelled
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class Stop:
    """Order a node's agent to stop these members and hold their successors; repeating it renews the hold."""

    node: NodeName
    pods: Mapping[PodUid, OrderKind]


@dataclass(frozen=True, slots=True)
class Release:
    """Order a node's agent to release these members."""

    node: NodeName
    pods: frozenset[PodUid]


@dataclass(frozen=True, slots=True)
class Abort:
    """Order a node's agent to drop the round for these members."""

    node: NodeName
    pods: frozenset[PodUid]
    reason: str


@dataclass(frozen=True, slots=True)
class Recreate:
    """Replace a pod: mark it (DeviceFailure because of a device, else DisruptionTarget) and delete it.

    ``force``: its node is known to be dead, so it is deleted without a grace period.
    """

    pod: PodRef
    reason: str
    message: str
    device_failure: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """Write the round's status into its Restart object: it was decided on, or has ended."""


Effect = Stop | Release | Abort | Recreate | Record


@dataclass(frozen=True, slots=True)
class RoundRef:
    """A round by its Restart object, and its number in its gang, which only grows."""

    namespace: str
    name: str
    gang: GangKey
    attempt: int

    @property
    def id(self) -> str:
        """Return the namespace and name of its object."""
        return f"{self.namespace}/{self.name}"
