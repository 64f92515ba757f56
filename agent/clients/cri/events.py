"""Derive container events, once and in order, from a stream or from consecutive listings. Pure."""

import dataclasses
import enum
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kubemend.agent.clients.cri import convert
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodRef, SandboxId
from kubemend.common.pb.runtime.v1 import api_pb2


class EventKind(enum.Enum):
    """A step in a container's life; each happens at most once, in this order."""

    CREATED = "created"
    STARTED = "started"
    STOPPED = "stopped"
    DELETED = "deleted"


_KINDS: "dict[api_pb2.ContainerEventType.ValueType, EventKind]" = {
    api_pb2.CONTAINER_CREATED_EVENT: EventKind.CREATED,
    api_pb2.CONTAINER_STARTED_EVENT: EventKind.STARTED,
    api_pb2.CONTAINER_STOPPED_EVENT: EventKind.STOPPED,
    api_pb2.CONTAINER_DELETED_EVENT: EventKind.DELETED,
}

_STATE_AFTER = {
    EventKind.CREATED: ContainerState.CREATED,
    EventKind.STARTED: ContainerState.RUNNING,
    EventKind.STOPPED: ContainerState.EXITED,
    EventKind.DELETED: ContainerState.EXITED,
}

# A container never goes back; "unknown" adds no information.
_STAGE = {
    ContainerState.UNKNOWN: 0,
    ContainerState.CREATED: 0,
    ContainerState.RUNNING: 1,
    ContainerState.EXITED: 2,
}


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """One step of one of kubelet's containers.

    ``container`` is its state after the step. ``created_at`` is in Unix nanoseconds: the runtime's time of the event,
    or of the listing that showed it. ``exit_code`` and ``reason`` are set for STOPPED if the stream
    contained them; call ``CriClient.container_status`` otherwise.
    """

    kind: EventKind
    container: ContainerSummary
    created_at: int
    exit_code: int | None = None
    reason: str = ""

    @property
    def container_id(self) -> ContainerId:
        """The container's id."""
        return self.container.id

    @property
    def sandbox_id(self) -> SandboxId:
        """The id of its sandbox."""
        return self.container.sandbox_id

    @property
    def pod(self) -> PodRef:
        """The pod that it belongs to."""
        return self.container.ref.pod


@dataclass(frozen=True, slots=True)
class Observation:
    """One message of the event stream. ``container`` is None if the message does not describe it (deleted)."""

    kind: EventKind
    container_id: ContainerId
    created_at: int
    container: ContainerSummary | None = None
    exit_code: int | None = None
    reason: str = ""


def read(message: api_pb2.ContainerEventResponse) -> Observation | None:
    """Convert a stream message; return None if it is about a sandbox or of an unknown kind."""
    kind = _KINDS.get(message.container_event_type)
    sandbox_id = message.pod_sandbox_status.id
    if kind is None or message.container_id == sandbox_id:
        return None
    status = next((item for item in message.containers_statuses if item.id == message.container_id), None)
    stopped = status is not None and kind is EventKind.STOPPED and status.state == api_pb2.CONTAINER_EXITED
    return Observation(
        kind=kind,
        container_id=ContainerId(message.container_id),
        created_at=message.created_at,
        container=convert.container_view(status, sandbox_id=sandbox_id) if status is not None else None,
        exit_code=status.exit_code if status is not None and stopped else None,
        reason=status.reason if status is not None and stopped else "",
    )


_NO_SANDBOX_ANY_MORE = (api_pb2.CONTAINER_STOPPED_EVENT, api_pb2.CONTAINER_DELETED_EVENT)


def stopped_sandbox(message: api_pb2.ContainerEventResponse) -> SandboxId | None:
    """Return the sandbox that a stream message reports as stopped or removed; None for any other message."""
    sandbox_id = message.pod_sandbox_status.id
    is_of_sandbox = bool(sandbox_id) and message.container_id == sandbox_id
    ended = is_of_sandbox and message.container_event_type in _NO_SANDBOX_ANY_MORE
    return SandboxId(sandbox_id) if ended else None


def diff(
    before: Iterable[ContainerSummary], after: Iterable[ContainerSummary], *, at: int
) -> tuple[ContainerEvent, ...]:
    """Return the steps that lead from one listing to the next, those of each container in order.

    A listing proves only the present state: for a container that appeared and ended in between, STARTED is left out,
    because it may have failed to start. A container that vanished while it ran has stopped.
    """
    known = {view.id: view for view in before}
    present = {view.id: view for view in after}
    pairs = ((known.get(identity), present.get(identity)) for identity in {**known, **present})
    return tuple(
        ContainerEvent(kind=kind, container=container, created_at=at)
        for old, new in pairs
        for kind, container in _steps(old, new)
    )


