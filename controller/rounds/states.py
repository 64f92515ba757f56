"""A round's values: where it stands, where each member stands, its limits, and what an advance gives."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from controller.decisions.facts import Decision
from controller.model.faults import Cause
from controller.model.members import Member, NodeName, PodUid
from controller.model.rounds import Effect, FaultTold, OrderKind, RoundRef


class Phase(enum.Enum):
    """A round's ``status.phase``. The last three are final; DEGRADED: some member did not come back."""

    STOPPING = "Stopping"
    RELEASING = "Releasing"
    DONE = "Done"
    DEGRADED = "Degraded"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        """Whether nothing happens in it any more."""
        return self in (Phase.DONE, Phase.DEGRADED, Phase.FAILED)


class Stand(enum.Enum):
    """Where one pod stands.

    WAITING: its turn has not come (rolling). STOPPING: its agent was told to stop it. LEAVING: it is being deleted.
    JOINING: it has come anew, or has not begun to run. STOPPED: nothing old of it runs, what is new is held.
    RELEASING: its agent was told to let it run. RUNNING, COMPLETED, GONE, FAILED are how it can end.
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


BEFORE_RELEASE = (Stand.WAITING, Stand.STOPPING, Stand.JOINING, Stand.STOPPED)
OVER = (Stand.COMPLETED, Stand.GONE, Stand.FAILED)

_NO_SECONDS: Final[Mapping[str, float]] = MappingProxyType({})
_ANSWERED_AT_ONCE: Final = 1000
"""So many members at most have all answered within the interval after which they are told again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a round waits for what; seconds.

    ``resend``: what has no answer is said again; large rounds wait longer (``say_again``). ``hold``: without a word for
    so long agents let go (Stop.hold_seconds); a third of it after the last word it is renewed. ``stop``: a member of
    which nothing is heard for so long while it stops (its grace period comes on top) counts as lost; ``reconnect``
    comes on top while its agent is not connected, as all are when a leader is new. ``slow``: so long may stop, or
    start, what its agent tells to go on. ``absence``: an old pod that is not gone by then fails the round.
    ``hold_for_recreated``: so long the members that stayed wait for those that are recreated; annotation
    kubemend.io/hold goes before it. ``recreated``: until then these must run. ``release``: a member that does not run,
    and of which nothing is heard for so long, has failed. ``after_fault``: so long a round that is being released still
    waits for answers when the gang has failed again; ``redial`` for those whose agents are not connected, as all are
    when a leader is new. ``whole``: no round lasts longer.
    """

    resend: float = 1.0
    hold: float = 30.0
    stop: float = 10.0
    reconnect: float = 60.0
    slow: float = 600.0
    absence: float = 300.0
    hold_for_recreated: float = 60.0
    recreated: float = 300.0
    release: float = 15.0
    after_fault: float = 1.0
    redial: float = 10.0
    whole: float = 900.0

    def say_again(self, *, members: int) -> float:
        """Return after how many seconds what has no answer is said again in a round of so many members.

        Thousands take their time to answer, and more so when all of them are told twice.
        """
        return self.resend * max(members / _ANSWERED_AT_ONCE, 1.0)


class MemberState(NamedTuple):
    """One member's pod in a round. ``since`` is when it came to stand where it does. No dataclass: thousands are
    changed in each round, and a changed copy of one costs several times as much.

    ``order`` is what its agent was told; None: nothing. ``old_runs``: something old of it may still run.
    ``recreated``: we have had it deleted, ``device``: because of its device. ``replaces``: it came in the place of a
    pod that left during the round. ``stopped`` and ``running`` are seconds since the round began, ``seconds`` are the
    lengths of its restart's phases by its agent's clock, ``slipped`` is for how long at most something new of it ran
    before it was held; ``let_go``: its agent let it run without having been told to.
    ``heard`` is when its agent last told that it goes on, and ``doing`` what it was at then.
    """

    member: Member
    stand: Stand
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
    slipped: float = 0.0
    let_go: bool = False
    heard: float = -math.inf
    doing: str = ""

    @property
    def blocks(self) -> bool:
        """Whether nothing of the gang may be released because of it."""
        return self.stand is Stand.STOPPING or (self.stand is Stand.LEAVING and self.old_runs)


@dataclass(frozen=True, slots=True)
class Round:
    """One round. ``ref.id`` is how agents call it. ``machine`` makes and moves it.

    Deadlines count from ``counted_from``: its begin, or the moment when this leader took it on. ``members`` has its
    pods, ``newest`` for each slot the one that counts. ``awaited`` are the slots whose pod is gone and whose
    replacement has not come, since when. ``replaced`` are the slots of which no pod is deleted any more: one was, or
    has come anew. ``connected`` are nodes whose agents are, ``dead`` those out of service. ``tally`` and ``blocking``
    count ``members``. ``look_at`` is when deadlines are looked at next, ``renewed_at`` when the holds were renewed
    last, ``say_at`` when all that has no answer is said again. Times are Unix seconds; ``stopped`` is when everything
    was stopped and ``ended`` its end, in seconds since it began. ``again`` are the faults that are decided on right
    after this one, and ``again_at`` is when the first of them was told.
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
    namespaces: frozenset[str] = frozenset()
    max_unavailable: int | None = None
    tally: Mapping[Stand, int] = field(default_factory=lambda: MappingProxyType({}))
    blocking: int = 0
    look_at: float = 0.0
    renewed_at: float = 0.0
    say_at: float = 0.0
    stopped: float | None = None
    ended: float | None = None
    reason: str = ""
    detail: str = ""
    again: tuple[FaultTold, ...] = ()
    again_at: float = 0.0

    @property
    def rolling(self) -> bool:
        """Whether members are restarted one after another, and not one waits for another to be stopped."""
        return self.max_unavailable is not None

    def count(self, *stands: Stand) -> int:
        """Return how many pods stand there."""
        return sum(self.tally.get(stand, 0) for stand in stands)


@dataclass(frozen=True, slots=True)
class Advance:
    """What follows: the next round, what is to be done now, in this order, and when to come again at the latest.

    ``wake_at`` is None once the round is over. ``again``: faults of what this round has not stopped, which are decided
    on right after it, in this order; set once, with the advance that ends the round.
    """

    round: Round
    effects: tuple[Effect, ...] = ()
    wake_at: float | None = None
    again: tuple[FaultTold, ...] = ()
