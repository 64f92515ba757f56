"""Suspicions against devices: raised by what becomes of restarts, over when a look at the device speaks against them.

Nothing is raised or ended by time alone. What an earlier agent suspected is looked at in the same way.
"""

import time
from collections.abc import Callable

import structlog

from agent.actuator import occupants
from agent.engine.ledger import HealthLedger
from agent.health import fold
from agent.model.actions import ActionClass
from agent.model.devices import locator
from agent.model.findings import Finding, FindingKind, Source
from agent.restart.gates import DeviceUse
from common import aio, contained

log = structlog.get_logger(__name__)

LASTING = 600.0
"""Seconds for which a process must have worked on a device that is suspect because restarts on it did not last."""

_DRIVER_SECONDS = 2.0


class Suspects:
    """Turns suspicions into findings, and looks after them. ``since_boot`` is the clock of processes' start times."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        driver: occupants.Driver,
        processes: occupants.Processes,
        submit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        now: Callable[[], float] = time.time,
        since_boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        period: float = 10.0,
    ) -> None:
        self._ledger = ledger
        self._driver = driver
        self._processes = processes
        self._submit = submit
        self._classify = classify
        self._now = now
        self._since_boot = since_boot
        self._period = period

    def suspect(self, kind: FindingKind, *, device: str, text: str) -> None:
        """Raise a suspicion (one of ``fold.SUSPICIONS``) against a device, by any of its names."""
        self._tell(kind, code="", device=device, text=text, action=self._classify(kind, ""))

    async def run(self) -> None:
        """Look after suspicions for ever."""
        async for _ in aio.ticks(period=self._period):
            await self.look()

    async def look(self) -> None:
        """Look once at every device that is suspect."""
        for device in self._ledger.devices():
            with contained.within(contained.Part.DEVICE, device):
                await self._look_at(device)

    async def _look_at(self, device: str) -> None:
        for latch in self._ledger.latches(device):
            if latch.kind in fold.SUSPICIONS and (why := await self._over(device, latch)):
                kind = FindingKind.FAULT_OVER
                self._tell(kind, code=latch.kind.value, device=device, text=why, action=ActionClass.NONE)

    async def _over(self, device: str, latch: fold.Latch) -> str:
        """Return what speaks against a suspicion; empty while nothing does, or the driver does not answer."""
        uuid = locator(device).uuid
        uses = await self._driver.uses([uuid], timeout=_DRIVER_SECONDS) if uuid is not None else None
        if uuid is None or uses is None or uuid not in uses:
            return ""
        if latch.kind is FindingKind.PROCESS_STUCK:
            stuck = any(
                occupants.is_stuck(self._processes, each.pid, unless_told=True) for each in uses[uuid].processes
            )
            return "" if stuck else "no process that cannot be killed is on it any more"
        return self._works(uses[uuid], since=latch.last_seen)

    def _works(self, use: DeviceUse, *, since: float) -> str:
        booted_at = self._now() - self._since_boot()
        for each in use.processes:
            process = occupants.look(self._processes, each.pid)
            began = booted_at + process.started if process is not None else 0.0
            if began >= since and self._now() - began >= LASTING:
                return f"pid {each.pid} has worked on it for {self._now() - began:.0f} s"
        return ""

    def _tell(self, kind: FindingKind, *, code: str, device: str, text: str, action: ActionClass) -> None:
        self._submit(
            Finding(
                source=Source.RESTART,
                kind=kind,
                code=code,
                device=locator(device),
                action=action,
                observed_at=self._now(),
                text=text,
            )
        )
