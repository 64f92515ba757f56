"""Degradations that a log told of and whose end no log tells: over when they have not been seen for long enough."""

import time
from collections.abc import Callable

import structlog

from agent.engine.ledger import HealthLedger
from agent.health.catalog import Catalog
from agent.model.actions import ActionClass
from agent.model.devices import locator
from agent.model.findings import Finding, FindingKind, Source
from common import aio, contained
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


class Fading:
    """Ends such degradations. Silence counts only while the kernel log is read."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        catalog: Catalog,
        submit: Callable[[Finding], None],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        period: float = 30.0,
    ) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._submit = submit
        self._now = now
        self._clock = clock
        self._period = period
        self._read_since: float | None = None

    def kernel_log_is(self, status: PartStatus) -> None:
        """Take in how the kernel log does now."""
        if status.state is not PartState.READY:
            self._read_since = None
        elif self._read_since is None:
            self._read_since = self._clock()

    async def run(self) -> None:
        """Look for ever at what may be over."""
        async for _ in aio.ticks(period=self._period):
            self.look()

    def look(self) -> None:
        """Look once."""
        if self._read_since is None:
            return
        read_for = self._clock() - self._read_since
        for device in self._ledger.devices():
            with contained.within(contained.Part.DEVICE, device):
                self._look_at(device, read_for=read_for)

    def _look_at(self, device: str, *, read_for: float) -> None:
        for latch in self._ledger.latches(device):
            silence = self._catalog.over_after(latch.key)
            if silence is not None and min(read_for, self._now() - latch.last_seen) >= silence:
                self._submit(
                    Finding(
                        source=Source.KERNEL_LOG,
                        kind=FindingKind.FAULT_OVER,
                        code=latch.kind.value,
                        device=locator(device),
                        action=ActionClass.NONE,
                        observed_at=self._now(),
                        text=f"{latch.title} has not been seen for {silence:.0f} s",
                    )
                )
