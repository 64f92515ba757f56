"""App-class faults: find whom they hit, restart it, and know when they are over."""

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from agent.cri.errors import CriError
from agent.engine import endings, ports
from agent.engine.ledger import HealthLedger, gpu_keys
from agent.engine.publishing import held_devices
from agent.engine.restarts import Request, Restarts
from agent.health import attribution
from agent.health.attribution import Attribution, How, ProcessLookup
from agent.model.devices import DeviceLocator, locator
from agent.model.findings import Finding, FindingKind
from agent.model.rounds import FaultKind
from agent.model.workloads import ContainerRef, ContainerView
from agent.podresources import answers
from agent.restart import admission
from agent.sources.processes import Entrance, ProcessFacts, ProcFs
from common import contained

log = structlog.get_logger(__name__)

# A process that began after the line was written is another one with the same pid. The kernel stamps log lines with
# the monotonic clock and processes with the boot clock; they differ by suspends only, so a second is plenty.
_PID_REUSE_SLACK = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds.

    ``root_cause``: how long a graver finding may still come in before a restart is begun. ``twin``: how long a
    finding without a pid waits for the kernel log to name the process. ``twin_window``: how far apart two reports
    of one event may be. ``holders``: how long kubelet may take to say who holds the device. ``listed``: how long the
    runtime may take to tell of a container; one that it has not told of by then is not kubelet's.
    """

    root_cause: float = 0.05
    twin: float = 0.25
    twin_window: float = 2.0
    holders: float = 600.0
    listed: float = 10.0
    ask_again: float = 1.0


@dataclass(frozen=True, slots=True)
class Noted:
    """A finding with the device it is about and what /proc said of its process when it came in.

    ``entrance``: how that process came into its container; None where that cannot be told. ``again``: the same is being
    acted on already (``agent.engine.storms``).
    """

    finding: Finding
    device: str
    process: ProcessFacts | None
    entrance: Entrance | None = None
    again: bool = False


class AppFaults:
    """Faults that a restart mends. Works once the runtime is plugged in; until then ``mend`` waits."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        pods: ports.Pods,
        devices: ports.Devices,
        holders: ports.Holders,
        processes: ProcFs,
        patience: Patience | None = None,
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._devices = devices
        self._holders = holders
        self._processes = processes
        self._patience = patience if patience is not None else Patience()
        self._under_way: Counter[str] = Counter()
        self._named: dict[tuple[str, FindingKind, str], float] = {}
        self._named_one_more = asyncio.Condition()
        self._runtime_found = asyncio.Event()
        self._restarts: Restarts | None = None
        self._events: ports.Events | None = None
        self._runtime: ports.Runtime | None = None

    def use_runtime(self, *, restarts: Restarts, events: ports.Events, runtime: ports.Runtime) -> None:
        """Plug the container runtime in, once it has been found and the journal has been replayed."""
        self._restarts, self._events, self._runtime = restarts, events, runtime
        self._runtime_found.set()

    def named_container(self, finding: Finding, facts: ProcessFacts | None) -> ContainerRef | ProcessLookup:
        """Return the container of the process that a finding names, by what /proc says of it, or why there is none."""
        if finding.pid is None:
            return ProcessLookup.NONE_NAMED
        reused = (
            facts is not None
            and finding.boot_seconds is not None
            and facts.started > finding.boot_seconds + _PID_REUSE_SLACK
        )
        if facts is None or reused:
            return ProcessLookup.GONE
        if facts.container is None:
            return ProcessLookup.OUTSIDE_PODS
        known = self._events.containers() if self._events is not None else ()
        return next((view.ref for view in known if view.id == facts.container), ProcessLookup.NOT_LISTED)

    async def mend(self, noted: Noted) -> Callable[[], Awaitable[None]]:
        """Restart what the fault hit; return what waits until all that it hit has ended."""
        self._under_way[noted.device] += 1
        if await self._told_better(noted):
            log.info("fault.told_twice", finding=noted.finding.title, device=noted.device)
            return _at_once
        events = await self._known_containers()
        assert self._restarts is not None
        found = await self._attribute(noted)
        log.info(
            "fault.attributed",
            finding=noted.finding.title,
            device=noted.device,
            how=found.how.value,
            restart=[str(ref) for ref in found.restart],
            concerned=[str(ref) for ref in found.concerned],
        )
        over = endings.of(
            found,
            noticed_at=noted.finding.observed_at,
            pid=noted.finding.pid,
            events=events,
            processes=self._processes,
            holders=functools.partial(self._holders_of, noted.device),
        )
        if found.restart:
            await asyncio.sleep(self._patience.root_cause)
        for target in found.restart:
            with contained.within(contained.Part.FAULT, target):
                await self._restarts.handle(await self._request(noted, target))
        return over

    def is_over(self, noted: Noted) -> bool:
        """Call once when one fault's ending has come; True when it was the last one on its device."""
        self._under_way[noted.device] -= 1
        if self._under_way[noted.device] > 0:
            return False
        del self._under_way[noted.device]
        return True

    async def replaced(self, device: str, *, since: float) -> None:
        """Wait until no container that holds the device is older than ``since`` (Unix seconds)."""
        events, holders = await self._known_containers(), functools.partial(self._holders_of, device)
        await endings.older_than(since, holders=holders, events=events)

    async def hit(self, device: str, *, at: float) -> list[ContainerView]:
        """Return who holds a device and ran when it failed (Unix seconds), once it can be told who holds it."""
        events, holders = await self._known_containers(), functools.partial(self._holders_of, device)
        return await endings.older_holders(at, holders=holders, events=events, ask_again=self._patience.ask_again)

    async def _known_containers(self) -> ports.Events:
        """Wait until the runtime has been found and has told what runs: before that, all look as if they had ended."""
        await self._runtime_found.wait()
        assert self._events is not None
        await self._events.until_listed()
        return self._events

    async def _told_better(self, noted: Noted) -> bool:
        """Whether another report of the same event names the process, which this one does not.

        NVML tells of an Xid without the process, the kernel log with it. Acting on the first alone would take the
        GPU's holder for the culprit where a process outside all pods was.
        """
        finding = noted.finding
        key = (noted.device, finding.kind, finding.code)
        if finding.pid is not None:
            async with self._named_one_more:
                self._named[key] = finding.observed_at
                self._named_one_more.notify_all()
            return False

        def named() -> bool:
            return abs(self._named.get(key, float("-inf")) - finding.observed_at) <= self._patience.twin_window

        try:
            async with asyncio.timeout(self._patience.twin), self._named_one_more:
                await self._named_one_more.wait_for(named)
        except TimeoutError:
            return False
        return True

    async def _attribute(self, noted: Noted) -> Attribution:
        """Attribute as soon as kubelet and the runtime say what it hangs on."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        while True:
            process = self.named_container(noted.finding, noted.process)
            if process is ProcessLookup.NOT_LISTED and clock() - begun >= self._patience.listed:
                process = ProcessLookup.OUTSIDE_PODS  # some other container, not one of kubelet's
            if isinstance(process, ContainerRef) and not await self._is_its_own(noted):
                process = ProcessLookup.PUT_IN
            holders = await self._all_holders(noted.finding.device)
            found = attribution.attribute(noted.finding, process=process, holders=holders)
            if found.how is not How.HOLDERS_UNKNOWN or clock() - begun >= self._patience.holders:
                return found
            await asyncio.sleep(self._patience.ask_again)

    async def _is_its_own(self, noted: Noted) -> bool:
        """Whether the process is the container's first or descends from it; False where that cannot be told."""
        entrance, process = noted.entrance, noted.process
        if entrance is None or process is None or process.container is None:
            return False
        if entrance.is_its_own:
            return True
        assert self._runtime is not None
        try:
            return (await self._runtime.container_info(process.container)).pid == entrance.pid
        except CriError as error:
            log.info("fault.first_process_unknown", container_id=process.container, error=str(error))
            return False

    async def _all_holders(self, where: DeviceLocator) -> list[ContainerRef] | None:
        """Return the containers that hold what is there; None when kubelet, the API server or the driver leaves it
        open. That a container holds an instance of the GPU, only the driver can tell.
        """
        inventory = self._devices.inventory
        gpu = inventory.locate(where)
        if not inventory.complete and (gpu is None or gpu.remembered):
            return None
        ids = inventory.allocatable_ids(where)
        allocations = await self._holders.current(max_age=1.0)
        held = held_devices(allocations, pods=self._pods)
        holders = [ref for ref, devices in held.items() if devices & ids]
        unidentified = len(allocations.holders(ids)) > len(holders) or any(map(answers.hides_gpu, allocations.items))
        return holders if allocations.known and not unidentified else None

    async def _holders_of(self, device: str) -> list[ContainerRef] | None:
        return await self._all_holders(locator(device))

    async def _request(self, noted: Noted, target: ContainerRef) -> Request:
        held = answers.held_by(target, await self._holders.current(max_age=1.0))
        finding = noted.finding

        def cause() -> admission.Cause:
            inventory = self._devices.inventory
            where = noted.device if finding.pid is None else f"{noted.device} pid {finding.pid}"
            return admission.Cause(
                code=f"{finding.kind.value}{finding.code}",
                message=f"{finding.title} on {where}",
                happened_at=finding.observed_at,
                action=self._ledger.worst_action(
                    {noted.device, *gpu_keys(held or (), inventory=inventory)}, inventory=inventory
                ),
                device=noted.device,
            )

        async def lapsed() -> str:
            gone = noted.process is not None and not self._processes.is_alive(noted.process)
            return f"process {finding.pid}, which it hit, has ended" if gone else ""

        return Request(target=target, cause=cause, devices=held, lapsed=lapsed, kind=FaultKind.DEVICE)


async def _at_once() -> None:
    return
