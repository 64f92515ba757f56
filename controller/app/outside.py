"""What conducting rounds needs from the outside, as narrow protocols; ``controller.app`` plugs the real parts in."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from common.gangs import GangKey
from controller.app.counting import Gpus
from controller.app.metrics import Metrics
from controller.app.spans import Span
from controller.app.without_jobsets import NoJobSets
from controller.hub import ports
from controller.jobset.model import Refusal
from controller.model.faults import Cause
from controller.model.members import Member, NodeName, NodeView, Owner, PodUid
from controller.model.rounds import Recreate, RoundRef
from controller.restarts.events import ObjectRef
from controller.restarts.objects import NewRound, Restart
from controller.restarts.store import Begun, RestartChange
from controller.rounds.states import Limits, Round
from controller.watches.members import MemberChange
from controller.watches.nodes import NodeChange

if TYPE_CHECKING:
    from controller.jobset.in_place import GangPolicy  # it brings the decisions about JobSets with it


def steady_clock() -> Callable[[], float]:
    """Return a clock of Unix seconds that never goes back: the wall clock now, and the monotonic one from here on."""
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


class Members(Protocol):
    """Gangs and their members (``controller.watches.members.Members``)."""

    async def wait_synced(self) -> None: ...
    def by_uid(self, uid: PodUid) -> Member | None: ...
    def of_gang(self, key: GangKey) -> Mapping[PodUid, Member]: ...
    def on_node(self, node: NodeName) -> Mapping[PodUid, Member]: ...
    def gangs(self) -> Collection[GangKey]: ...
    def subscribe(self, listener: Callable[[MemberChange], None]) -> Callable[[], None]: ...


class Nodes(Protocol):
    """Nodes (``controller.watches.nodes.Nodes``)."""

    async def wait_synced(self) -> None: ...
    def view(self, name: NodeName) -> NodeView | None: ...
    def subscribe(self, listener: Callable[[NodeChange], None]) -> Callable[[], None]: ...


class Restarts(Protocol):
    """Restart objects (``controller.restarts.store.RestartStore``)."""

    async def run(self) -> None: ...
    async def wait_synced(self) -> None: ...
    def restarts(self) -> Mapping[str, Restart]: ...
    def requests(self) -> list[Restart]: ...
    def unfinished(self) -> list[Restart]: ...
    def note_attempt(self, gang: GangKey, attempt: int) -> None: ...
    def newest_attempt(self, gang: GangKey) -> int: ...
    def subscribe(self, listener: Callable[[RestartChange], None]) -> Callable[[], None]: ...
    async def create(self, new: NewRound, *, timeout: float = 2.0) -> Begun: ...
    async def take(self, request: Restart, new: NewRound, *, timeout: float = 2.0) -> Begun: ...
    async def resume(self, restart: Restart, *, epoch: int, timeout: float = 2.0) -> bool: ...
    def set_status(self, restart_id: str, status: Mapping[str, Any]) -> None: ...


class Recreator(Protocol):
    """Has pods replaced (``controller.restarts.recreate.Recreator``)."""

    async def run(self) -> None: ...
    def recreate(self, wanted: Recreate) -> None: ...


class Teller(Protocol):
    """Tells people (``controller.restarts.events.EventTeller``)."""

    def tell(
        self,
        about: ObjectRef,
        *,
        reason: str,
        message: str,
        warning: bool = False,
        subject: str = "",
        may_repeat: bool = False,
    ) -> None: ...


class JobSets(Protocol):
    """What a gang's JobSet has to say, where it is one that we run (``controller.app.jobsets.OurJobSets``)."""

    async def run(self) -> None: ...
    async def wait_known(self) -> None: ...
    def policy(self, gang: GangKey) -> "GangPolicy | None": ...
    def owner(self, gang: GangKey) -> Owner | None: ...
    def newest_attempt(self, gang: GangKey) -> int: ...
    def is_given_up(self, member: Member) -> bool: ...
    def begun(self, ref: RoundRef, cause: Cause, *, now: float) -> None: ...
    def ended(self, round_: Round) -> None: ...
    def refused(self, gang: GangKey, refusal: Refusal) -> None: ...
    def left(self, gang: GangKey, *, node: NodeName, code: str, pod: PodUid) -> None: ...
    def subscribe(self, listener: Callable[[GangKey], None]) -> Callable[[], None]: ...


class Sessions(Protocol):
    """The agents that are connected."""

    def __call__(self, node: NodeName, /) -> ports.Session | None:
        """Return the stream of a node's agent, None when it has none."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator has decided. ``namespaces``: their pods need no annotation."""

    limits: Limits = field(default_factory=Limits)
    namespaces: frozenset[str] = frozenset()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything outside of the rounds. ``now`` is Unix seconds by a clock that never goes back.

    ``trace`` takes the trace of each round that has ended; None: nobody wants any.
    """

    members: Members
    nodes: Nodes
    restarts: Restarts
    recreator: Recreator
    events: Teller
    sessions: Sessions
    metrics: Metrics
    now: Callable[[], float]
    policy: Policy = field(default_factory=Policy)
    gpus: Gpus = field(default_factory=Gpus)
    jobsets: JobSets = field(default_factory=NoJobSets)
    trace: Callable[[Span], None] | None = None
