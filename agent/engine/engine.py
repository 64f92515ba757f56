"""The agent's main line: each finding becomes a verdict, a word on the pods, and where it helps a restart.

Findings are folded one after another; whatever has to wait (for the runtime, for kubelet, for a process to end)
goes into a task of its own, so that one stuck container never delays the next finding.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from agent.engine import ports
from agent.engine.faults import AppFaults, Noted
from agent.engine.ledger import HealthLedger
from agent.engine.metrics import Metrics
from agent.engine.publishing import Publisher
from agent.health import evidence
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator
from agent.model.findings import Finding, FindingKind, Source
from agent.model.workloads import ContainerRef
from agent.sources.processes import ProcFs

log = structlog.get_logger(__name__)

_DRIVER_SECONDS = 2.0


class Engine:
    """Takes findings in and sees them through."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        publisher: Publisher,
        faults: AppFaults,
        devices: ports.Devices,
        processes: ProcFs,
        metrics: Metrics,
        classify: Callable[[FindingKind, str], ActionClass],
        now: Callable[[], float] = time.time,
        capacity: int = 10_000,
    ) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._faults = faults
        self._devices = devices
        self._processes = processes
        self._metrics = metrics
        self._classify = classify
        self._now = now
        self._queue: asyncio.Queue[Finding] = asyncio.Queue(maxsize=capacity)
        self._in_hand = 0

    def submit(self, finding: Finding) -> None:
        """Take a finding in; never blocks. One that does not fit is counted as lost, not silently dropped."""
        try:
            self._queue.put_nowait(finding)
        except asyncio.QueueFull:
            self._metrics.findings_lost.inc()
            log.error("finding.lost", source=finding.source.value, finding=finding.title, device=str(finding.device))

    @property
    def idle(self) -> bool:
        """Whether every finding so far has been folded, saved and acted on: only then may its source forget it."""
        return self._queue.empty() and self._in_hand == 0

    async def run(self) -> None:
        """Handle findings for ever."""
        async with asyncio.TaskGroup() as tasks:
            for device in self._ledger.devices():
                tasks.create_task(self._earlier_fault(device), name=f"earlier fault on {device}")
            while True:
                finding = await self._queue.get()
                self._in_hand += 1
                try:
                    await self._take(finding, tasks)
                finally:
                    self._in_hand -= 1

    async def _take(self, finding: Finding, tasks: asyncio.TaskGroup) -> None:
        if finding.action is ActionClass.RESTART_APP and evidence.LOOK_BACK in finding.evidence:
            # What an app-class fault of before our time hit has long crashed or coped: no ground to restart it now.
            log.info("finding.of_old", finding=finding.title, device=str(finding.device), pid=finding.pid)
            return
        noted = self._note(finding)
        named = self._faults.named_container(noted)
        self._publisher.verdict_changed(
            device=noted.device, named=named.pod if isinstance(named, ContainerRef) else None
        )
        await self._ledger.save()
        if finding.action is ActionClass.RESTART_APP:
            self._in_hand += 1
            tasks.create_task(self._mend(noted), name=f"mend {finding.title} on {noted.device}")
        elif finding.action is ActionClass.ASK_DRIVER:
            tasks.create_task(self._ask_driver(noted), name=f"ask the driver about {noted.device}")

    def _note(self, finding: Finding) -> Noted:
        """Fold it, and look up what must be looked up before the process is gone."""
        process = self._processes.look(finding.pid) if finding.pid is not None else None
        inventory = self._devices.inventory
        device = self._ledger.apply(finding, inventory=inventory)
        verdict = self._ledger.verdict(device, inventory=inventory)
        self._metrics.findings.labels(finding.source.value, finding.kind.value, finding.code).inc()
        self._metrics.findings_last_seen.labels(device, finding.kind.value, finding.code).set(finding.observed_at)
        log.info(
            "finding",
            source=finding.source.value,
            kind=finding.kind.value,
            code=finding.code,
            device=device,
            pid=finding.pid,
            process=finding.process_name,
            action=finding.action.value,
            verdict=verdict.health.value,
            verdict_reason=verdict.reason,
            text=finding.text,
        )
        return Noted(finding=finding, device=device, process=process)

    async def _mend(self, noted: Noted) -> None:
        """See one app-class fault through, to the end of what it hit."""
        try:
            over = await self._faults.mend(noted)
        finally:
            self._in_hand -= 1
        await over()
        if self._faults.is_over(noted):
            self._app_gone(noted.finding, text=f"what {noted.finding.title} hit has ended")

    async def _earlier_fault(self, device: str) -> None:
        """An app-class fault that an earlier agent left: over when no holder is older than the fault."""
        latches = [latch for latch in self._ledger.latches(device) if latch.action is ActionClass.RESTART_APP]
        if latches:
            await self._faults.replaced(device, since=max(latch.last_seen for latch in latches))
            where = ports.locator(device)
            self.submit(self._evidence(FindingKind.APP_GONE, where=where, text="every holder is newer than the fault"))

    async def _ask_driver(self, noted: Noted) -> None:
        """The table leaves it to the driver: ask it now rather than at the next poll."""
        gpu = self._devices.inventory.locate(noted.finding.device)
        code = await self._devices.recovery_action(gpu.uuid, timeout=_DRIVER_SECONDS) if gpu is not None else None
        if code is None:
            log.info("driver.no_verdict", device=noted.device, finding=noted.finding.title)
            return
        action = self._classify(FindingKind.RECOVERY_ACTION, str(code))
        word = self._evidence(
            FindingKind.RECOVERY_ACTION, where=noted.finding.device, text=f"asked after {noted.finding.title}"
        )
        self.submit(replace(word, source=Source.NVML, code=str(code), action=action))
        if action is ActionClass.NONE:
            # The driver's None is the licence to start a new process on the device: now it is an app-class fault.
            self.submit(replace(noted.finding, action=ActionClass.RESTART_APP))

    def _app_gone(self, finding: Finding, *, text: str) -> None:
        self.submit(self._evidence(FindingKind.APP_GONE, where=finding.device, text=text))

    def _evidence(self, kind: FindingKind, *, where: DeviceLocator, text: str) -> Finding:
        return Finding(
            source=Source.CRI,
            kind=kind,
            code="",
            device=where,
            action=ActionClass.NONE,
            observed_at=self._now(),
            text=text,
        )
