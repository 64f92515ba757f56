"""The container runtime part: find its socket, replay the journal, then let the faults be mended."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import structlog

from agent.actuator.exec_hold import ExecHolds, HoldError
from agent.actuator.freezer import Freezer
from agent.actuator.gates import Gates, Patience
from agent.actuator.host_files import HostFiles
from agent.actuator.standby import Standbys
from agent.actuator.sweep import Broom
from agent.actuator.tools import Tools
from agent.app import last_resort
from agent.app.beating import StoredBeating
from agent.app.dead_man import DeadMan
from agent.cri import client, discovery
from agent.cri.afterlife import Afterlife
from agent.cri.errors import CriError
from agent.engine import ports
from agent.engine.faults import AppFaults
from agent.engine.hangs import Hangs
from agent.engine.members import Clocks, since_boot
from agent.engine.metrics import Metrics
from agent.engine.newcomers import Newcomers
from agent.engine.orders import Bounds, Knowledge
from agent.engine.recovery import Recovery
from agent.engine.requests import Requests
from agent.engine.restarts import Restarts
from agent.engine.rounds import Rounds
from agent.engine.suspects import Suspects
from agent.history.store import HistoryError, Store
from agent.reporters.pod_conditions import PodConditionReporter
from agent.settings import Settings
from agent.sources.containers import ContainerWatch
from agent.sources.foreknowledge import Foreknowledge
from agent.sources.heartbeats import HeartbeatSource
from agent.sources.nvml.driver import Driver
from agent.sources.owners import OwnerLookup
from agent.sources.pods import PodWatch
from agent.sources.processes import ProcFs
from common import aio, budgets
from common.own_process import OwnProcess
from common.parts import PartState, PartStatus

if TYPE_CHECKING:
    from agent.coordination.hub import Hub

log = structlog.get_logger(__name__)

_T = TypeVar("_T")


class RuntimePart:
    """Brings the runtime in when there is one; everything else works meanwhile."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        faults: AppFaults,
        requests: Requests,
        hangs: Hangs,
        suspects: Suspects,
        pods: PodWatch,
        driver: Driver,
        owners: OwnerLookup,
        knowledge: Knowledge,
        gangs: ports.Gangs,
        hub: "Hub | None",
        boot_id: str,
        reporter: PodConditionReporter,
        announcements: ports.Announcements,
        processes: ProcFs,
        now: Callable[[], float],
        report: Callable[[PartStatus], None],
        report_heartbeats: Callable[[PartStatus], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._faults = faults
        self._requests = requests
        self._hangs = hangs
        self._suspects = suspects
        self._pods = pods
        self._driver = driver
        self._owners = owners
        self._knowledge = knowledge
        self._gangs = gangs
        self._hub = hub
        self._boot_id = boot_id
        self._reporter = reporter
        self._announcements = announcements
        self._processes = processes
        self._now = now
        self._report = report
        self._report_heartbeats = report_heartbeats
        self._newcomers = Newcomers(driver=driver, processes=processes, metrics=metrics)
        self._restarts: Restarts | None = None
        self._can_hold = False
        self._owner = ""
        self._sweeping = OwnProcess("shm", cgroup_root=processes.cgroup_root)
        self.rounds: Rounds | None = None
        """What gangs' rounds do on this node, once the runtime has been found."""

    async def drained(self) -> None:
        """Wait until no restart is being acted on."""
        if self._restarts is not None:
            await self._restarts.quiet.wait()

    async def leave(self, *, timeout: float) -> None:
        """Tell the hub how rounds have gone, and take leave of it."""
        if self._hub is not None:
            await self._hub.leave(timeout=timeout)

    async def run(self) -> None:
        """Look for the runtime until there is one, then follow it for ever."""
        self._report_heartbeats(PartStatus(PartState.IDLE, "needs the container runtime first"))
        choice = await self._discover()
        log.info("cri.found", socket=choice.path, why=choice.why)
        self._owner = last_resort.owner(self._settings.node_name, socket_path=choice.path)
        dead_man = DeadMan(
            state_dir=self._settings.state_dir,
            socket=choice.path,
            owner=self._owner,
            cgroup_root=self._processes.cgroup_root,
            proc=self._processes.root,
        )
        async with (
            client.CriClient(choice.path) as cri,
            self._sweeping,
            dead_man.at_work(),
            asyncio.TaskGroup() as tasks,
        ):
            aio.spawn_eternal(tasks, dead_man.run(), name="dead-man")
            await dead_man.take_charge()
            watch = ContainerWatch(cri, report=self._report)
            aio.spawn_eternal(tasks, watch.run(), name="container-watch")
            afterlife = Afterlife(cgroup_root=self._processes.cgroup_root)
            aio.spawn_eternal(tasks, afterlife.run(cri.connections()), name="afterlife")
            aio.spawn_eternal(tasks, self._newcomers.run(), name="newcomers")
            aio.spawn_eternal(tasks, self._owners.run(self._pods), name="owners")
            restarts = await self._begin(cri, watch, tasks=tasks, socket_path=choice.path)
            if self._hub is not None:
                assert self.rounds is not None
                known = Foreknowledge(runtime=cri, events=watch, pods=self._pods)
                aio.spawn_eternal(tasks, known.run(), name="foreknowledge")
                hub = self._hub.run(rounds=self.rounds, containers=watch, runtime=cri, can_hold=self._can_hold)
                aio.spawn_eternal(tasks, hub, name="hub")
            heartbeats = HeartbeatSource(
                runtime=cri,
                events=watch,
                pods=self._pods,
                processes=self._processes,
                memory=StoredBeating(self._store),
                listener=self._hangs,
                report=self._report_heartbeats,
                calls=OwnProcess("heartbeats", cgroup_root=self._processes.cgroup_root),
            )
            aio.spawn_eternal(tasks, heartbeats.run(), name="heartbeats")
            hangs = self._hangs.run(restarts=restarts, still_hung=heartbeats.still_hung)
            aio.spawn_eternal(tasks, hangs, name="hangs")

    async def _discover(self) -> discovery.Choice:
        backoff = aio.Backoff(first=0.5, limit=5.0)
        while True:
            try:
                return discovery.discover(self._settings.cri_endpoint)
            except (discovery.NoRuntimeSocketError, ValueError) as error:
                what, _, mend = str(error).partition("; ")
                self._report(PartStatus(PartState.DEGRADED, what, mend))
                await backoff.wait()

    async def _begin(
        self, cri: client.CriClient, watch: ContainerWatch, *, tasks: asyncio.TaskGroup, socket_path: str
    ) -> Restarts:
        """Replay the journal before anything new is begun; the runtime may need a while to answer.

        What a round holds goes first, and is the round's to finish.
        """
        files = HostFiles(symlink_dir=self._settings.pod_log_symlinks)
        holds = ExecHolds(socket_path=socket_path, proc=self._settings.proc)
        standbys = await self._standbys(holds)
        freezer = Freezer(
            runtime=cri,
            holds=holds if standbys is not None else None,
            processes=self._processes,
            proc=self._processes.root,
            cgroup_root=self._processes.cgroup_root,
            owner=self._owner,
        )
        broom = Broom(
            socket_path, calls=self._sweeping, proc=self._processes.root, cgroup_root=self._processes.cgroup_root
        )
        patience = Patience(leave=self._settings.device_wait)
        gates = Gates(driver=self._driver, processes=self._processes, patience=patience)
        outside = ports.Outside(
            runtime=cri,
            events=watch,
            pods=self._pods,
            devices=self._driver,
            owners=self._owners,
            reporter=self._reporter,
            announcements=self._announcements,
            processes=self._processes,
            actuators=ports.Actuators.of(
                Tools(
                    runtime=cri,
                    events=watch,
                    files=files,
                    processes=self._processes,
                    standbys=standbys,
                    broom=broom,
                    gates=gates,
                ),
                pods=self._pods,
            ),
        )
        self._restarts = Restarts(
            outside=outside,
            store=self._store,
            metrics=self._metrics,
            now=self._now,
            opted_in_namespaces=frozenset(self._settings.namespaces),
            own_pod_uid=self._settings.pod_uid,
            can_hold=standbys is not None,
            dry_run=self._settings.dry_run,
            storm=budgets.Window(limit=self._settings.storm_restarts, seconds=self._settings.storm_window),
            suspects=self._suspects,
            newcomers=self._newcomers,
            gangs=self._gangs,
        )
        self._can_hold = standbys is not None
        self.rounds = Rounds(
            outside=outside,
            store=self._store,
            restarts=self._restarts,
            freezer=freezer,
            knowledge=self._knowledge,
            clocks=Clocks(now=self._now, since_boot=since_boot, boot=self._boot_id),
            metrics=self._metrics,
            bounds=Bounds(
                opted_in_namespaces=frozenset(self._settings.namespaces),
                own_pod_uid=self._settings.pod_uid,
                dry_run=self._settings.dry_run,
                obstacle=freezer.obstacle,
            ),
        )
        held = await _patiently(self.rounds.load, name="rounds")
        aio.spawn_eternal(tasks, self.rounds.run(), name="rounds")
        recovery = Recovery(outside=outside, store=self._store, now=self._now, spared=held)
        count = await _patiently(recovery.run, name="journal")
        log.info("journal.replayed", intents=count, held=len(held))
        self._faults.use_runtime(restarts=self._restarts, events=watch, runtime=cri)
        self._requests.use_runtime(restarts=self._restarts)
        return self._restarts

    async def _standbys(self, holds: ExecHolds) -> Standbys | None:
        """Return what holds successors; None, and a line in the log, where this node cannot."""
        standbys = Standbys(
            holds=holds,
            proc=self._settings.proc,
            cgroup_root=self._settings.sysfs / "fs" / "cgroup",
            owner=self._owner,
        )
        try:
            await standbys.check()
        except HoldError as error:
            log.warning("standby.unavailable", error=str(error))
            return None
        return standbys


async def _patiently(work: Callable[[], Awaitable[_T]], *, name: str) -> _T:
    """Do what must be done before anything new is begun, again until the runtime and the disk let it be done."""
    backoff = aio.Backoff(first=0.1, limit=5.0)
    while True:
        try:
            return await work()
        except (CriError, HistoryError) as error:
            log.warning("journal.replay_waits", what=name, error=str(error))
            await backoff.wait()
