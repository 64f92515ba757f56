"""Converge Restart objects to the requested state: no queue of writes, so an outage only costs time.

Only the newest status of each object is written, after the write that brings the object under kubemend's management.
Writes are serial for one object and concurrent for different ones. Users can create any number of objects that are
answered at once, so each namespace has a share of the writes; further ones wait without a task.
"""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors
from kubemend.controller.restarts import objects, writing

log = structlog.get_logger(__name__)

_MOST_LEFT_OVER = 1000
"""Ends of rounds that are kept beyond a term."""
OF_A_NAMESPACE = 64
"""Objects that are written at a time, including those whose write is retried later. A round's record never waits."""

First = Callable[[], Coroutine[Any, Any, writing.Written]]
"""The write that makes kubemend manage an object: its creation, or the takeover of a request or an orphan."""


class _Pending:
    """One object, with its unwritten changes."""

    def __init__(self, restart_id: str, *, known: writing.Written | None, since: float) -> None:
        self.id = restart_id
        self.namespace = restart_id.partition("/")[0]
        self.known = known
        self.first: First | None = None
        self.status: Mapping[str, Any] | None = None
        self.active = False
        self.left = False  # by a term that is over
        self.since = since  # loop time
        self.durable = asyncio.Event()
        self.settled = asyncio.Event()  # durable, or never will be

    @property
    def is_written(self) -> bool:
        return self.first is None and self.status is None


