"""The container runtime part: find its socket, replay the journal, then let the faults be mended."""

import asyncio
from collections.abc import Callable

import structlog

from agent.actuator.exec_hold import ExecHolds, HoldError
from agent.actuator.gates import Gates, Patience
from agent.actuator.host_files import HostFiles
from agent.actuator.standby import Standbys
from agent.actuator.sweep import Broom
from agent.actuator.tools import Tools
from agent.app.beating import StoredBeating
from agent.cri import client, discovery
from agent.cri.afterlife import Afterlife
from agent.cri.errors import CriError
from agent.engine import ports
from agent.engine.faults import AppFaults
from agent.engine.hangs import Hangs
from agent.engine.metrics import Metrics
from agent.engine.newcomers import Newcomers
from agent.engine.recovery import Recovery
from agent.engine.requests import Requests
from agent.engine.restarts import Restarts
from agent.engine.suspects import Suspects
from agent.history.store import HistoryError, Store
from agent.model.parts import PartState, PartStatus
from agent.reporters.pod_conditions import PodConditionReporter
from agent.restart import budget
from agent.settings import Settings
from agent.sources.containers import ContainerWatch
from agent.sources.heartbeats import HeartbeatSource
from agent.sources.nvml.driver import Driver
from agent.sources.owners import OwnerLookup
from agent.sources.pods import PodWatch
from agent.sources.processes import ProcFs
from common import aio

log = structlog.get_logger(__name__)


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
        self._reporter = reporter
        self._announcements = announcements
        self._processes = processes
        self._now = now
        self._report = report
        self._report_heartbeats = report_heartbeats
        self._newcomers = Newcomers(driver=driver, processes=processes, metrics=metrics)
        self._restarts: Restarts | None = None

    async def drained(self) -> None:
        """Wait until no restart is being acted on."""
        if self._restarts is not None:
            await self._restarts.quiet.wait()

    async def run(self) -> None:
        """Look for the runtime until there is one, then follow it for ever."""
        self._report_heartbeats(PartStatus(PartState.IDLE, "needs the container runtime first"))
        choice = await self._discover()
        log.info("cri.found", socket=choice.path, why=choice.why)
        async with client.CriClient(choice.path) as cri, asyncio.TaskGroup() as tasks:
            watch = ContainerWatch(cri, report=self._report)
            aio.spawn_eternal(tasks, watch.run(), name="container-watch")
            afterlife = Afterlife(cgroup_root=self._processes.cgroup_root)
            aio.spawn_eternal(tasks, afterlife.run(cri.connections()), name="afterlife")
            aio.spawn_eternal(tasks, self._newcomers.run(), name="newcomers")
            restarts = await self._begin(cri, watch, socket_path=choice.path)
            heartbeats = HeartbeatSource(
                runtime=cri,
                events=watch,
                pods=self._pods,
                processes=self._processes,
                memory=StoredBeating(self._store),
                listener=self._hangs,
                report=self._report_heartbeats,
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

    async def _begin(self, cri: client.CriClient, watch: ContainerWatch, *, socket_path: str) -> Restarts:
        """Replay the journal before anything new is begun; the runtime may need a while to answer."""
        files = HostFiles(symlink_dir=self._settings.pod_log_symlinks)
        standbys = await self._standbys(socket_path)
        broom = Broom(socket_path, proc=self._processes.root, cgroup_root=self._processes.cgroup_root)
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
                Tools(runtime=cri, events=watch, files=files, standbys=standbys, broom=broom, gates=gates),
                pods=self._pods,
            ),
        )
        await self._replay(Recovery(outside=outside, store=self._store, now=self._now))
        self._restarts = Restarts(
            outside=outside,
            store=self._store,
            metrics=self._metrics,
            now=self._now,
            opted_in_namespaces=frozenset(self._settings.namespaces),
            own_pod_uid=self._settings.pod_uid,
            can_hold=standbys is not None,
            dry_run=self._settings.dry_run,
            storm=budget.Window(limit=self._settings.storm_restarts, seconds=self._settings.storm_window),
            suspects=self._suspects,
            newcomers=self._newcomers,
        )
        self._faults.use_runtime(restarts=self._restarts, events=watch)
        self._requests.use_runtime(restarts=self._restarts)
        return self._restarts

    async def _standbys(self, socket_path: str) -> Standbys | None:
        """Return what holds successors; None, and a line in the log, where this node cannot."""
        standbys = Standbys(
            holds=ExecHolds(socket_path=socket_path, proc=self._settings.proc),
            proc=self._settings.proc,
            cgroup_root=self._settings.sysfs / "fs" / "cgroup",
        )
        try:
            await standbys.check()
        except HoldError as error:
            log.warning("standby.unavailable", error=str(error))
            return None
        return standbys

    @staticmethod
    async def _replay(recovery: Recovery) -> None:
        backoff = aio.Backoff(first=0.1, limit=5.0)
        while True:
            try:
                count = await recovery.run()
            except (CriError, HistoryError) as error:
                log.warning("journal.replay_waits", error=str(error))
                await backoff.wait()
            else:
                log.info("journal.replayed", intents=count)
                return
