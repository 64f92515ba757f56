"""Follows every container on the node: the runtime's event stream, checked against listings; else listings alone."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Self

import structlog

from agent.cri import client, errors, events
from agent.cri.events import ContainerEvent
from agent.model.workloads import ContainerId, ContainerView, PodUid
from common import aio, contained
from common.parts import PartState, PartStatus
from common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two listings: ``audit`` beside a stream that tells all, ``poll`` where there is none.

    ``poll`` is kubelet's own relist period (pkg/kubelet/kubelet.go).
    """

    audit: float = 10.0
    poll: float = 1.0


class ContainerWatch:
    """Tells subscribers what happens to containers, through breaks of the stream and restarts of the runtime.

    Some streams stay open and silent (CRI-O without ``enable_pod_events``) or lose events to another reader
    (containerd 1.7 has one queue for all): where two listings in turn show what the stream has not told, the watch
    lists at the ``poll`` pace until the stream is opened anew.
    """

    def __init__(
        self, cri: client.CriClient, *, report: Callable[[PartStatus], None], pace: Pace | None = None
    ) -> None:
        self._cri = cri
        self._report = report
        self._pace = pace if pace is not None else Pace()
        self._ledger = events.Ledger()
        self._subscribers: dict[asyncio.Queue[ContainerEvent], PodUid | None] = {}
        self._status: PartStatus | None = None
        self._listed = asyncio.Event()
        self._stream_is_lossy = False
        self._suspects: frozenset[tuple[ContainerId, events.EventKind]] = frozenset()

    def containers(self) -> tuple[ContainerView, ...]:
        """Return what is known now, oldest first; empty before the first listing."""
        return self._ledger.containers()

    async def until_listed(self) -> None:
        """Wait for the first listing."""
        await self._listed.wait()

    @contextlib.asynccontextmanager
    async def subscribe(self, pod_uid: PodUid | None = None) -> AsyncIterator[asyncio.Queue[ContainerEvent]]:
        """Subscribe to the events of one pod, or of all, from now on.

        What was before is not told: subscribe first, then list. The queue has no bound, so that one slow reader
        neither stalls the others nor loses a step; hold a subscription only while you read it.
        """
        queue: asyncio.Queue[ContainerEvent] = asyncio.Queue()
        self._subscribers[queue] = pod_uid
        try:
            yield queue
        finally:
            del self._subscribers[queue]

    async def run(self) -> None:
        """Watch for ever."""
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
        self._ledger.stream_opened(at=time.time_ns())
        async with contextlib.aclosing(self._cri.events()) as stream, _Ahead(stream) as ahead:
            await self._list()
            backoff.reset()
            self._say(PartStatus(PartState.READY, "following the runtime's events"))
            try:
                # The first audit comes soon: the stream may have begun only after the listing above.
                await self._read(ahead, first_audit=self._pace.poll)
            except errors.Unsupported:
                await self._poll()

    async def _read(self, ahead: "_Ahead", *, first_audit: float) -> None:
        loop = asyncio.get_running_loop()
        audit_at = loop.time() + first_audit
        while True:
            message = await ahead.next(until=audit_at)
            if message is not None:
                with contained.within(contained.Part.CONTAINER, message.container_id):
                    self._take(message)
            if loop.time() >= audit_at:
                audit_at = loop.time() + await self._audit()

    def _take(self, message: api_pb2.ContainerEventResponse) -> None:
        if (seen := events.read(message)) is not None:
            self._publish(self._ledger.observe(seen))

    async def _audit(self) -> float:
        """List, and return after how many seconds to list again.

        What the stream has not told may be on its way; what it has still not told by the next audit is lost.
        """
        if self._stream_is_lossy:
            await self._list()
            return self._pace.poll
        asked_at = time.time_ns()
        listing = await self._cri.list_containers()
        untold = frozenset((step.container_id, step.kind) for step in self._ledger.untold(listing, at=asked_at))
        if untold & self._suspects:
            self._stream_is_lossy = True
            log.warning("cri.events_missed", endpoint=self._cri.endpoint)
            pace = f"listing every {self._pace.poll:g} s"
            self._say(PartStatus(PartState.READY, f"the runtime's event stream is incomplete; {pace}"))
            self._publish(self._ledger.reconcile(listing, at=asked_at))
        self._suspects = untold
        return self._pace.poll if untold else self._pace.audit

    async def _poll(self) -> None:
        """List again and again. Raises CriError when the runtime goes away, and may have events when it is back."""
        log.info("cri.no_event_stream", endpoint=self._cri.endpoint, poll_seconds=self._pace.poll)
        self._say(PartStatus(PartState.READY, f"the runtime has no event stream; listing every {self._pace.poll:g} s"))
        async for _ in aio.ticks(period=self._pace.poll):
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
        status = PartStatus(PartState.DEGRADED, f"{error.what} ({error.where})", error.mend)
        if status != self._status:
            log.warning("cri.lost", endpoint=self._cri.endpoint, error=str(error))
        self._say(status)

    def _say(self, status: PartStatus) -> None:
        if status != self._status:
            self._status = status
            self._report(status)


class _Ahead:
    """Reads a stream one message ahead, so that waiting for a message can be given up without losing one."""

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
                upcoming.exception()  # seen: where it is why we leave, `next` has raised it

    async def next(self, *, until: float) -> api_pb2.ContainerEventResponse | None:
        """Return the next message, or None at the loop's time ``until``. Raises CriError when the stream ends."""
        assert self._upcoming is not None
        timeout = max(0.0, until - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait({self._upcoming}, timeout=timeout)
        if not done:
            return None
        message = self._upcoming.result()
        self._upcoming = asyncio.ensure_future(anext(self._stream))
        return message
