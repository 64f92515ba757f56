"""Schedule reconciles of JobSets: at most one at a time for each, and changes that come together share one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from kubemend.common import aio, contained
from kubemend.common.kube import errors

log = structlog.get_logger(__name__)

_SETTLE_SECONDS: Final = 0.02
_PAUSE_SECONDS: Final = 0.1
_REFUSED_SECONDS: Final = 1.0

PARALLEL: Final = 16
"""JobSets that are reconciled at once. The alert KubemendJobSetsWait has this number, too."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Seconds: ``settle`` from the first change to the reconcile, ``pause`` minimum from one to the next.

    ``refused`` is that pause after a reconcile with a refused write.
    """

    settle: float = _SETTLE_SECONDS
    pause: float = _PAUSE_SECONDS
    refused: float = _REFUSED_SECONDS


@dataclass(slots=True)
class _Entry:
    """One key. ``due`` is loop time; None: nothing is due. ``wake``: reconcile then, even without a change."""

    backoff: aio.Backoff
    began: float = float("-inf")
    due: float | None = None
    timer: asyncio.TimerHandle | None = None
    wake: asyncio.TimerHandle | None = None
    busy: bool = False
    dirty: bool = False
    refused: bool = False

    def cancel(self) -> None:
        """Cancel its timers."""
        for each in (self.timer, self.wake):
            if each is not None:
                each.cancel()


class Queue:
    """A work queue. ``add`` queues a changed key, ``run`` reconciles."""

    def __init__(
        self,
        reconcile: Callable[[str], Awaitable[float | None]],
        *,
        intervals: Intervals | None = None,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.05, limit=30.0),
        parallel: int = PARALLEL,
        rest: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        """``reconcile`` returns after how many seconds to reconcile again without a change; None: not needed.

        If it raises, it is called again after ``backoff``; an error other than KubeError is an internal error, and
        contained. ``parallel`` keys are reconciled at once. ``rest`` is the minimum in seconds from one reconcile of a
        key to the next, if ``pace`` has less.
        """
        self._reconcile = reconcile
        self._intervals = intervals if intervals is not None else Intervals()
        self._backoff = backoff
        self._parallel = parallel
        self._rest = rest
        self._entries: dict[str, _Entry] = {}
        self._ready: asyncio.Queue[str] = asyncio.Queue()

    @property
    def depth(self) -> int:
        """Return how many keys wait for a reconcile or are being reconciled."""
        return sum(1 for each in self._entries.values() if each.busy or each.due is not None)

    def is_settled(self, key: str) -> bool:
        """Return whether a key is not being reconciled and has not changed since."""
        entry = self._entries.get(key)
        return entry is None or not (entry.busy or entry.due is not None)

    def add(self, key: str) -> None:
        """Queue a key that has changed."""
        entry = self._entry(key)
        if entry.busy:
            entry.dirty = True
            return
        now = asyncio.get_running_loop().time()
        pause = max(self._intervals.refused if entry.refused else self._intervals.pause, self._rest(key))
        self._schedule(key, entry, max(now + self._intervals.settle, entry.began + pause))

    def forget(self, key: str) -> None:
        """Drop a key: the JobSet no longer exists."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.cancel()

    async def run(self) -> None:
        """Reconcile indefinitely. When cancelled, forget everything: another leader reconciles all JobSets."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._parallel):
                    aio.spawn_eternal(group, self._work(), name=f"jobsets {number}")
        finally:
            for entry in self._entries.values():
                entry.cancel()
            self._entries.clear()
            self._ready = asyncio.Queue()

    def _entry(self, key: str) -> _Entry:
        if key not in self._entries:
            self._entries[key] = _Entry(self._backoff())
        return self._entries[key]

    def _schedule(self, key: str, entry: _Entry, at: float) -> None:
        """Schedule a reconcile for then, unless an earlier one is scheduled."""
        if entry.due is not None and entry.due <= at:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        entry.due = at
        entry.timer = asyncio.get_running_loop().call_at(at, self._ready.put_nowait, key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            entry = self._entries.get(key)
            if entry is None or entry.busy or entry.due is None:
                continue  # forgotten in the meantime
            entry.busy, entry.dirty, entry.due, entry.timer = True, False, None, None
            entry.began = asyncio.get_running_loop().time()
            again = await self._one(key, entry)
            entry.busy = False
            if self._entries.get(key) is not entry:
                continue
            self._wake(key, entry, again)
            if entry.dirty:
                self.add(key)

    async def _one(self, key: str, entry: _Entry) -> float | None:
        """Reconcile once; return after how many seconds to do so again."""
        entry.refused = False
        again: float | None = None
        try:
            with contained.within(contained.Part.JOBSET, key, passing=(errors.KubeError,)) as work:
                again = await self._reconcile(key)
        except (errors.ConflictError, errors.ApiUnavailableError) as error:
            log.info("jobset.requeued", jobset=key, error=str(error))
            return entry.backoff.next_wait()
        except errors.KubeError as error:  # most likely only a person can fix it
            entry.refused = True
            log.warning("jobset.refused", jobset=key, error=str(error))
            return entry.backoff.next_wait()
        if work.failed:
            return entry.backoff.next_wait()
        entry.backoff.reset()
        return again

    def _wake(self, key: str, entry: _Entry, again: float | None) -> None:
        """Reconcile again then, unless something changes before."""
        if entry.wake is not None:
            entry.wake.cancel()
        loop = asyncio.get_running_loop()
        entry.wake = None if again is None else loop.call_later(max(again, 0.0), self.add, key)
