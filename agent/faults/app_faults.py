"""Handle app-class faults: find the affected containers, restart them, and detect the end of the fault."""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import progress
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.condition_publisher import held_devices
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.faults import fault_end
from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.state import attribution
from kubemend.agent.health.state.attribution import Attribution, AttributionResult, ProcessLookup
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator, locator
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.processes import ProcessFacts, ProcessOrigin
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerSummary
from kubemend.agent.restart import admission
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.common import aio, contained
from kubemend.common.coordination import FaultKind

log = structlog.get_logger(__name__)

# A process that started after the line was written is another one with the same pid. The kernel stamps log lines with
# the monotonic clock and processes with the boot clock. The clocks differ by suspends only, so 1 s of slack suffices.
_PID_REUSE_SLACK = 1.0
_NANOSECOND = 1e-9


_Event = tuple[str, FindingKind, str]
_ANY_PROGRAM_ERROR: Final = "any program error"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds.

    - ``root_cause``: from a finding's arrival, the time in which a graver one may name its cause. Only for findings
      that no program causes by itself (``Catalog.may_follow_graver``): any other ends its program in any case,
      and later findings are considered before anything starts (``agent.actuator.device_health``).
    - ``twin``: for how long a finding without a pid waits for the kernel log to name the process.
    - ``twin_window``: how far apart two reports of one event by the same code may be.
    - ``codes_window``: the same for reports by several codes. An H100's were at most 0.12 s apart; a later report is
      a fault of its own.
    - ``holders``: until kubelet reports which containers hold the device.
    - ``listed``: until the runtime lists a container. One that is not listed by then is not kubelet's.
    - ``ask_again``: interval between queries.
    """

    root_cause: float = 0.05
    twin: float = 0.25
    twin_window: float = 2.0
    codes_window: float = 0.25
    holders: float = 600.0
    listed: float = 10.0
    ask_again: float = 1.0


@dataclass(frozen=True, slots=True)
class RecordedFinding:
    """A finding, its device, and what /proc showed of its process on arrival.

    ``origin``: how the process came into its container; None if unknown. ``again``: a duplicate, whose first report
    is being handled (``agent.faults.finding_queue``).
    """

    finding: Finding
    device: str
    process: ProcessFacts | None
    origin: ProcessOrigin | None = None
    again: bool = False


class AppFaultHandler:
    """Handle faults that a restart fixes. ``handle`` waits until there is a runtime."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        catalog: Catalog,
        pods: ports.Pods,
        devices: ports.Devices,
        holders: ports.Holders,
        processes: ports.Processes,
        access: aio.Promise[RuntimeAccess],
        knows_pids: bool = True,
        timeouts: Timeouts | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``knows_pids``: the pids in findings are those of ``processes``. ``now`` is Unix time."""
        self._verdict_store = verdict_store
        self._catalog = catalog
        self._pods = pods
        self._devices = devices
        self._holders = holders
        self._processes = processes
        self._knows_pids = knows_pids
        self._timeouts = timeouts if timeouts is not None else Timeouts()
        self._now = now
        self._under_way: Counter[str] = Counter()
        self._awaited: set[tuple[str, ProcessFacts]] = set()
        self._named: dict[_Event, float] = {}
        self._newly_named = asyncio.Condition()
        self._access = access

    def named_container(self, finding: Finding, facts: ProcessFacts | None) -> ContainerRef | ProcessLookup:
        """Return the container of the process that a finding names, by its /proc facts, or why there is none."""
        if finding.pid is None:
            return ProcessLookup.NONE_NAMED
        if not self._knows_pids:
            return ProcessLookup.FOREIGN
        reused = (
            facts is not None
            and finding.boot_seconds is not None
            and facts.started > finding.boot_seconds + _PID_REUSE_SLACK
        )
        if facts is None or reused:
            return ProcessLookup.GONE
        if facts.container is None:
            return ProcessLookup.OUTSIDE_PODS
        access = self._access.value
        known = access.events.containers() if access is not None else ()
        return next((view.ref for view in known if view.id == facts.container), ProcessLookup.NOT_LISTED)

    async def handle(self, recorded: RecordedFinding) -> Callable[[], Awaitable[None]]:
        """Restart the affected containers; return a function that waits until all of them have ended."""
        self._under_way[recorded.device] += 1
        arrived_at = asyncio.get_running_loop().time()
        if await self._superseded_by_attributed_report(recorded):
            log.info("fault.duplicate", finding=recorded.finding.title, device=recorded.device)
            return _at_once
        events = await self._known_containers()
        access = await self._access.wait()
        found = await self._attribute(recorded)
        log.info(
            "fault.attributed",
            finding=recorded.finding.title,
            device=recorded.device,
            how=found.how.value,
            restart=[str(ref) for ref in found.restart],
            concerned=[str(ref) for ref in found.concerned],
        )
        over = fault_end.waiter(
            found,
            noticed_at=recorded.finding.observed_at,
            pid=recorded.finding.pid,
            events=events,
            processes=self._processes,
            holders=functools.partial(self._holders_of, recorded.device),
            programs=access.programs,
            now=self._now,
            process=recorded.process,
            renewed=(programs := _Programs()).restarted,
        )
        if found.restart and self._catalog.may_follow_graver(FaultKey(recorded.finding.kind, recorded.finding.code)):
            waited = asyncio.get_running_loop().time() - arrived_at
            await asyncio.sleep(max(0.0, self._timeouts.root_cause - waited))
        for target in found.restart:
            with contained.within(contained.Part.FAULT, target):
                request = await self._request(recorded, target, found)
                await access.restarts.submit(replace(request, followed=programs))
        if found.how is AttributionResult.PROCESS_UNREPORTED:
            return lambda: aio.first_of(over(), self._until_named(recorded))
        return self._once(over, recorded)

    def _once(self, over: Callable[[], Awaitable[None]], recorded: RecordedFinding) -> Callable[[], Awaitable[None]]:
        """Return the task that waits for a fault's end: none if an earlier fault of the process waits for it already.

        A process may fail again and again, and each wait takes a file descriptor.
        """
        if recorded.process is None:
            return over
        key = recorded.device, recorded.process
        if key in self._awaited:
            return _at_once
        self._awaited.add(key)

        async def awaited() -> None:
            try:
                await over()
            finally:
                self._awaited.discard(key)

        return awaited

    def is_over(self, recorded: RecordedFinding) -> bool:
        """Call once after each fault's end; return True for the last fault on its device."""
        self._under_way[recorded.device] -= 1
        if self._under_way[recorded.device] > 0:
            return False
        del self._under_way[recorded.device]
        return True

    async def wait_until_replaced(self, device: str, *, since: float) -> None:
        """Wait until no container that holds the device is older than ``since`` (Unix seconds)."""
        events, holders = await self._known_containers(), functools.partial(self._holders_of, device)
        programs = (await self._access.wait()).programs
        await fault_end.wait_until_replaced(since, holders=holders, events=events, programs=programs, now=self._now)

    async def holders_at(self, device: str, *, at: float) -> list[ContainerSummary]:
        """Return the containers that hold a device and ran when it failed (Unix seconds); wait until they are known."""
        events, holders = await self._known_containers(), functools.partial(self._holders_of, device)
        return await fault_end.holders_older_than(
            at, holders=holders, events=events, now=self._now, ask_again=self._timeouts.ask_again
        )

    async def _known_containers(self) -> ports.Events:
        """Wait for the runtime and its first listing: before that, every container seems to have ended."""
        events = (await self._access.wait()).events
        await events.until_listed()
        return events

    async def _superseded_by_attributed_report(self, recorded: RecordedFinding) -> bool:
        """Return whether another report of the same event names the process that this one lacks.

        NVML reports an Xid without the process, as does the first line of some. Without this check the agent would
        blame the GPU's holder for the fault of a process outside all pods.
        """
        finding = recorded.finding
        if finding.pid is not None:
            async with self._newly_named:
                self._named.update(dict.fromkeys(_events(recorded), finding.observed_at))
                self._newly_named.notify_all()
            return False

        is_named = functools.partial(self._is_named, recorded)
        return await aio.holds_within(self._timeouts.twin, self._newly_named, is_named)

    def _is_named(self, recorded: RecordedFinding) -> bool:
        """Return whether a report that names the process is of the same event."""
        windows = (self._timeouts.twin_window, self._timeouts.codes_window)
        return any(
            abs(self._named.get(event, float("-inf")) - recorded.finding.observed_at) <= window
            for event, window in zip(_events(recorded), windows, strict=False)
        )

    async def _until_named(self, recorded: RecordedFinding) -> None:
        """Wait until another report names the process, and has an end of its own: the kernel log may be read late."""
        async with self._newly_named:
            await self._newly_named.wait_for(functools.partial(self._is_named, recorded))

    async def _attribute(self, recorded: RecordedFinding) -> Attribution:
        """Attribute the finding as soon as kubelet and the runtime report the necessary facts."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        while True:
            process = self.named_container(recorded.finding, recorded.process)
            if process is ProcessLookup.GONE and (ended := await self._ended_with_it(recorded)) is not None:
                found = attribution.attribute(recorded.finding, process=ended.ref, holders=None)
                return replace(found, container=ended.id)
            if process is ProcessLookup.NOT_LISTED and clock() - begun >= self._timeouts.listed:
                process = ProcessLookup.OUTSIDE_PODS  # a container that kubelet did not create
            if isinstance(process, ContainerRef) and not await self._is_its_own(recorded):
                process = ProcessLookup.PUT_IN
            holders = await self._all_holders(recorded.finding.device)
            found = attribution.attribute(recorded.finding, process=process, holders=holders)
            if found.how is AttributionResult.PROCESS and recorded.process is not None:
                found = replace(found, container=recorded.process.container)
            if found.how is not AttributionResult.HOLDERS_UNKNOWN or clock() - begun >= self._timeouts.holders:
                return found
            await asyncio.sleep(self._timeouts.ask_again)

    async def _ended_with_it(self, recorded: RecordedFinding) -> ContainerSummary | None:
        """Return the container whose first process had the finding's pid when the fault happened.

        A program may be faster to die of its fault than the agent is to read the kernel's line. A container that ended
        before the fault is not meant: another process had got the pid.
        """
        finding, access = recorded.finding, await self._access.wait()
        if recorded.process is not None:
            return None  # another process has the pid by now
        for view in access.events.containers():
            status = access.runtime.remembered(view.id)
            if status is None or status.pid != finding.pid or view.is_newer(finding.observed_at, now=self._now()):
                continue
            if view.state is not ContainerState.EXITED:
                return view
            try:
                ended_at = (await access.runtime.cached_status(view)).finished_at * _NANOSECOND
            except CriError as error:
                log.info("fault.end_unknown", container_id=view.id, error=str(error))
                continue
            if ended_at >= finding.observed_at:
                return view
        return None

    async def _is_its_own(self, recorded: RecordedFinding) -> bool:
        """Return whether the process is the container's first or descends from it; False if unknown."""
        origin, process = recorded.origin, recorded.process
        if origin is None or process is None or process.container is None:
            return False
        if origin.is_its_own:
            return True
        runtime = (await self._access.wait()).runtime
        try:
            return (await runtime.container_status(process.container)).pid == origin.pid
        except CriError as error:
            log.info("fault.first_process_unknown", container_id=process.container, error=str(error))
            return False

    async def _all_holders(self, where: DeviceLocator) -> list[ContainerRef] | None:
        """Return the containers that hold a device.

        None if kubelet, the API server or the driver leaves it open. Only the driver knows whether a container holds an
        instance of the GPU.
        """
        inventory = self._devices.inventory
        gpu = inventory.locate(where)
        if not inventory.complete and (gpu is None or gpu.remembered):
            return None
        if (ids := inventory.allocatable_ids(where)) is None:
            return None
        allocations = await self._holders.current(max_age=1.0)
        held = held_devices(allocations, pods=self._pods)
        holders = [ref for ref, devices in held.items() if devices & ids]
        unidentified = len(allocations.holders(ids)) > len(holders) or any(map(convert.hides_gpu, allocations.items))
        return holders if allocations.known and not unidentified else None

    async def _holders_of(self, device: str) -> list[ContainerRef] | None:
        return await self._all_holders(locator(device))

    async def _request(self, recorded: RecordedFinding, target: ContainerRef, found: Attribution) -> Request:
        held = convert.held_by(target, await self._holders.current(max_age=1.0))
        finding = recorded.finding

        def cause() -> admission.Cause:
            inventory = self._devices.inventory
            where = recorded.device if finding.pid is None else f"{recorded.device} pid {finding.pid}"
            return admission.Cause(
                code=f"{finding.kind.value}{finding.code}",
                message=f"{finding.title} on {where}",
                happened_at=finding.observed_at,
                action=self._verdict_store.worst_action(
                    {recorded.device, *gpu_keys(held or (), inventory=inventory)}, inventory=inventory
                ),
                device=recorded.device,
                names_process=found.how is AttributionResult.PROCESS,
                container=found.container,
            )

        async def withdrawn() -> str:
            return await (await self._access.wait()).doubt(target)

        async def lapsed() -> str:
            gone = recorded.process is not None and not self._processes.is_alive(recorded.process)
            return f"process {finding.pid}, which the fault hit, has ended" if gone else ""

        return Request(
            target=target, cause=cause, devices=held, withdrawn=withdrawn, lapsed=lapsed, kind=FaultKind.DEVICE
        )


class _Programs:
    """Follow restarts, and collect the containers in which only the program was restarted."""

    def __init__(self) -> None:
        self.restarted: set[ContainerId] = set()

    def notify(self, event: progress.Event) -> None:
        if isinstance(event, progress.Reported) and event.outcome.result is Result.RESTARTED:
            self.restarted.update(event.outcome.current.values())


def _events(recorded: RecordedFinding) -> tuple[_Event, ...]:
    """Return the events of which a finding can be one report: of its code first, then of any.

    One error of a program can be reported by Xids of several codes. A stack overflow on an H100 gives two lines of Xid
    13 without a process, and 4 ms later one of Xid 43 with it.
    """
    finding = recorded.finding
    same_code = (recorded.device, finding.kind, finding.code)
    if finding.kind is FindingKind.XID and finding.action is ActionClass.RESTART_APP:
        return (same_code, (recorded.device, finding.kind, _ANY_PROGRAM_ERROR))
    return (same_code,)


async def _at_once() -> None:
    return
