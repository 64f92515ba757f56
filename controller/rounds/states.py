"""A round's values: its phase, the phase of each member, its limits, and the result of an advance."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from kubemend.common.coordination import OrderKind
from kubemend.controller.decisions.facts import Decision
from kubemend.controller.model.faults import Cause
from kubemend.controller.model.members import Member, NodeName, PodUid
from kubemend.controller.model.rounds import Effect, FaultReported, RoundRef


class Phase(enum.Enum):
    """A round's ``status.phase``. The last three are final; DEGRADED: some member did not come back."""

    STOPPING = "Stopping"
    RELEASING = "Releasing"
    DONE = "Done"
    DEGRADED = "Degraded"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        """Return whether the round has ended."""
        return self in (Phase.DONE, Phase.DEGRADED, Phase.FAILED)


class MemberPhase(enum.Enum):
    """The phase of one pod.

    WAITING: its turn has not come (rolling). STOPPING: its agent has the order to stop it. LEAVING: it is being
    deleted. JOINING: it is a replacement, or has not begun to run. STOPPED: no old container runs, and its successors
    are held, or will be when they start. RELEASING: its agent has the order to release it. RUNNING, COMPLETED, GONE,
    FAILED are final.
    """

    __hash__ = object.__hash__  # enum's own is written in Python, and thousands are counted in each round

    WAITING = "Waiting"
    STOPPING = "Stopping"
    LEAVING = "Leaving"
    JOINING = "Joining"
    STOPPED = "Stopped"
    RELEASING = "Releasing"
    RUNNING = "Running"
    COMPLETED = "Completed"
    GONE = "Gone"
    FAILED = "Failed"


BEFORE_RELEASE = (MemberPhase.WAITING, MemberPhase.STOPPING, MemberPhase.JOINING, MemberPhase.STOPPED)
OVER = (MemberPhase.COMPLETED, MemberPhase.GONE, MemberPhase.FAILED)

_NO_SECONDS: Final[Mapping[str, float]] = MappingProxyType({})
_ANSWERED_AT_ONCE: Final = 1000
"""A round of at most this many members is answered completely within the resend interval."""
_SENT_BEFORE_LOST: Final = 3
"""How often at least an unanswered order is sent before its member counts as lost."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The timeouts of a round, in seconds.

    - ``resend``: interval at which unanswered orders are repeated; large rounds wait longer (``resend_interval``)
    - ``hold``: an agent releases its members after this time without a message (Stop.hold_seconds); the hub renews
      holds after a third of it
    - ``stop``: a stopping member without a report for this long, plus its grace period, counts as lost; large rounds
      wait longer (``silence``)
    - ``reconnect``: added to ``stop`` and ``release`` while the member's agent is not connected, as all agents of a new
      leader are; both count again from the new connection
    - ``slow``: maximum for stopping or starting with reports of progress
    - ``grace``: the old containers' grace period by the request; None: each pod's own
    - ``absence``: the round fails if an old pod still exists after this time
    - ``hold_for_recreated``: for this time the members that stayed are held for those that are recreated; the
      annotation kubemend.io/hold overrides it
    - ``recreated``: recreated members must run within this time
    - ``release``: a member that does not run and has no report for this long has failed; large rounds wait longer
    - ``after_fault``: how long a round that is releasing still waits for answers after the gang has failed again
    - ``redial``: the same for members whose agents are not connected, as is the case for all agents of a new leader:
      longer than an agent's wait between two dials and one that times out
    - ``whole``: maximum duration of a round
    """

    resend: float = 1.0
    hold: float = 30.0
    stop: float = 10.0
    reconnect: float = 60.0
    slow: float = 600.0
    grace: float | None = None
    absence: float = 300.0
    hold_for_recreated: float = 60.0
    recreated: float = 300.0
    release: float = 15.0
    after_fault: float = 1.0
    redial: float = 12.0
    whole: float = 900.0

    def resend_interval(self, *, members: int) -> float:
        """Return the seconds after which unanswered orders are repeated in a round of this many members.

        Thousands of agents take time to answer, and longer if all orders are sent twice.
        """
        return self.resend * max(members / _ANSWERED_AT_ONCE, 1.0)

    def silence(self, timeout: float, *, members: int) -> float:
        """Return the seconds without a report after which a member counts as lost: ``timeout``, or more in a large
        round, whose orders are repeated less often.
        """
        return max(timeout, _SENT_BEFORE_LOST * self.resend_interval(members=members))


