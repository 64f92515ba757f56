"""The container runtime part: find its socket, replay the journal, then let the faults be mended."""

import asyncio
from collections.abc import Callable

import structlog

from agent.actuator.host_files import HostFiles
from agent.actuator.tools import Tools
from agent.cri import client, discovery
from agent.cri.errors import CriError
from agent.engine import ports
from agent.engine.faults import AppFaults
from agent.engine.metrics import Metrics
from agent.engine.recovery import Recovery
from agent.engine.restarts import Restarts
from agent.history.store import HistoryError, Store
from agent.model.parts import PartState, PartStatus
from agent.reporters.pod_conditions import PodConditionReporter
from agent.settings import Settings
from agent.sources.containers import ContainerWatch
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
        pods: PodWatch,
        driver: Driver,
        owners: OwnerLookup,
        reporter: PodConditionReporter,
        processes: ProcFs,
        now: Callable[[], float],
        report: Callable[[PartStatus], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._faults = faults
        self._pods = pods
        self._driver = driver
        self._owners = owners
        self._reporter = reporter
        self._processes = processes
        self._now = now
        self._report = report
        self._restarts: Restarts | None = None

    async def drained(self) -> None:
        """Wait until no restart is being acted on."""
        if self._restarts is not None:
            await self._restarts.quiet.wait()

    async def run(self) -> None:
        """Look for the runtime until there is one, then follow it for ever."""
        choice = await self._discover()
        log.info("cri.found", socket=choice.path, why=choice.why)
        async with client.CriClient(choice.path) as cri, asyncio.TaskGroup() as tasks:
            watch = ContainerWatch(cri, report=self._report)
            aio.spawn_eternal(tasks, watch.run(), name="container-watch")
            await self._begin(cri, watch)

    async def _discover(self) -> discovery.Choice:
        backoff = aio.Backoff(first=0.5, limit=5.0)
        while True:
            try:
                return discovery.discover(self._settings.cri_endpoint)
            except (discovery.NoRuntimeSocketError, ValueError) as error:
                what, _, mend = str(error).partition("; ")
                self._report(PartStatus(PartState.DEGRADED, what, mend))
                await backoff.wait()

    async def _begin(self, cri: client.CriClient, watch: ContainerWatch) -> None:
        """Replay the journal before anything new is begun; the runtime may need a while to answer."""
        files = HostFiles(symlink_dir=self._settings.pod_log_symlinks)
        outside = ports.Outside(
            runtime=cri,
            events=watch,
            pods=self._pods,
            devices=self._driver,
            owners=self._owners,
            reporter=self._reporter,
            processes=self._processes,
            actuators=ports.Actuators.of(Tools(runtime=cri, events=watch, files=files), pods=self._pods),
        )
        await self._replay(Recovery(outside=outside, store=self._store, now=self._now))
        self._restarts = Restarts(
            outside=outside,
            store=self._store,
            metrics=self._metrics,
            now=self._now,
            opted_in_namespaces=frozenset(self._settings.namespaces),
            own_pod_uid=self._settings.pod_uid,
            dry_run=self._settings.dry_run,
        )
        self._faults.use_runtime(restarts=self._restarts, events=watch)

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
