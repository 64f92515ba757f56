"""Define the enums of the protocol between agents and hub, and the identity of a pod, for both sides. Pure.

A member of an enum has the same name as the value of protobuf's enum (``common.coordination_codes``). The members'
values appear in journals, Restart objects, metrics and logs.
"""

import enum
from dataclasses import dataclass
from typing import Final, NewType

PROTOCOL: Final = 1
"""The version of the protocol that this release speaks."""
CANCELLED: Final = "Cancelled"
"""Reason of an Abort: the round was taken back before any release. The faults that it has taken get no other one."""

PodUid = NewType("PodUid", str)


@dataclass(frozen=True, order=True, slots=True)
class PodRef:
    """A pod by name and identity. Two pods of the same name never share a UID."""

    namespace: str
    name: str
    uid: PodUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class FaultKind(enum.Enum):
    """The kind of fault of a member (``Fault.Kind``). EXIT: it ended by itself with an error. HANG: no heartbeat."""

    OTHER = "Other"
    EXIT = "Exit"
    DEVICE = "Device"
    HANG = "Hang"


class FaultAnswer(enum.Enum):
    """The hub's answer to a member's fault (``FaultAnswer.Answer``).

    ROUND: its gang is restarted. ALONE: its agent restarts it now. NOTHING: it must not be restarted.
    """

    ROUND = "Round"
    ALONE = "Alone"
    NOTHING = "Nothing"


class OrderKind(enum.Enum):
    """What a round orders for a member (``Order.Action``).

    RESTART: end the running container and hold its successor. HOLD: end nothing, hold the containers that run or start.
    """

    RESTART = "Restart"
    HOLD = "Hold"


class StepPhase(enum.Enum):
    """A member's phase in a round, as its agent reports it (``StepResult.Phase``; see there)."""

    STOPPING = "Stopping"
    STOPPED = "Stopped"
    RUNNING = "Running"
    COMPLETED = "Completed"
    REFUSED = "Refused"
    STUCK = "Stuck"
    FAILED = "Failed"
    SELF_RELEASED = "SelfReleased"
    GONE = "Gone"

    @property
    def is_before_release(self) -> bool:
        """Whether the member is held, or will be."""
        return self in (StepPhase.STOPPING, StepPhase.STOPPED)