def _steps(
    before: ContainerSummary | None, after: ContainerSummary | None
) -> Iterator[tuple[EventKind, ContainerSummary]]:
    if after is None:
        if before is not None:
            gone = dataclasses.replace(before, state=ContainerState.EXITED)
            if before.state is ContainerState.RUNNING:
                yield EventKind.STOPPED, gone
            yield EventKind.DELETED, gone
        return
    reached = _STAGE[before.state] if before is not None else 0
    if before is None:
        yield EventKind.CREATED, after
    if _STAGE[after.state] > reached:
        yield EventKind.STARTED if after.state is ContainerState.RUNNING else EventKind.STOPPED, after


def _settled(before: ContainerSummary | None, after: ContainerSummary) -> ContainerSummary:
    """Return the one in the later state."""
    return after if before is None or _STAGE[after.state] >= _STAGE[before.state] else before


_WORTH_A_STEP = 1_000_000_000
"""Nanoseconds by which the wall clock must have been set back: reading two clocks takes some of them, too."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Two clocks at one moment, in nanoseconds: Unix time, which can be set back, and the time since boot."""

    unix: int
    since_boot: int

    def at(self, earlier: "Clocks") -> int:
        """Return what the wall clock, as it is set now, would have shown at an earlier moment."""
        return self.unix - (self.since_boot - earlier.since_boot)


_MOST_GONE: Final = 4096
"""Deleted containers that are remembered at least, since the last listing that was applied."""


class Ledger:
    """The known state of all containers, so that each step is returned once, however often it is seen.

    The first listing only sets the initial state. Events that a stream replays from before it was opened (containerd
    does) are contained in the listing of that moment, and are dropped. Their times distinguish them from later ones, so
    ``clocks_read`` corrects that moment when the wall clock has been set back since.
    """

    def __init__(self) -> None:
        self._known: dict[ContainerId, ContainerSummary] | None = None
        self._in_order: tuple[ContainerSummary, ...] | None = None  # None: something has changed
        self._stream_since = 0
        self._opened: Clocks | None = None
        # Ids are never reused: any later stream message about these is late, by seconds. A stream may be complete for
        # months, so the latest suffice.
        self._gone: set[ContainerId] = set()
        self._gone_before: set[ContainerId] = set()

    def containers(self) -> tuple[ContainerSummary, ...]:
        """Return all known containers, oldest first."""
        if self._in_order is None:
            self._in_order = tuple(sorted((self._known or {}).values(), key=operator.attrgetter("created_at")))
        return self._in_order

    def stream_opened(self, clocks: Clocks) -> None:
        """Record that a stream was opened at that moment, before the next listing."""
        self._opened, self._stream_since = clocks, clocks.unix

    def clocks_read(self, now: Clocks) -> None:
        """Record the clocks before the next message is observed."""
        if self._opened is not None and (moment := now.at(self._opened)) < self._stream_since - _WORTH_A_STEP:
            self._stream_since = moment

    def new_events(self, listing: Iterable[ContainerSummary], *, at: int) -> tuple[ContainerEvent, ...]:
        """Return the new steps in a full listing, requested at ``at``; change nothing."""
        return diff(self._known.values(), listing, at=at) if self._known is not None else ()

    def reconcile(self, listing: Iterable[ContainerSummary], *, at: int) -> tuple[ContainerEvent, ...]:
        """Apply a full listing that was requested at ``at``; return the new steps."""
        listing = tuple(listing)
        steps = self.new_events(listing, at=at)
        before = self._known or {}
        self._known = {view.id: _settled(before.get(view.id), view) for view in listing}
        self._in_order = None
        self._gone_before, self._gone = self._gone, {step.container_id for step in _deletions(steps)}
        return steps

    def observe(self, seen: Observation) -> tuple[ContainerEvent, ...]:
        """Apply a stream message; return the new steps. Needs a listing first."""
        assert self._known is not None
        late = seen.container_id in self._gone or seen.container_id in self._gone_before
        if late or seen.created_at < self._stream_since:
            return ()
        before = self._known.get(seen.container_id)
        described = seen.container if seen.container is not None else before
        if described is None:
            return ()  # not kubelet's, or removed before it could be described
        self._in_order = None
        if seen.kind is EventKind.DELETED:
            if len(self._gone) >= _MOST_GONE:
                self._gone_before, self._gone = self._gone, set()
            self._gone.add(seen.container_id)
            self._known.pop(seen.container_id, None)
            return tuple(_events(seen, steps=_steps(before, None)))
        after = dataclasses.replace(described, state=_STATE_AFTER[seen.kind])
        self._known[seen.container_id] = _settled(before, after)
        return tuple(_events(seen, steps=_steps(before, after)))


def _events(seen: Observation, *, steps: Iterable[tuple[EventKind, ContainerSummary]]) -> Iterator[ContainerEvent]:
    for kind, container in steps:
        stopped = kind is EventKind.STOPPED
        yield ContainerEvent(
            kind=kind,
            container=container,
            created_at=seen.created_at,
            exit_code=seen.exit_code if stopped else None,
            reason=seen.reason if stopped else "",
        )


def _deletions(steps: Iterable[ContainerEvent]) -> Iterator[ContainerEvent]:
    return (step for step in steps if step.kind is EventKind.DELETED)
