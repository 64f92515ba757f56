"""Follow every container on the node: by the runtime's event stream checked against listings, or by listings alone."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Self

import structlog

from kubemend.agent.clients.cri import client, errors, events
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import ContainerId, ContainerSummary, PodUid, SandboxId
from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ListingIntervals:
    """Seconds between two listings: ``audit`` with a complete event stream, ``poll`` without one.

    ``poll`` is kubelet's own relist period (pkg/kubelet/kubelet.go).
    """

    audit: float = 10.0
    poll: float = 1.0


class ContainerWatch:
    """Notifies subscribers of container changes, across breaks of the stream and restarts of the runtime.

    Some streams stay open and silent (CRI-O without ``enable_pod_events``) or lose events to another reader (containerd
    1.7 has one queue for all readers). If two consecutive listings show changes that the stream has not delivered, the
    watch lists at the ``poll`` interval until the stream is reopened.
    """

    def __init__(
        self,
        cri: client.CriClient,
        *,
        report: Callable[[ComponentStatus], None],
        intervals: ListingIntervals | None = None,
    ) -> None:
        self._cri = cri
        self._sandbox_subscribers: list[Callable[[SandboxId], None]] = []
        self._report = report
        self._intervals = intervals if intervals is not None else ListingIntervals()
        self._ledger = events.Ledger()
        self._subscribers: dict[asyncio.Queue[ContainerEvent], PodUid | None] = {}
        self._status: ComponentStatus | None = None
        self._listed = asyncio.Event()
        self._stream_is_lossy = False
        self._suspects: frozenset[tuple[ContainerId, events.EventKind]] = frozenset()

    def containers(self) -> tuple[ContainerSummary, ...]:
        """Return the known containers, oldest first; empty before the first listing."""
        return self._ledger.containers()

    def on_sandbox_stopped(self, subscriber: Callable[[SandboxId], None]) -> None:
        """Call ``subscriber`` for each sandbox that the stream reports as stopped, from now on."""
        self._sandbox_subscribers.append(subscriber)

    async def until_listed(self) -> None:
        """Wait for the first listing."""
        await self._listed.wait()

    @contextlib.asynccontextmanager
    async def subscribe(self, pod_uid: PodUid | None = None) -> AsyncIterator[asyncio.Queue[ContainerEvent]]:
        """Subscribe to the events of one pod, or of all, from now on.

        Earlier events are not delivered: subscribe first, then list. The queue is unbounded, so that one slow reader
        neither blocks the others nor loses an event. Hold a subscription only while you read it.
        """
        queue: asyncio.Queue[ContainerEvent] = asyncio.Queue()
        self._subscribers[queue] = pod_uid
        try:
            yield queue
        finally:
            del self._subscribers[queue]

    async def run(self) -> None:
        """Watch indefinitely."""
        backoff = aio.Backoff(limit=5.0)
        while True:
            try:
                await self._follow(backoff)
            except errors.CriError as error:
                self._lost(error)
            await backoff.wait()

    async def _follow(self, backoff: aio.Backoff) -> None:
        """Follow the stream until it breaks. Raises CriError."""
        self._stream_is_lossy = False
        self._suspects = frozenset()
        self._ledger.stream_opened(_clocks())
        async with contextlib.aclosing(self._cri.events()) as stream, _ReadAhead(stream) as ahead:
            await self._list()
            backoff.reset()
            self._set_status(ComponentStatus(ComponentState.READY, "following the runtime's events"))
            try:
                # The first audit comes soon, because the stream may have begun only after the listing above.
                await self._read(ahead, first_audit=self._intervals.poll)
            except errors.Unsupported:
                await self._poll()

    async def _read(self, ahead: "_ReadAhead", *, first_audit: float) -> None:
        loop = asyncio.get_running_loop()
        audit_at = loop.time() + first_audit
        while True:
            message = await ahead.next(until=audit_at)
            if message is not None:
                with contained.within(contained.Part.CONTAINER, message.container_id):
                    self._handle(message)
            if loop.time() >= audit_at:
                audit_at = loop.time() + await self._audit()

    def _handle(self, message: api_pb2.ContainerEventResponse) -> None:
        if (stopped := events.stopped_sandbox(message)) is not None:
            for subscriber in self._sandbox_subscribers:
                subscriber(stopped)
        if (seen := events.read(message)) is not None:
            self._ledger.clocks_read(_clocks())
            self._publish(self._ledger.observe(seen))

    async def _audit(self) -> float:
        """List, and return the number of seconds until the next listing.

        Changes that the stream has not delivered may still arrive; those still missing at the next audit are lost.
        """
        if self._stream_is_lossy:
            await self._list()
            return self._intervals.poll
        asked_at = time.time_ns()
        listing = await self._cri.list_containers()
        missing = frozenset((step.container_id, step.kind) for step in self._ledger.new_events(listing, at=asked_at))
        if missing & self._suspects:
            self._stream_is_lossy = True
            log.warning("cri.events_missed", endpoint=self._cri.endpoint)
            how = f"listing every {self._intervals.poll:g} s"
            self._set_status(ComponentStatus(ComponentState.READY, f"the runtime's event stream is incomplete; {how}"))
            self._publish(self._ledger.reconcile(listing, at=asked_at))
        self._suspects = missing
        return self._intervals.poll if missing else self._intervals.audit

    async def _poll(self) -> None:
        """List periodically. Raises CriError when the runtime is unavailable; after its return it may have events."""
        log.info("cri.no_event_stream", endpoint=self._cri.endpoint, poll_seconds=self._intervals.poll)
        self._set_status(
            ComponentStatus(
                ComponentState.READY, f"the runtime has no event stream; listing every {self._intervals.poll:g} s"
            )
        )
        async for _ in aio.ticks(period=self._intervals.poll):
            await self._list()

    async def _list(self) -> None:
        asked_at = time.time_ns()
        listing = await self._cri.list_containers()
        self._publish(self._ledger.reconcile(listing, at=asked_at))
        self._listed.set()

    def _publish(self, steps: Iterable[ContainerEvent]) -> None:
        for step in steps:
            for queue, pod_uid in self._subscribers.items():
                if pod_uid is None or pod_uid == step.pod.uid:
                    queue.put_nowait(step)

    def _lost(self, error: errors.CriError) -> None:
        status = ComponentStatus(ComponentState.DEGRADED, f"{error.what} ({error.where})", error.hint)
        if status != self._status:
            log.warning("cri.lost", endpoint=self._cri.endpoint, error=str(error))
        self._set_status(status)

    def _set_status(self, status: ComponentStatus) -> None:
        if status != self._status:
            self._status = status
            self._report(status)


def _clocks() -> events.Clocks:
    return events.Clocks(unix=time.time_ns(), since_boot=time.clock_gettime_ns(time.CLOCK_BOOTTIME))


class _ReadAhead:
    """Reads a stream one message ahead, so that a wait for a message can time out without losing one."""

    def __init__(self, stream: AsyncGenerator[api_pb2.ContainerEventResponse, None]) -> None:
        self._stream = stream
        self._upcoming: asyncio.Future[api_pb2.ContainerEventResponse] | None = None

    async def __aenter__(self) -> Self:
        self._upcoming = asyncio.ensure_future(anext(self._stream))
        return self

    async def __aexit__(self, *_: object) -> None:
        if (upcoming := self._upcoming) is not None:
            upcoming.cancel()
            await asyncio.wait({upcoming})
            if not upcoming.cancelled():
                upcoming.exception()  # mark it as retrieved: if it ended the loop, `next` has raised it

    async def next(self, *, until: float) -> api_pb2.ContainerEventResponse | None:
        """Return the next message, or None at loop time ``until``. Raises CriError when the stream ends."""
        assert self._upcoming is not None
        timeout = max(0.0, until - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait({self._upcoming}, timeout=timeout)
        if not done:
            return None
        message = self._upcoming.result()
        self._upcoming = asyncio.ensure_future(anext(self._stream))
        return message
