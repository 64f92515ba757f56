"""A round on this node: the controller's order for one member, and the member's state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kubemend.agent.model.workloads import PodRef, PodUid
from kubemend.common.coordination import OrderKind, StepPhase


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a round for one member (coordination/v1 ``Stop``).

    ``containers`` empty: the pod's targets (``agent.restart.members.targets``). ``strategy`` empty and
    ``grace_seconds`` None: the pod's own. If no message about the round arrives for ``hold_seconds``, the held
    containers are released.
    """

    round: str
    attempt: int
    pod: PodUid
    kind: OrderKind
    cause_code: str
    cause_message: str
    hold_seconds: float
    containers: frozenset[str] = frozenset()
    strategy: str = ""
    grace_seconds: float | None = None


AGENT_AWAY_SECONDS: Final = 60.0
"""Seconds from an agent's end until the containers that it held for rounds are released, if no agent follows."""

FIRST_CONTACT_SECONDS: Final = 20.0
"""Seconds for which a restarted agent continues a hold in any case: the hub renews it only once it is connected."""


def hold_ends_at(*, renewed_at: float, hold_seconds: float, resumed_at: float | None = None) -> float:
    """Return when a hold ends if no further message about its round arrives (seconds since boot).

    ``resumed_at`` is when an agent resumed the hold of a previous one: the hub cannot renew a hold while there is no
    agent. Agents that die repeatedly extend a hold by ``AGENT_AWAY_SECONDS`` at most. Pure.
    """
    due = renewed_at + hold_seconds
    if resumed_at is None:
        return due
    return max(due, min(resumed_at + FIRST_CONTACT_SECONDS, due + AGENT_AWAY_SECONDS))


@dataclass(frozen=True, slots=True)
class StepResult:
    """The state of one member in one round (coordination/v1 ``StepResult``).

    ``seconds`` are the lengths of the restart's phases. ``unheld_seconds`` is the maximum number of seconds for which a
    successor ran before it was held. ``attempt`` is the round's number in its gang, 0 where it is unknown.
    """

    round: str
    pod: PodRef
    phase: StepPhase
    reason: str = ""
    detail: str = ""
    seconds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unheld_seconds: float = 0.0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """The journal record of a member in a round: enough for the next agent to resume.

    ``renewed_at`` is the time of the last message about the round, in seconds since the boot that ``boot`` names;
    ``written_at`` is Unix time. ``names`` are the held containers; ``released`` means that they are no longer held.
    """

    order: Order
    pod: PodRef
    step_result: StepResult
    boot: str
    renewed_at: float
    written_at: float
    names: frozenset[str] = frozenset()
    released: bool = False

    @property
    def key(self) -> tuple[str, PodUid]:
        """The round and the pod; a record is unique by both."""
        return self.order.round, self.order.pod

    def is_under_way(self, *, boot: str) -> bool:
        """Return whether containers may still be held for it in that boot."""
        held = self.step_result.phase in (StepPhase.STOPPING, StepPhase.STOPPED, StepPhase.FAILED, StepPhase.STUCK)
        return held and self.boot == boot and not self.released
