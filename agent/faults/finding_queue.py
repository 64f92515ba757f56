"""Queue the findings of all sources for the pipeline, and recognize duplicates.

NVSentinel saw 672 fatal events in 3 h from one job.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

import structlog

from kubemend.agent.metrics import Metrics
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind, Source

log = structlog.get_logger(__name__)

_LARGEST_BATCH: Final = 256
_FULL_SHARE: Final = 0.75


class FindingQueue:
    """Accepts findings without blocking, and counts those that have not been handled to the end.

    Lines of the kernel log and Xids may come by the thousand. All other findings are emitted once, at the beginning and
    the end of a state: they have as much room again, because one that is lost would leave a wrong verdict.
    """

    def __init__(self, *, metrics: Metrics, capacity: int = 10_000) -> None:
        self._metrics = metrics
        self._capacity = capacity
        self._queue: asyncio.Queue[Finding] = asyncio.Queue()
        self._unfinished = 0
        self._drained = asyncio.Event()
        self._drained.set()

    def submit(self, finding: Finding) -> None:
        """Queue a finding; never blocks. One that does not fit is logged and counted as lost."""
        floods = finding.source is Source.KERNEL_LOG or finding.kind is FindingKind.XID
        if self._queue.qsize() >= (self._capacity if floods else 2 * self._capacity):
            self._metrics.findings_lost.inc()
            log.error("finding.lost", source=finding.source.value, finding=finding.title, device=str(finding.device))
            return
        self._queue.put_nowait(finding)
        if self._queue.qsize() >= _FULL_SHARE * self._capacity:
            self._drained.clear()

    async def drained(self) -> None:
        """Wait until there is room for a batch of lines; returns at once if there is.

        For a source that can wait, as the kernel log: the kernel keeps the lines. It waits only where findings would be
        lost soon, because a report that overtakes the line with its process is attributed without it.
        """
        await self._drained.wait()

    def idle(self) -> bool:
        """Return whether all findings so far are folded, saved and handled. Only then may the source forget them."""
        return self._queue.empty() and self._unfinished == 0

    async def next_batch(self) -> Sequence[Finding]:
        """Wait for a finding and take all that are queued, so that a burst is written to disk once per batch.

        The findings count as unfinished: call ``finished`` when they have been handled.
        """
        batch = [await self._queue.get()]
        while len(batch) < _LARGEST_BATCH and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        if self._queue.qsize() < _FULL_SHARE * self._capacity:
            self._drained.set()
        self._unfinished += len(batch)
        return batch

    def unfinished(self) -> None:
        """Note that one finding is handled beyond its batch, until a ``finished`` of its own."""
        self._unfinished += 1

    def finished(self, count: int = 1) -> None:
        """Note that so many findings have been handled."""
        self._unfinished -= count


CALM: Final = 1.0
"""Seconds within which a source's reports of one fault of a process on a device count as duplicates.

NVML's are none of the kernel log's: they are attributed differently (``agent.health.state.attribution``).
"""

_MOST_FAULTS = 4096

_Fault = tuple[str, Source, FindingKind, str, int | None, ActionClass]


class FindingDeduplicator:
    """Remember the faults that are being handled. ``clock`` is monotonic, in seconds."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._acted: dict[_Fault, float] = {}

    def is_duplicate(self, finding: Finding, *, device: str) -> bool:
        """Return whether the same fault was handled less than ``CALM`` seconds ago; if not, record it now."""
        now = self._clock()
        fault = (device, finding.source, finding.kind, finding.code, finding.pid, finding.action)
        if now - self._acted.get(fault, float("-inf")) < CALM:
            return True
        if len(self._acted) >= _MOST_FAULTS:
            self._acted = {fault: at for fault, at in self._acted.items() if now - at < CALM}
        self._acted[fault] = now
        return False

    def over(self, device: str) -> None:
        """Forget a device's faults after their end, so that the next one is handled again."""
        self._acted = {fault: at for fault, at in self._acted.items() if fault[0] != device}
