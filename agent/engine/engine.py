"""The agent's main line: each finding becomes a verdict, a word on the pods, and where it helps a restart.

Findings are folded one after another; whatever has to wait (for the runtime, for kubelet, for a process to end)
goes into a task of its own, so that one stuck container never delays the next finding.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog

from agent.engine import ports
from agent.engine.driver_questions import DriverQuestions
from agent.engine.faults import AppFaults, Noted
from agent.engine.ledger import HealthLedger
from agent.engine.lost_devices import LostDevices
from agent.engine.metrics import Metrics
from agent.engine.publishing import Publisher
from agent.engine.storms import Storms
from agent.health import evidence, fold
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator, locator
from agent.model.findings import Finding, FindingKind, Source
from agent.model.workloads import ContainerRef
from agent.sources.processes import ProcessFacts, ProcFs
from common import contained
from common.contained import Part

log = structlog.get_logger(__name__)

_LARGEST_BATCH = 256


class Engine:
    """Takes findings in and sees them through."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        publisher: Publisher,
        faults: AppFaults,
        lost: LostDevices,
        devices: ports.Devices,
        processes: ProcFs,
        metrics: Metrics,
        classify: Callable[[FindingKind, str], ActionClass],
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        capacity: int = 10_000,
        on_aside: Callable[[Finding], None] = lambda _: None,
    ) -> None:
        """``on_aside`` is told of findings that are about no device, but may be about a container.

        ``now`` is Unix time; ``monotonic`` bounds storms. Both are in seconds.
        """
        self._ledger = ledger
        self._publisher = publisher
        self._faults = faults
        self._lost = lost
        self._devices = devices
        self._processes = processes
        self._metrics = metrics
        self._now = now
        self._on_aside = on_aside
        self._storms = Storms(clock=monotonic)
        self._questions = DriverQuestions(
            ledger=ledger, devices=devices, classify=classify, submit=self.submit, now=now
        )
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
                with contained.within(Part.DEVICE, device):
                    tasks.create_task(self._earlier_fault(device), name=f"earlier fault on {device}")
                    self._lost.found(device, tasks, earlier=True)
                    for noted in self._questions.unanswered(device):
                        tasks.create_task(self._ask_driver(noted), name=f"ask the driver about {device}")
            while True:
                batch = await self._next_batch()
                self._in_hand += len(batch)
                try:
                    await self._take(batch, tasks)
                finally:
                    self._in_hand -= len(batch)

    async def _next_batch(self) -> list[Finding]:
        """Wait for a finding, and take with it what has come meanwhile: a storm is written to disk once a batch."""
        batch = [await self._queue.get()]
        while len(batch) < _LARGEST_BATCH and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        return batch

    async def _take(self, batch: Sequence[Finding], tasks: asyncio.TaskGroup) -> None:
        """Fold them all and say so; act when the verdicts are on disk."""
        noted = []
        for finding in batch:
            with contained.within(Part.FINDING, f"{finding.title} on {finding.device}"):
                if self._is_worth_noting(finding):
                    noted.append(self._note(finding))
        await self._ledger.save()
        with contained.within(Part.DEVICE, "those that are back"):
            self._lost.leave_those_back()
        for each in noted:
            with contained.within(Part.FINDING, f"{each.finding.title} on {each.device}"):
                self._act(each, tasks)

    def _is_worth_noting(self, finding: Finding) -> bool:
        return not (_is_of_old(finding) or self._is_no_news(finding) or self._of_no_device(finding))

    def _is_no_news(self, finding: Finding) -> bool:
        """Whether it is the end of what nobody holds against the device: at its start a source tells of many."""
        if finding.kind is not FindingKind.FAULT_OVER:
            return False
        device = self._ledger.key(finding.device, inventory=self._devices.inventory)
        return all(latch.kind.value != finding.code for latch in self._ledger.latches(device))

    def _of_no_device(self, finding: Finding) -> bool:
        """Whether it says nothing of any device, such as an OOM kill: counted and told, and no verdict changes."""
        of_none = finding.action is ActionClass.NONE and finding.device == DeviceLocator()
        if of_none and finding.kind not in fold.EVIDENCE:
            self._metrics.findings.labels(finding.source.value, finding.kind.value, finding.code).inc()
            self._on_aside(finding)
            log.info(
                "finding.of_no_device",
                source=finding.source.value,
                kind=finding.kind.value,
                pid=finding.pid,
                process=finding.process_name,
                text=finding.text,
                evidence=dict(finding.evidence),
            )
            return True
        return False

    def _act(self, noted: Noted, tasks: asyncio.TaskGroup) -> None:
        finding = noted.finding
        if noted.again:
            self._metrics.findings_damped.labels(finding.kind.value).inc()
        elif finding.action is ActionClass.RESTART_APP:
            self._in_hand += 1
            tasks.create_task(self._mend(noted), name=f"mend {finding.title} on {noted.device}")
        elif finding.action is ActionClass.ASK_DRIVER:
            tasks.create_task(self._ask_driver(noted), name=f"ask the driver about {noted.device}")
        elif finding.kind in (FindingKind.APP_GONE, FindingKind.DEVICE_BACK):
            self._storms.over(noted.device)
        elif self._lost.is_one(finding):
            self._lost.found(noted.device, tasks)

    def _note(self, finding: Finding) -> Noted:
        """Fold it, and look up what must be looked up before the process is gone."""
        process = self._process(finding.pid) if finding.pid is not None else None
        named = self._faults.named_container(finding, process)
        entrance = self._processes.entrance(process.pid) if process is not None and process.container else None
        pod = named.pod if isinstance(named, ContainerRef) else None
        inventory = self._devices.inventory
        device = self._ledger.apply(finding, inventory=inventory, pod=pod.uid if pod is not None else "")
        verdict = self._ledger.verdict(device, inventory=inventory)
        self._metrics.findings.labels(finding.source.value, finding.kind.value, finding.code).inc()
        self._metrics.findings_last_seen.labels(device, finding.kind.value, finding.code).set(finding.observed_at)
        again = self._storms.is_one_of_many(finding, device=device)
        say = log.debug if again else log.info
        say(
            "finding",
            source=finding.source.value,
            kind=finding.kind.value,
            code=finding.code,
            device=device,
            pid=finding.pid,
            process=finding.process_name,
            container=str(named) if isinstance(named, ContainerRef) else None,
            action=finding.action.value,
            verdict=verdict.health.value,
            verdict_reason=verdict.reason,
            text=finding.text,
        )
        self._publisher.verdict_changed(device=device, named=pod)
        return Noted(finding=finding, device=device, process=process, entrance=entrance, again=again)

    def _process(self, pid: int) -> ProcessFacts | None:
        """Return what /proc says of a process. One that cannot be looked at costs no container its life, as one outside
        all pods does not, and is there until it has ended.
        """
        try:
            return self._processes.look(pid)
        except OSError as error:
            log.warning("engine.process_not_read", pid=pid, error=str(error))
            return ProcessFacts(pid=pid, container=None, started=0.0)

    async def _mend(self, noted: Noted) -> None:
        """See one app-class fault through, to the end of what it hit."""
        finding, about = noted.finding, f"{noted.finding.title} on {noted.device}"
        # Where it cannot be told what was hit, it is over when no holder is older than the fault.
        over: Callable[[], Awaitable[None]] = functools.partial(
            self._faults.replaced, noted.device, since=finding.observed_at
        )
        with contained.within(Part.FAULT, about):
            try:
                over = await self._faults.mend(noted)
            finally:
                self._in_hand -= 1
        with contained.within(Part.FAULT, about) as ending:
            await over()
        if self._faults.is_over(noted) and not ending.failed:
            self._app_gone(finding, text=f"what {finding.title} hit has ended")

    async def _earlier_fault(self, device: str) -> None:
        """An app-class fault that an earlier agent left: over when no holder is older than the fault."""
        with contained.within(Part.FAULT, device):
            await self._until_replaced(device)

    async def _until_replaced(self, device: str) -> None:
        since: float | None = None
        while (latest := self._latest_app_fault(device)) is not None and latest != since:
            since = latest  # another one may come while this is waited for
            await self._faults.replaced(device, since=since)
        if latest is not None:
            where = locator(device)
            self.submit(self._evidence(FindingKind.APP_GONE, where=where, text="every holder is newer than the fault"))

    def _latest_app_fault(self, device: str) -> float | None:
        """Return when an app-class fault was seen last on a device (Unix seconds), None where none is held."""
        return max(
            (x.last_seen for x in self._ledger.latches(device) if x.action is ActionClass.RESTART_APP), default=None
        )

    async def _ask_driver(self, noted: Noted) -> None:
        """The table leaves it to the driver: ask it now rather than at the next poll."""
        with contained.within(Part.FAULT, f"{noted.finding.title} on {noted.device}"):
            await self._until_licensed(noted)

    async def _until_licensed(self, noted: Noted) -> None:
        if not await self._questions.licensed(noted):
            return
        # The driver's None is the licence to start a new process on the device: now it is an app-class fault.
        self.submit(replace(noted.finding, action=ActionClass.RESTART_APP))
        if evidence.LOOK_BACK in noted.finding.evidence:  # nobody is restarted for it, and its process may be long gone
            await self._faults.replaced(noted.device, since=noted.finding.observed_at)
            self._app_gone(noted.finding, text="every holder is newer than the fault")

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


def _is_of_old(finding: Finding) -> bool:
    """Whether it is an app-class fault of before our time: what it hit has long crashed or coped, no ground to act."""
    of_old = finding.action is ActionClass.RESTART_APP and evidence.LOOK_BACK in finding.evidence
    if of_old:
        log.info("finding.of_old", finding=finding.title, device=str(finding.device), pid=finding.pid)
    return of_old