class MemberState(NamedTuple):
    """One member's pod in a round. ``since`` is when its phase began.

    No dataclass: thousands are changed in each round, and a changed copy of one costs several times as much.

    - ``order`` is its agent's order; None: none
    - ``old_runs``: an old container of it may still run
    - ``recreated``: the round has deleted it, ``device``: because of its device
    - ``replaces``: it replaced a pod that left during the round
    - ``stopped`` and ``running`` are seconds since the round began
    - ``seconds`` are the lengths of its restart's phases by its agent's clock
    - ``late``: its successor had not started when it was stopped
    - ``unheld_seconds``: the longest time that a successor ran before it was held
    - ``self_released``: its agent released it without an order
    - ``reported_at``: when its agent last reported progress, ``doing``: the step that it reported
    """

    member: Member
    phase: MemberPhase
    since: float
    order: OrderKind | None = None
    old_runs: bool = False
    recreated: bool = False
    device: bool = False
    replaces: bool = False
    reason: str = ""
    detail: str = ""
    stopped: float | None = None
    running: float | None = None
    seconds: Mapping[str, float] = _NO_SECONDS
    late: bool = False
    unheld_seconds: float = 0.0
    self_released: bool = False
    reported_at: float = -math.inf
    doing: str = ""

    @property
    def blocks(self) -> bool:
        """Return whether it keeps the gang from being released."""
        return self.phase is MemberPhase.STOPPING or (self.phase is MemberPhase.LEAVING and self.old_runs)


@dataclass(frozen=True, slots=True)
class Round:
    """One round. ``machine`` creates and advances it.

    Times are Unix seconds.

    - ``counted_from``: deadlines count from here; its begin, or the moment when this leader resumed it
    - ``members`` has its pods, ``newest`` for each slot the one that counts; ``tally`` and ``blocking`` count them
    - ``awaited``: the slots whose pod is gone and whose replacement does not exist yet, with the time since when
    - ``replaced``: the slots of which no further pod is deleted, because one was, or is a replacement
    - ``connected``: nodes with connected agents, ``dead``: nodes out of service
    - ``resumed``: a previous leader has begun it; ``lost``: nodes that are not ready, while their agents may still be
      connecting to this leader
    - ``check_at``: the next check of the deadlines
    - ``renewed_at``: the last renewal of the holds
    - ``resend_at``: the next repetition of unanswered orders
    - ``old_dead``: when no old container ran any more, ``stopped``: when the members could be released, ``ended``: the
      round's end, each in seconds since it began
    - ``again``: the faults to decide about right after this round, ``again_at``: when the first was reported
    """

    ref: RoundRef
    cause: Cause
    decision: Decision
    limits: Limits
    started_at: float
    counted_from: float
    phase: Phase = Phase.STOPPING
    members: MappingProxyType[PodUid, MemberState] = field(default_factory=lambda: MappingProxyType({}))
    newest: MappingProxyType[str, PodUid] = field(default_factory=lambda: MappingProxyType({}))
    awaited: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    replaced: frozenset[str] = frozenset()
    connected: frozenset[NodeName] = frozenset()
    dead: frozenset[NodeName] = frozenset()
    resumed: bool = False
    lost: frozenset[NodeName] = frozenset()
    namespaces: frozenset[str] = frozenset()
    max_unavailable: int | None = None
    tally: Mapping[MemberPhase, int] = field(default_factory=lambda: MappingProxyType({}))
    blocking: int = 0
    check_at: float = 0.0
    renewed_at: float = 0.0
    resend_at: float = 0.0
    old_dead: float | None = None
    stopped: float | None = None
    ended: float | None = None
    reason: str = ""
    detail: str = ""
    again: tuple[FaultReported, ...] = ()
    again_at: float = 0.0

    @property
    def rolling(self) -> bool:
        """Return whether members are restarted one after another, without waiting for one another's stop."""
        return self.max_unavailable is not None

    def count(self, *phases: MemberPhase) -> int:
        """Return how many pods are in these phases."""
        return sum(self.tally.get(phase, 0) for phase in phases)


@dataclass(frozen=True, slots=True)
class Advance:
    """The result: the next round, the effects to carry out in this order, and the latest time of the next call.

    ``wake_at`` is None once the round is over. ``again``: faults of containers that this round did not stop, which are
    decided on right after it, in this order; set once, with the advance that ends the round.
    """

    round: Round
    effects: tuple[Effect, ...] = ()
    wake_at: float | None = None
    again: tuple[FaultReported, ...] = ()
