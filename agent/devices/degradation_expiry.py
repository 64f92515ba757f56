"""End degradations that only a log reports: they are over when they have not been seen for long enough."""

import time
from collections.abc import Callable

import structlog

from kubemend.agent.devices.steady_times import SteadyTimes
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.health.state.fold import ActiveFault
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus

log = structlog.get_logger(__name__)


class DegradationExpiry:
    """End such degradations. Silence counts only while the kernel log is read."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        catalog: Catalog,
        submit: Callable[[Finding], None],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        period: float = 30.0,
    ) -> None:
        self._verdict_store = verdict_store
        self._catalog = catalog
        self._submit = submit
        self._now = now
        self._clock = clock
        self._period = period
        self._read_since: float | None = None
        self._times = SteadyTimes(now=now, clock=clock)

    def kernel_log_is(self, status: ComponentStatus) -> None:
        """Record the kernel log's current status."""
        if status.state is not ComponentState.READY:
            self._read_since = None
        elif self._read_since is None:
            self._read_since = self._clock()

    async def run(self) -> None:
        """Check periodically for degradations that are over."""
        async for _ in aio.ticks(period=self._period):
            self.check()

    def check(self) -> None:
        """Check once."""
        if self._read_since is None:
            return
        read_for = self._clock() - self._read_since
        for device in self._verdict_store.devices():
            with contained.within(contained.Part.DEVICE, device):
                self._check_device(device, read_for=read_for)

    def _check_device(self, device: str, *, read_for: float) -> None:
        for active_fault in self._verdict_store.active_faults(device):
            silence = self._catalog.over_after(active_fault.key)
            if silence is not None and min(read_for, self._silent_for(device, active_fault)) >= silence:
                self._submit(
                    Finding(
                        source=Source.KERNEL_LOG,
                        kind=FindingKind.FAULT_OVER,
                        code=active_fault.kind.value,
                        device=locator(device),
                        action=ActionClass.NONE,
                        observed_at=self._now(),
                        text=f"{active_fault.title} has not been seen for {silence:.0f} s",
                    )
                )

    def _silent_for(self, device: str, active_fault: ActiveFault) -> float:
        """Return the seconds since a degradation was last seen, however often the wall clock has been set since."""
        return self._clock() - self._times.of((device, active_fault.key), last_seen=active_fault.last_seen)
