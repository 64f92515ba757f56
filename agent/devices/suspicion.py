"""Track suspicions against devices: outcomes of restarts raise them, contrary evidence from the driver ends them.

Time alone neither raises nor ends one. Suspicions of a previous agent are checked in the same way.
"""

import time
from collections.abc import Callable

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import device_processes
from kubemend.agent.devices.steady_times import SteadyTimes
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.health.state import fold
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.restart.device_release import DeviceUse
from kubemend.common import aio, contained

log = structlog.get_logger(__name__)

LASTING = 600.0
"""Seconds for which a process must have been seen on a device that is suspect because restarts on it did not last."""

_DRIVER_SECONDS = 2.0


class SuspicionTracker:
    """Emit suspicions as findings and check them.

    ``since_boot`` is the clock of processes' start times. It counts suspends of the node, in which nothing works:
    ``awake``, by which work is counted, stands still in them.
    """

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        driver: device_processes.Driver,
        processes: ports.DeviceProcesses,
        submit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        now: Callable[[], float] = time.time,
        since_boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        awake: Callable[[], float] = time.monotonic,
        period: float = 10.0,
    ) -> None:
        self._verdict_store = verdict_store
        self._driver = driver
        self._processes = processes
        self._submit = submit
        self._classify = classify
        self._now = now
        self._since_boot = since_boot
        self._awake = awake
        self._period = period
        self._times = SteadyTimes(now=now, clock=since_boot)
        self._at_work: dict[str, dict[tuple[int, float], float]] = {}
        """By suspect device, the processes on it (pid, start), and when each was first seen there by ``awake``."""

    def mark_suspect(self, kind: FindingKind, *, device: str, text: str) -> None:
        """Raise a suspicion (one of ``fold.SUSPICIONS``) against a device, by any of its names."""
        self._emit(kind, code="", device=device, text=text, action=self._classify(kind, ""))

    async def run(self) -> None:
        """Check suspicions periodically."""
        async for _ in aio.ticks(period=self._period):
            await self.check()

    async def check(self) -> None:
        """Check every device with faults once."""
        for device in self._verdict_store.devices():
            with contained.within(contained.Part.DEVICE, device):
                await self._check_device(device)

    async def _check_device(self, device: str) -> None:
        for active_fault in self._verdict_store.active_faults(device):
            if active_fault.kind in fold.SUSPICIONS and (reason := await self._over(device, active_fault)):
                kind = FindingKind.FAULT_OVER
                self._emit(kind, code=active_fault.kind.value, device=device, text=reason, action=ActionClass.NONE)

    async def _over(self, device: str, active_fault: fold.ActiveFault) -> str:
        """Return the evidence against a suspicion; empty if there is none, or the driver does not answer."""
        uuid = locator(device).uuid
        uses = await self._driver.uses([uuid], timeout=_DRIVER_SECONDS) if uuid is not None else None
        if uuid is None or uses is None or uuid not in uses:
            return ""
        if active_fault.kind is FindingKind.PROCESS_STUCK:
            stuck = any(
                device_processes.is_stuck(self._processes, each.pid, if_unknown=True) for each in uses[uuid].processes
            )
            return "" if stuck else "it no longer has a process that cannot be killed"
        raised = self._times.of(device, last_seen=active_fault.last_seen)
        return self._evidence_of_work(device, uses[uuid], since=raised)

    def _evidence_of_work(self, device: str, use: DeviceUse, *, since: float) -> str:
        now, before = self._awake(), self._at_work.get(device, {})
        found = (device_processes.read_facts(self._processes, each.pid) for each in use.processes)
        newer = [(each.pid, each.started) for each in found if each is not None and each.started >= since]
        seen = self._at_work[device] = {process: before.get(process, now) for process in newer}
        for (pid, _), first in seen.items():
            if now - first >= LASTING:
                return f"pid {pid} has worked on it for {now - first:.0f} s"
        return ""

    def _emit(self, kind: FindingKind, *, code: str, device: str, text: str, action: ActionClass) -> None:
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
