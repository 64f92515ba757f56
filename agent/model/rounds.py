"""A round as this node sees it: what the controller orders for one member, and where the member stands."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.workloads import PodRef, PodUid


class OrderKind(enum.Enum):
    """RESTART: end what runs, and hold what comes after. HOLD: end nothing, hold what runs or starts."""

    RESTART = "Restart"
    HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class Order:
    """What a round wants of one member (coordination/v1 ``Stop``).

    ``containers`` empty: the pod's targets (``agent.restart.members.targets``). ``strategy`` empty and
    ``grace_seconds`` None: the pod's own. Without a word about the round for ``hold_seconds`` what is held is let go.
    """

    round: str
    gang: str
    attempt: int
    pod: PodUid
    kind: OrderKind
    cause_code: str
    cause_message: str
    hold_seconds: float
    containers: frozenset[str] = frozenset()
    strategy: str = ""
    grace_seconds: float | None = None


class Phase(enum.Enum):
    """coordination/v1 ``StepResult.Phase``; see there."""

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
class Standing:
    """Where one member stands in one round (coordination/v1 ``StepResult``).

    ``seconds`` are the lengths of the restart's phases; ``slipped`` is for how many seconds at most something new ran
    before it was held. ``attempt`` is the round's number in its gang, 0 where nobody has said it.
    """

    round: str
    pod: PodRef
    phase: Phase
    reason: str = ""
    detail: str = ""
    seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    slipped: float = 0.0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What is written down of a member in a round: enough for the next agent to go on.

    ``heard_at`` is when the round was last heard of, in seconds since the boot that ``boot`` names; ``written_at`` is
    Unix time. ``names`` are the containers that are held, and ``released`` says that they no longer are.
    """

    order: Order
    pod: PodRef
    standing: Standing
    boot: str
    heard_at: float
    written_at: float
    names: frozenset[str] = frozenset()
    released: bool = False

    @property
    def key(self) -> tuple[str, PodUid]:
        """The round and the pod: there is one record for both."""
        return self.order.round, self.order.pod

    def is_under_way(self, *, boot: str) -> bool:
        """Whether something may still be held for it, in that boot."""
        held = self.standing.phase in (Phase.STOPPING, Phase.STOPPED, Phase.FAILED, Phase.STUCK)
        return held and self.boot == boot and not self.released


class FaultKind(enum.Enum):
    """What kind of fault has hit a member (coordination/v1 ``Fault.Kind``)."""

    OTHER = "Other"
    EXIT = "Exit"
    DEVICE = "Device"
    HANG = "Hang"


class Taken(enum.Enum):
    """What becomes of a member's fault (coordination/v1 ``FaultAnswer``).

    ROUND: its gang is restarted. ALONE: restart it here and now. NOTHING: nobody shall restart it.
    """

    ROUND = "Round"
    ALONE = "Alone"
    NOTHING = "Nothing"
