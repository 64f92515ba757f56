"""Brings Restart objects to what was said about them: desired state, not a queue, so an outage costs nothing but time.

Of each object the newest status alone is written, after what makes it ours; in series, and different objects at once.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from common import aio, contained
from common.kube import client, errors
from common.parts import PartState, PartStatus
from controller.restarts import objects, writing

log = structlog.get_logger(__name__)

_MOST_LEFT = 1000
"""Ends of rounds that are kept beyond a term."""

First = Callable[[], Coroutine[Any, Any, writing.Written]]
"""The write that makes an object ours: its creation, or the one by which a request or an orphan is taken on."""


class _Unsaid:
    """One object, and what the API server does not know of it yet."""

    def __init__(self, restart_id: str, *, known: writing.Written | None, since: float) -> None:
        self.id = restart_id
        self.known = known
        self.first: First | None = None
        self.status: Mapping[str, Any] | None = None
        self.active = False
        self.left = False  # by a term that is over
        self.since = since  # loop time
        self.durable = asyncio.Event()

    @property
    def is_said(self) -> bool:
        return self.first is None and self.status is None


class Writer:
    """``begin`` and ``set_status`` say what should be, ``run`` brings it about."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[PartStatus], None],
        clock: Callable[[], float] = time.time,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.1, limit=5.0),
        give_up: float = 900.0,
        parallel: int = 8,
    ) -> None:
        """Create it; ``clock`` gives Unix seconds, ``give_up`` are those after which it drops what is never taken.

        ``parallel`` is how many objects are written at once.
        """
        self._api = api
        self._report = report
        self._clock = clock
        self._backoff = backoff
        self._give_up = give_up
        self._slots = asyncio.Semaphore(parallel)
        self._unsaid: dict[str, _Unsaid] = {}
        self._ours: dict[str, writing.Written] = {}  # begun here, and not at their end
        self._queue: asyncio.Queue[_Unsaid] = asyncio.Queue()
        self._left: asyncio.Queue[_Unsaid] = asyncio.Queue()
        self._all_said = asyncio.Event()
        self._all_said.set()

    def known(self, restart_id: str) -> writing.Written | None:
        """Return what to presuppose of an object that was begun here; None where it was not, or has ended."""
        return self._ours.get(restart_id)

    def is_unsaid(self, restart_id: str) -> bool:
        """Whether the API server lacks something about an object."""
        return restart_id in self._unsaid

    async def begin(self, restart_id: str, first: First, *, timeout: float) -> bool:
        """Have ``first`` done; return whether it is within ``timeout`` seconds. If not, it is tried on."""
        entry = self._entry(restart_id, known=None)
        entry.first = first
        self._wake(entry)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await entry.durable.wait()
        return entry.durable.is_set()

    def set_status(self, restart_id: str, status: Mapping[str, Any], *, known: writing.Written | None) -> None:
        """Say what the status should be; ``known`` where it was not begun here. Does not block."""
        entry = self._entry(restart_id, known=known)
        entry.status = dict(status)
        self._wake(entry)

    async def flush(self, *, timeout: float) -> bool:
        """Wait until all is written, ``timeout`` seconds at most; return whether it is. Needs ``run`` running."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._all_said.wait()
        return not self._unsaid

    async def run(self) -> None:
        """Write for ever. What is unsaid when it is cancelled stays so: another leader has it then.

        But how a round has ended nobody else knows: that is left to ``finish``.
        """
        self._report(PartStatus(PartState.IDLE, "there is nothing to write yet"))
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    entry = await self._queue.get()
                    group.create_task(self._converge(entry), name=f"restart {entry.id}")
        finally:
            for entry in self._unsaid.values():
                if (entry.status or {}).get("phase") in objects.FINAL and self._left.qsize() < _MOST_LEFT:
                    entry.left = True
                    self._left.put_nowait(entry)
            self._unsaid.clear()
            self._ours.clear()
            self._queue = asyncio.Queue()
            self._all_said.set()

    async def finish(self) -> None:
        """Write how rounds have ended of which the API server was not told while we led; for ever, whoever leads.

        It harms nobody: an object that belongs to another leader by now is left alone (``writing.SupersededError``).
        """
        async with asyncio.TaskGroup() as group:
            while True:
                entry = await self._left.get()
                group.create_task(self._converge(entry), name=f"end of restart {entry.id}")

    def _entry(self, restart_id: str, *, known: writing.Written | None) -> _Unsaid:
        entry = self._unsaid.get(restart_id)
        if entry is None:
            known = self._ours.get(restart_id, known)
            entry = _Unsaid(restart_id, known=known, since=asyncio.get_running_loop().time())
            self._unsaid[restart_id] = entry
            self._all_said.clear()
        return entry

    def _wake(self, entry: _Unsaid) -> None:
        if not entry.active:
            entry.active = True
            self._queue.put_nowait(entry)

    async def _converge(self, entry: _Unsaid) -> None:
        """Write until the API server knows all that was said about one object, or never will."""
        with contained.within(contained.Part.RESTART, entry.id):
            await self._write_all(entry)
        self._forget(entry)  # not when it is cancelled: ``run`` hands on what is unsaid then

    async def _write_all(self, entry: _Unsaid) -> None:
        backoff = self._backoff()
        while not entry.is_said:
            try:
                async with self._slots:
                    await self._write(entry)
                self._tell(entry, PartStatus(PartState.READY))
            except writing.SupersededError as error:
                log.warning("restart.superseded", restart=entry.id, error=str(error))
                break
            except errors.InvalidError as error:
                log.error("restart.refused", restart=entry.id, error=str(error))
                break
            except errors.KubeError as error:
                if asyncio.get_running_loop().time() - entry.since > self._give_up:
                    log.error("restart.given_up", restart=entry.id, error=str(error))
                    break
                self._tell(entry, PartStatus(PartState.DEGRADED, error.what, error.mend or _mend(error)))
                log.warning("restart.not_written", restart=entry.id, error=str(error))
                await backoff.wait()

    async def _write(self, entry: _Unsaid) -> None:
        if entry.first is not None:
            entry.known = await entry.first()
            entry.first = None
            if not entry.left:
                self._ours[entry.id] = entry.known
            entry.durable.set()
            log.info("restart.begun", restart=entry.id, epoch=entry.known.epoch)
        status = entry.status
        if status is None:
            return
        assert entry.known is not None
        await writing.write_status(self._api, entry.known, status, now=self._clock())
        log.info("restart.written", restart=entry.id, phase=status.get("phase"))
        if entry.status is status:  # else a newer one has been said meanwhile
            entry.status = None
            if status.get("phase") in objects.FINAL and not entry.left:
                self._ours.pop(entry.id, None)

    def _tell(self, entry: _Unsaid, status: PartStatus) -> None:
        if not entry.left:  # this replica may stand by, and another one lead
            self._report(status)

    def _forget(self, entry: _Unsaid) -> None:
        if entry.left:
            return
        if not entry.is_said:
            self._ours.pop(entry.id, None)
        del self._unsaid[entry.id]
        if not self._unsaid:
            self._all_said.set()


def _mend(error: errors.KubeError) -> str:
    """Return what to do where the error does not say it: a resource that is not found has not been installed."""
    return "kubectl apply -k daemonset/crds" if isinstance(error, errors.NotFoundError) else ""