class StatusWriter:
    """Write Restart objects. ``begin`` and ``set_status`` set the requested state, ``run`` writes it."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None],
        clock: Callable[[], float] = time.time,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.1, limit=5.0),
        give_up: float = 900.0,
        parallel: int = 8,
    ) -> None:
        """Create it; ``clock`` returns Unix seconds; after ``give_up`` seconds a write that always fails is dropped.

        ``parallel`` is how many objects are written at once.
        """
        self._api = api
        self._report = report
        self._clock = clock
        self._backoff = backoff
        self._give_up = give_up
        self._slots = asyncio.Semaphore(parallel)
        self._pending: dict[str, _Pending] = {}
        self._ours: dict[str, writing.Written] = {}  # begun here, and unfinished
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue()
        self._active: Counter[str] = Counter()  # objects, by namespace
        self._waiting: defaultdict[str, deque[_Pending]] = defaultdict(deque)  # for the share of their namespace
        self._left: asyncio.Queue[_Pending] = asyncio.Queue()
        self._all_written = asyncio.Event()
        self._all_written.set()

    def known(self, restart_id: str) -> writing.Written | None:
        """Return the preconditions of an object that was begun here; None if it was not, or has ended."""
        return self._ours.get(restart_id)

    def is_pending(self, restart_id: str) -> bool:
        """Return whether a write of an object is outstanding."""
        return restart_id in self._pending

    async def begin(self, restart_id: str, first: First, *, timeout: float) -> bool:
        """Do ``first``; return whether it succeeds within ``timeout`` seconds. After that it is still retried.

        If another leader was faster, or the API server refuses it, it is never done: False at once. An unwritten status
        is of a deleted object of that name, and stays apart.
        """
        entry = self._new_entry(restart_id, known=None)
        entry.first = first
        self._wake(entry)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await entry.settled.wait()
        return entry.durable.is_set()

    def set_status(self, restart_id: str, status: Mapping[str, Any], *, known: writing.Written | None) -> None:
        """Set the status to write; ``known`` are the object's preconditions, None if it was begun here.

        Does not block.
        """
        entry = self._entry(restart_id, known=known)
        entry.status = dict(status)
        self._wake(entry)

    async def flush(self, *, timeout: float) -> bool:
        """Wait until everything is written, ``timeout`` seconds at most; return whether it is.

        Needs ``run`` running.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._all_written.wait()
        return not self._pending

    async def run(self) -> None:
        """Write indefinitely. When cancelled, outstanding writes are dropped, because another leader handles them.

        The exception is the end of a round, which only this process knows: that is left to ``finish``.
        """
        self._report(ComponentStatus(ComponentState.IDLE, "nothing to write yet"))
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    entry = await self._queue.get()
                    group.create_task(self._converge(entry), name=f"restart {entry.id}")
        finally:
            for entry in self._pending.values():
                if (entry.status or {}).get("phase") in objects.FINAL and self._left.qsize() < _MOST_LEFT_OVER:
                    entry.left = True
                    self._left.put_nowait(entry)
            self._pending.clear()
            self._ours.clear()
            self._queue = asyncio.Queue()
            self._active.clear()
            self._waiting.clear()
            self._all_written.set()

    async def finish(self) -> None:
        """Write the ends of rounds that were outstanding when their term ended; runs indefinitely, leader or not.

        It is harmless: an object that belongs to another leader by now is left unchanged (``writing.SupersededError``).
        """
        async with asyncio.TaskGroup() as group:
            while True:
                entry = await self._left.get()
                group.create_task(self._converge(entry), name=f"end of restart {entry.id}")

    def _entry(self, restart_id: str, *, known: writing.Written | None) -> _Pending:
        """Return the object's entry. One that has replaced the object that was begun here has an entry of its own."""
        ours, entry = self._ours.get(restart_id), self._pending.get(restart_id)
        if ours is None or (known is not None and known.uid != ours.uid):
            ours = known
        if entry is None or (ours is not None and entry.known is not None and entry.known.uid != ours.uid):
            return self._new_entry(restart_id, known=ours)
        return entry

    def _new_entry(self, restart_id: str, *, known: writing.Written | None) -> _Pending:
        entry = _Pending(restart_id, known=known, since=asyncio.get_running_loop().time())
        self._pending[restart_id] = entry
        self._all_written.clear()
        return entry

    def _wake(self, entry: _Pending) -> None:
        if entry.active:
            return
        entry.active = True
        if entry.first is not None or self._active[entry.namespace] < OF_A_NAMESPACE:
            self._begin_writing(entry)
        else:
            self._waiting[entry.namespace].append(entry)

    def _begin_writing(self, entry: _Pending) -> None:
        self._active[entry.namespace] += 1
        self._queue.put_nowait(entry)

    def _end_writing(self, namespace: str) -> None:
        """Give the place of an object to the next of its namespace."""
        self._active[namespace] -= 1
        waiting = self._waiting.get(namespace)
        if waiting is not None and self._active[namespace] < OF_A_NAMESPACE:
            self._begin_writing(waiting.popleft())
            if not waiting:
                del self._waiting[namespace]
        if not self._active[namespace]:
            del self._active[namespace]

    async def _converge(self, entry: _Pending) -> None:
        """Write until everything about one object is written, or never can be."""
        with contained.within(contained.Part.RESTART, entry.id):
            await self._write_all(entry)
        entry.settled.set()
        self._forget(entry)  # not when it is cancelled: then ``run`` hands over outstanding writes

    async def _write_all(self, entry: _Pending) -> None:
        backoff = self._backoff()
        while not entry.is_written:
            try:
                async with self._slots:
                    await self._write(entry)
                self._report_status(entry, ComponentStatus(ComponentState.READY))
            except writing.SupersededError as error:
                log.warning("restart.superseded", restart=entry.id, error=str(error))
                break
            except errors.InvalidError as error:
                log.error("restart.refused", restart=entry.id, error=str(error))
                break
            except errors.KubeError as error:
                if asyncio.get_running_loop().time() - entry.since > self._give_up:
                    log.error("restart.timed_out", restart=entry.id, error=str(error))
                    break
                if not _concerns_one_namespace(error):
                    self._report_status(
                        entry, ComponentStatus(ComponentState.DEGRADED, error.what, error.hint or _hint(error))
                    )
                log.warning("restart.write_failed", restart=entry.id, error=str(error))
                await backoff.wait()

    async def _write(self, entry: _Pending) -> None:
        if entry.first is not None:
            entry.known = await entry.first()
            entry.first = None
            if not entry.left:
                self._ours[entry.id] = entry.known
            entry.durable.set()
            entry.settled.set()
            log.info("restart.begun", restart=entry.id, epoch=entry.known.epoch)
        status = entry.status
        if status is None:
            return
        assert entry.known is not None
        await writing.write_status(self._api, entry.known, status, now=self._clock())
        log.info("restart.written", restart=entry.id, phase=status.get("phase"))
        if entry.status is status:  # else there is a newer one in the meantime
            entry.status = None
            if status.get("phase") in objects.FINAL and not entry.left:
                self._disown(entry)

    def _report_status(self, entry: _Pending, status: ComponentStatus) -> None:
        if not entry.left:  # this replica may be on standby while another one leads
            self._report(status)

    def _forget(self, entry: _Pending) -> None:
        if entry.left:
            return
        if not entry.is_written:
            self._disown(entry)
        if self._pending.get(entry.id) is entry:
            del self._pending[entry.id]
        self._end_writing(entry.namespace)
        if not self._pending:
            self._all_written.set()
            if not entry.is_written:  # given up: its error says nothing about the next object
                self._report(ComponentStatus(ComponentState.IDLE, "nothing to write"))

    def _disown(self, entry: _Pending) -> None:
        """Forget an object that has ended, unless another one of its name has begun since."""
        if self._ours.get(entry.id) is entry.known:
            self._ours.pop(entry.id, None)


def _concerns_one_namespace(error: errors.KubeError) -> bool:
    """Return whether an error shows nothing about other objects: a quota, or a namespace that is being deleted."""
    if isinstance(error, errors.ForbiddenError):
        return error.is_by_admission
    return isinstance(error, errors.ConflictError) or (
        isinstance(error, errors.NotFoundError) and error.server_message.startswith("namespaces ")
    )


def _hint(error: errors.KubeError) -> str:
    """Return a hint for errors without one: a resource that is not found has not been installed."""
    return "Run kubectl apply -k daemonset/crds." if isinstance(error, errors.NotFoundError) else ""
