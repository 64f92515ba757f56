"""Process findings: update the verdict, publish conditions, and request a restart if that helps.

Findings are folded and published one after another, and acted on once they are on disk. Anything else that must wait
(for the runtime, for kubelet, for a process to end) runs in its own task. So neither a slow disk nor a stuck container
delays the report of the next finding.
"""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from kubemend.agent import ports
from kubemend.agent.devices.condition_publisher import ConditionPublisher
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.faults.app_faults import AppFaultHandler, RecordedFinding
from kubemend.agent.faults.finding_queue import FindingDeduplicator, FindingQueue
from kubemend.agent.faults.lost_devices import LostDevices
from kubemend.agent.faults.recovery_action import RecoveryActionQuery
from kubemend.agent.health.state import evidence, fold
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator, locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import ContainerRef
from kubemend.common import contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)

_MOST_UNSAVED: Final = 16
"""Batches of findings that wait for the disk. While there are as many, those that follow stay in the queue."""


class FindingPipeline:
    """Take findings from the queue and handle each to its end."""

    def __init__(
        self,
        *,
        queue: FindingQueue,
        verdict_store: VerdictStore,
        publisher: ConditionPublisher,
        faults: AppFaultHandler,
        lost: LostDevices,
        devices: ports.Devices,
        processes: ports.Processes,
        metrics: Metrics,
        classify: Callable[[FindingKind, str], ActionClass],
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        on_aside: Callable[[Finding], None] = lambda _: None,
    ) -> None:
        """``on_aside`` receives findings that concern no device, but may concern a container.

        ``now`` is Unix time; ``monotonic`` is the clock of the deduplication. Both are in seconds.
        """
        self._queue = queue
        self._verdict_store = verdict_store
        self._publisher = publisher
        self._faults = faults
        self._lost = lost
        self._devices = devices
        self._processes = processes
        self._metrics = metrics
        self._now = now
        self._on_aside = on_aside
        self._deduplicator = FindingDeduplicator(clock=monotonic)
        self._unsaved: asyncio.Queue[tuple[int, list[RecordedFinding]]] = asyncio.Queue(_MOST_UNSAVED)
        self._recovery_actions = RecoveryActionQuery(
            verdict_store=verdict_store, devices=devices, classify=classify, submit=queue.submit, now=now
        )

    async def run(self) -> None:
        """Handle findings as they arrive."""
        async with asyncio.TaskGroup() as tasks:
            for device in self._verdict_store.devices():
                with contained.within(Part.DEVICE, device):
                    tasks.create_task(self._earlier_fault(device), name=f"earlier fault on {device}")
                    self._lost.found(device, tasks, earlier=True)
                    for recorded in self._recovery_actions.unanswered(device):
                        tasks.create_task(self._ask_driver(recorded), name=f"ask the driver about {device}")
            tasks.create_task(self._act(tasks), name="act on findings")
            while True:
                batch = await self._queue.next_batch()
                await self._unsaved.put((len(batch), self._fold(batch)))

    def _fold(self, batch: Sequence[Finding]) -> list[RecordedFinding]:
        """Fold and publish all findings; return those that count."""
        recorded = []
        for finding in batch:
            with contained.within(Part.FINDING, f"{finding.title} on {finding.device}"):
                if self._must_be_recorded(finding):
                    recorded.append(self._record(finding))
        return recorded

    async def _act(self, tasks: asyncio.TaskGroup) -> None:
        """Act on folded findings, each batch once the verdicts are on disk."""
        while True:
            count, recorded = await self._unsaved.get()
            await self._verdict_store.save()
            with contained.within(Part.DEVICE, "those that are back"):
                self._lost.clear_recovered()
            for each in recorded:
                with contained.within(Part.FINDING, f"{each.finding.title} on {each.device}"):
                    self._dispatch(each, tasks)
            self._queue.finished(count)

    def _must_be_recorded(self, finding: Finding) -> bool:
        return not (_predates_agent(finding) or self._ends_nothing(finding) or self._has_no_device(finding))

    def _ends_nothing(self, finding: Finding) -> bool:
        """Return whether it ends a fault that the device does not have. A source reports many of these at its start."""
        if finding.kind is not FindingKind.FAULT_OVER:
            return False
        device = self._verdict_store.key(finding.device, inventory=self._devices.inventory)
        return all(
            active_fault.kind.value != finding.code for active_fault in self._verdict_store.active_faults(device)
        )

    def _has_no_device(self, finding: Finding) -> bool:
        """Return whether it concerns no device, such as an OOM kill. It is counted and logged only."""
        no_device = finding.action is ActionClass.NONE and finding.device == DeviceLocator()
        if no_device and finding.kind not in fold.EVIDENCE:
            self._metrics.findings.labels(finding.source.value, finding.kind.value, finding.code).inc()
            self._on_aside(finding)
            log.info(
                "finding.no_device",
                source=finding.source.value,
                kind=finding.kind.value,
                pid=finding.pid,
                process=finding.process_name,
                text=finding.text,
                evidence=dict(finding.evidence),
            )
            return True
        return False

    def _dispatch(self, recorded: RecordedFinding, tasks: asyncio.TaskGroup) -> None:
        finding = recorded.finding
        if recorded.again:
            self._metrics.findings_damped.labels(finding.kind.value).inc()
        elif finding.action is ActionClass.RESTART_APP:
            self._queue.unfinished()
            tasks.create_task(self._handle(recorded), name=f"handle {finding.title} on {recorded.device}")
        elif finding.action is ActionClass.ASK_DRIVER:
            tasks.create_task(self._ask_driver(recorded), name=f"ask the driver about {recorded.device}")
        elif self._lost.is_one(finding):
            self._lost.found(recorded.device, tasks)

    def _record(self, finding: Finding) -> RecordedFinding:
        """Fold the finding, and read the process's facts before the process is gone."""
        process = self._process(finding.pid) if finding.pid is not None else None
        named = self._faults.named_container(finding, process)
        origin = self._processes.origin(process.pid) if process is not None and process.container else None
        pod = named.pod if isinstance(named, ContainerRef) else None
        inventory = self._devices.inventory
        device = self._verdict_store.apply(finding, inventory=inventory, pod=pod.uid if pod is not None else "")
        verdict = self._verdict_store.verdict(device, inventory=inventory)
        self._metrics.findings.labels(finding.source.value, finding.kind.value, finding.code).inc()
        self._metrics.findings_last_seen.labels(device, finding.kind.value, finding.code).set(finding.observed_at)
        if finding.kind in (FindingKind.APP_GONE, FindingKind.DEVICE_BACK):
            self._deduplicator.over(device)
        again = self._deduplicator.is_duplicate(finding, device=device)
        write = log.debug if again else log.info
        write(
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
        return RecordedFinding(finding=finding, device=device, process=process, origin=origin, again=again)

    def _process(self, pid: int) -> ProcessFacts | None:
        """Return the /proc facts of a process.

        An unreadable process counts as one outside all pods: no container is restarted for it, and it exists until it
        ends.
        """
        try:
            return self._processes.facts(pid)
        except OSError as error:
            log.warning("pipeline.process_unreadable", pid=pid, error=str(error))
            return ProcessFacts(pid=pid, container=None, started=0.0)

    async def _handle(self, recorded: RecordedFinding) -> None:
        """Handle one app-class fault, until the process or container that it hit has ended."""
        finding, about = recorded.finding, f"{recorded.finding.title} on {recorded.device}"
        # If the affected containers are unknown, the fault is over when no holder is older than it.
        over: Callable[[], Awaitable[None]] = functools.partial(
            self._faults.wait_until_replaced, recorded.device, since=finding.observed_at
        )
        with contained.within(Part.FAULT, about):
            try:
                over = await self._faults.handle(recorded)
            finally:
                self._queue.finished()
        with contained.within(Part.FAULT, about) as ending:
            await over()
        if self._faults.is_over(recorded) and not ending.failed:
            self._app_gone(finding, text=f"every process or container that {finding.title} hit has ended")

    async def _earlier_fault(self, device: str) -> None:
        """End a previous agent's app-class fault when no holder is older than it."""
        with contained.within(Part.FAULT, device):
            await self._until_replaced(device)

    async def _until_replaced(self, device: str) -> None:
        since: float | None = None
        while (latest := self._latest_app_fault(device)) is not None and latest != since:
            since = latest  # another one may arrive during the wait
            await self._faults.wait_until_replaced(device, since=since)
        if latest is not None:
            where = locator(device)
            self._queue.submit(
                self._evidence(FindingKind.APP_GONE, where=where, text="every holder is newer than the fault")
            )

    def _latest_app_fault(self, device: str) -> float | None:
        """Return when an app-class fault was last seen on a device (Unix seconds); None if it has none."""
        return max(
            (x.last_seen for x in self._verdict_store.active_faults(device) if x.action is ActionClass.RESTART_APP),
            default=None,
        )

    async def _ask_driver(self, recorded: RecordedFinding) -> None:
        """Query the driver now rather than at the next poll, because the catalog leaves the decision to it."""
        with contained.within(Part.FAULT, f"{recorded.finding.title} on {recorded.device}"):
            await self._handle_when_usable(recorded)

    async def _handle_when_usable(self, recorded: RecordedFinding) -> None:
        if not await self._recovery_actions.is_usable(recorded) or not fold.concerns_a_program(recorded.finding):
            return
        # The driver needs no recovery action, so a new process may use the device: handle it as an app-class fault.
        self._queue.submit(replace(recorded.finding, action=ActionClass.RESTART_APP))
        if evidence.LOOK_BACK in recorded.finding.evidence:  # it causes no restart, and its process may be long gone
            await self._faults.wait_until_replaced(recorded.device, since=recorded.finding.observed_at)
            self._app_gone(recorded.finding, text="every holder is newer than the fault")

    def _app_gone(self, finding: Finding, *, text: str) -> None:
        self._queue.submit(self._evidence(FindingKind.APP_GONE, where=finding.device, text=text))

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


def _predates_agent(finding: Finding) -> bool:
    """Return whether it is an app-class fault that predates the agent. Its process has crashed or recovered already."""
    predates_agent = finding.action is ActionClass.RESTART_APP and evidence.LOOK_BACK in finding.evidence
    if predates_agent:
        log.info("finding.predates_agent", finding=finding.title, device=str(finding.device), pid=finding.pid)
    return predates_agent
