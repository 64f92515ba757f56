"""The coordinator's dependencies, as narrow protocols; ``controller.app`` provides the implementations.

``NoJobSets`` is the implementation for ``--no-jobsets``.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from kubemend.common.gangs import GangKey
from kubemend.controller.coordinator.round_metrics import Gpus
from kubemend.controller.coordinator.spans import Span
from kubemend.controller.hub import ports
from kubemend.controller.jobset.spec.model import Refusal
from kubemend.controller.metrics import Metrics
from kubemend.controller.model.faults import Cause
from kubemend.controller.model.members import Member, NodeName, Owner, PodRef, PodUid
from kubemend.controller.model.rounds import Recreate, RoundRef
from kubemend.controller.restarts.events import ObjectRef
from kubemend.controller.restarts.objects import NewRound, Restart
from kubemend.controller.restarts.store import Begun, RestartChange
from kubemend.controller.rounds.states import Limits, Round
from kubemend.controller.watches.members import MemberChange


class NoJobSets:
    """Manage no JobSet (``controller.coordinator.dependencies.JobSets``)."""

    async def run(self) -> None:
        """Do nothing; never returns."""
        await asyncio.Event().wait()

    async def wait_known(self) -> None:
        """Return at once."""

    def policy(self, gang: GangKey) -> None:  # noqa: ARG002 - the same for all
        """Return None: no managed JobSet."""
        return

    def owner(self, gang: GangKey) -> None:  # noqa: ARG002
        """Return None."""
        return

    def newest_attempt(self, gang: GangKey) -> int:  # noqa: ARG002
        """Return 0: no status has a number."""
        return 0

    def is_given_up(self, member: Member) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def begun(self, ref: RoundRef, cause: Cause, *, now: float) -> None:
        """Do nothing."""

    def ended(self, round_: Round) -> None:
        """Do nothing."""

    def refused(self, gang: GangKey, refusal: Refusal) -> None:
        """Do nothing."""

    def left(self, gang: GangKey, *, node: NodeName, code: str, pod: PodUid) -> None:
        """Do nothing: no node is tainted."""

    def subscribe(self, listener: Callable[[GangKey], None]) -> Callable[[], None]:  # noqa: ARG002
        """Do nothing: no policy changes."""
        return lambda: None


if TYPE_CHECKING:
    from kubemend.controller.jobset.policy.in_place import GangPolicy  # it brings the decisions about JobSets with it


_FOLLOWS_BY: Final = 0.25


def steady_clock(
    *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Return a clock of Unix seconds that never goes back and never jumps, so no round ends early or late by hours.

    It begins with the wall clock, and follows one that has been set, by running a quarter faster or slower. Other
    replicas and the API server have the right time.
    """
    at, before = wall(), monotonic()

    def now() -> float:
        nonlocal at, before
        passed = monotonic() - before
        most = _FOLLOWS_BY * passed
        before += passed
        at += passed
        at += min(max(wall() - at, -most), most)
        return at

    return now


class Members(Protocol):
    """Gangs and their members (``controller.watches.members.Members``)."""

    async def wait_synced(self) -> None: ...
    def by_uid(self, uid: PodUid) -> Member | None: ...
    def of_gang(self, key: GangKey) -> Mapping[PodUid, Member]: ...
    def on_node(self, node: NodeName) -> Mapping[PodUid, Member]: ...
    def gangs(self) -> Collection[GangKey]: ...
    def following(self, pod: GangKey) -> AbstractAsyncContextManager[Callable[[], GangKey | None]]: ...
    def subscribe(self, listener: Callable[[MemberChange], None]) -> Callable[[], None]: ...


class Restarts(Protocol):
    """Restart objects (``controller.restarts.store.RestartStore``)."""

    async def run(self) -> None: ...
    async def wait_synced(self) -> None: ...
    def restarts(self) -> Mapping[str, Restart]: ...
    def of_gang(self, gang: GangKey) -> Mapping[str, Restart]: ...
    def requests(self) -> list[Restart]: ...
    def unfinished(self) -> list[Restart]: ...
    def note_attempt(self, gang: GangKey, attempt: int) -> None: ...
    def newest_attempt(self, gang: GangKey) -> int: ...
    def subscribe(self, listener: Callable[[RestartChange], None]) -> Callable[[], None]: ...
    async def create(self, new: NewRound, *, timeout: float = 1.0) -> Begun: ...
    async def adopt(self, request: Restart, new: NewRound, *, timeout: float = 1.0) -> Begun: ...
    async def resume(self, restart: Restart, *, epoch: int, timeout: float = 2.0) -> bool: ...
    def set_status(self, of: RoundRef | Restart, status: Mapping[str, Any]) -> None: ...


class PodReplacer(Protocol):
    """Replaces pods (``controller.restarts.pod_replacer.PodReplacer``)."""

    async def run(self) -> None: ...
    def recreate(self, wanted: Recreate) -> None: ...
    def forget(self, uid: PodUid) -> None: ...
    def restore(self, pod: PodRef) -> None: ...
    async def job_of(self, member: Member) -> Mapping[str, Any] | None: ...


class EventRecorder(Protocol):
    """Records Events (``controller.restarts.events.RoundEventRecorder``)."""

    def record(
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
    """The policies of gangs' JobSets that kubemend manages (``coordinator.jobset_rounds.OurJobSets``)."""

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
        """Return the stream of a node's agent; None if it is not connected."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator has configured. Pods in ``namespaces`` need no annotation."""

    limits: Limits = field(default_factory=Limits)
    namespaces: frozenset[str] = frozenset()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Everything that rounds use. ``now`` returns Unix seconds by a clock that never goes back.

    ``trace`` takes the trace of each round that has ended; None if traces are off.
    """

    members: Members
    nodes: ports.Nodes
    restarts: Restarts
    pod_replacer: PodReplacer
    events: EventRecorder
    sessions: Sessions
    metrics: Metrics
    now: Callable[[], float]
    policy: Policy = field(default_factory=Policy)
    gpus: Gpus = field(default_factory=Gpus)
    jobsets: JobSets = field(default_factory=NoJobSets)
    trace: Callable[[Span], None] | None = None
