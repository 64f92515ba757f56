"""Queue the findings of all sources for the pipeline."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from kubemend.agent.metrics import Metrics
from kubemend.agent.model.findings import Finding

log = structlog.get_logger(__name__)

_LARGEST_BATCH: Final = 256


class FindingQueue:
    """Accepts findings without blocking, and counts those that have not been handled to the end."""

    def __init__(self, *, metrics: Metrics, capacity: int = 10_000) -> None:
        self._metrics = metrics
        self._queue: asyncio.Queue[Finding] = asyncio.Queue(maxsize=capacity)
        self._unfinished = 0

    def submit(self, finding: Finding) -> None:
        """Queue a finding; never blocks. One that does not fit is logged and counted as lost."""
        try:
            self._queue.put_nowait(finding)
        except asyncio.QueueFull:
            self._metrics.findings_lost.inc()
            log.error("finding.lost", source=finding.source.value, finding=finding.title, device=str(finding.device))

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
        self._unfinished += len(batch)
        return batch

    def unfinished(self) -> None:
        """Note that one finding is handled beyond its batch, until a ``finished`` of its own."""
        self._unfinished += 1

    def finished(self, count: int = 1) -> None:
        """Note that so many findings have been handled."""
        self._unfinished -= count
