"""A round: its values, what it learns (events) and what it has others do (effects). The rules: ``controller.rounds``.

Effects may be lost, and are asked for again until an event answers them; events may come twice or out of order.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from common.gangs import GangKey
from controller.model.members import Member, NodeName, PodRef, PodUid


class StepPhase(enum.Enum):
    """Where a member stands in a round, by its agent's word (coordination/v1 ``StepResult.Phase``)."""

    STOPPING = "Stopping"
    STOPPED = "Stopped"
    RUNNING = "Running"
    COMPLETED = "Completed"
    REFUSED = "Refused"
    STUCK = "Stuck"
    FAILED = "Failed"
    SELF_RELEASED = "SelfReleased"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class StepTold:
    """An agent's word on one member (StepResult). ``seconds`` are phases' lengths, ``slipped`` how long at most
    something new ran before it was held.
    """

    pod: PodUid
    phase: StepPhase
    reason: str = ""
    detail: str = ""
    seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    slipped: float = 0.0


@dataclass(frozen=True, slots=True)
class PodGone:
    """The API server has it no more, or its node is known to be dead: nothing of it runs."""

    pod: PodUid


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A member is there, or looks different: scheduled, running, over, being deleted. Also one that has come anew."""

    member: Member


@dataclass(frozen=True, slots=True)
class FaultTold:
    """One more fault of a member of this gang while the round is on. ``at`` is Unix time; None: it has just come.

    ``needs_recreation``: a device of it is not usable (its action class is ResetDevice, RebootNode or Replace).
    """

    pod: PodUid
    code: str
    message: str
    needs_recreation: bool = False
    at: float | None = None


@dataclass(frozen=True, slots=True)
class NodeTold:
    """A node's agent is connected or not; ``lost``: the node is not ready or unreachable, by its Node object.

    ``out_of_service``: it carries that taint (KEP-2268), so nothing of its pods runs.
    """

    node: NodeName
    connected: bool
    lost: bool = False
    out_of_service: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Whoever asked for the round takes it back, or the gang is gone or suspended."""

    reason: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing has happened but time."""


RoundEvent = StepTold | PodGone | MemberSeen | FaultTold | NodeTold | Cancelled | TimePassed


class OrderKind(enum.Enum):
    """coordination/v1 ``Order.Action``."""

    RESTART = "Restart"
    HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell a node's agent to stop these members and hold what comes after; said again it renews the hold."""

    node: NodeName
    pods: Mapping[PodUid, OrderKind]


@dataclass(frozen=True, slots=True)
class Release:
    """Tell a node's agent to let these members run."""

    node: NodeName
    pods: frozenset[PodUid]


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell a node's agent that the round is off for these members."""

    node: NodeName
    pods: frozenset[PodUid]
    reason: str


@dataclass(frozen=True, slots=True)
class Recreate:
    """Have a pod replaced: mark it (DeviceFailure where a device is why, else DisruptionTarget) and delete it.

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
        """How agents call it."""
        return f"{self.namespace}/{self.name}"
