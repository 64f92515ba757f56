"""The services that need the container runtime: find its socket, replay the journal, then handle faults."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator.cache_cleanup import CacheCleaner
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.device_release import Patience, ReleaseGates
from kubemend.agent.actuator.hold.exec_hold import ExecHolds, HoldError
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.actuator.shm_cleanup import ShmCleaner
from kubemend.agent.actuator.stop_requests import StopRequests
from kubemend.agent.app import last_resort
from kubemend.agent.app.dead_man_switch import DeadManSwitch
from kubemend.agent.app.persisted_state import BEATING, StoredIds
from kubemend.agent.app.restart_proofs import RestartProofs
from kubemend.agent.clients.cri import client, discovery
from kubemend.agent.clients.cri.connection_drain import ConnectionDrain
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.journal.store import HistoryError, Store
from kubemend.agent.clients.launcher.client import LauncherClient
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.faults.exits import Ended, Exits, why_not_its_own
from kubemend.agent.faults.hangs import Hangs
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.workloads import ContainerRef, PodView
from kubemend.agent.reporters.pod_conditions import PodConditionReporter
from kubemend.agent.restart import process
from kubemend.agent.restart.exits import Exit
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.rounds.order_resolver import DeviceFacts, NodePolicy
from kubemend.agent.rounds.participant import RoundParticipant
from kubemend.agent.rounds.session import Clocks, since_boot
from kubemend.agent.settings import Settings
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.heartbeats import HeartbeatSource
from kubemend.agent.sources.launchers import Failed, LauncherWatch
from kubemend.agent.sources.nvml.driver import Driver
from kubemend.agent.sources.owners import OwnerLookup
from kubemend.agent.sources.pod_ends import PodEnds
from kubemend.agent.sources.pods import PodWatch
from kubemend.agent.sources.processes import ProcFs
from kubemend.agent.sources.status_prefetch import StatusPrefetcher
from kubemend.common import aio, budgets
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client as kube
from kubemend.common.side_process import SideProcess

if TYPE_CHECKING:
    from kubemend.agent.hub.client import Hub
    from kubemend.agent.hub.members import Failure

log = structlog.get_logger(__name__)

_T = TypeVar("_T")


class RuntimeServices:
    """Starts the services when the runtime is found; all other components work before that."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        access: aio.Promise[RuntimeAccess],
        hangs: Hangs,
        suspects: SuspicionTracker,
        api: kube.KubeClient,
        pods: PodWatch,
        driver: Driver,
        owners: OwnerLookup,
        knowledge: DeviceFacts,
        gangs: ports.Gangs,
        hub: "Hub | None",
        boot_id: str,
        reporter: PodConditionReporter,
        announcements: ports.Announcements,
        processes: ProcFs,
        prover: RestartProofs,
        now: Callable[[], float],
        report: Callable[[ComponentStatus], None],
        report_heartbeats: Callable[[ComponentStatus], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._access = access
        self._hangs = hangs
        self._suspects = suspects
        self._api = api
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
        self._prover = prover
        self._now = now
        self._report = report
        self._report_heartbeats = report_heartbeats
        self._newcomers = DeviceReattachTimer(driver=driver, processes=processes, metrics=metrics)
        self._next_steps = NextStepTimer(metrics=metrics)
        self._restarts: RestartScheduler | None = None
        self._owner = ""
        self._sweeping = SideProcess("shm", cgroup_root=processes.cgroup_root)
        self._asking = SideProcess("launchers", cgroup_root=processes.cgroup_root)
        self._launchers = LauncherClient(calls=self._asking, processes=processes)
        self.rounds: RoundParticipant | None = None
        """The participant in gang rounds on this node, once the runtime has been found."""

    async def drained(self) -> None:
        """Wait until no restart is in progress. The next agent resumes members of rounds that only wait."""
        if self._restarts is not None:
            await self._restarts.quiet.wait()

    async def leave(self, *, timeout: float) -> None:
        """Report the results of rounds to the hub, and disconnect from it."""
        if self._hub is not None:
            await self._hub.leave(timeout=timeout)

    async def run(self) -> None:
        """Discover the runtime, then follow it indefinitely."""
        self._report_heartbeats(ComponentStatus(ComponentState.IDLE, "needs the container runtime first"))
        choice = await self._discover()
        log.info("cri.found", socket=choice.path, why=choice.why)
        self._owner = last_resort.owner(self._settings.node_name, socket_path=choice.path)
        dead_man = DeadManSwitch(
            state_dir=self._settings.state_dir,
            socket=choice.path,
            owner=self._owner,
            cgroup_root=self._processes.cgroup_root,
            proc=self._processes.root,
        )
        async with (
            client.CriClient(choice.path) as cri,
            self._sweeping,
            self._asking,
            dead_man.at_work(),
            contextlib.AsyncExitStack() as subscriptions,
            asyncio.TaskGroup() as tasks,
        ):
            aio.spawn_eternal(tasks, dead_man.run(), name="dead-man")
            await dead_man.take_charge()
            watch = ContainerWatch(
                cri,
                report=self._report,
                sandbox_stopped=lambda sandbox: ends.sandbox_stopped(sandbox),  # noqa: PLW0108 - it is created below
            )
            ends = PodEnds(
                pods=self._pods, runtime=cri, containers=watch, api=self._api, node_name=self._settings.node_name
            )
            aio.spawn_eternal(tasks, watch.run(), name="container-watch")
            afterlife = ConnectionDrain(cgroup_root=self._processes.cgroup_root)
            aio.spawn_eternal(tasks, ends.run(), name="pod-ends")
            asked = StopRequests(
                socket_path=choice.path,
                proc=self._settings.proc,
                stopped=ends.stop_asked,
                unread=ends.request_unread,
            )
            aio.spawn_eternal(tasks, asked.run(), name="stop-requests")
            aio.spawn_eternal(tasks, afterlife.run(cri.connections()), name="afterlife")
            aio.spawn_eternal(tasks, self._newcomers.run(), name="newcomers")
            aio.spawn_eternal(tasks, self._owners.run(self._pods), name="owners")
            heartbeats = HeartbeatSource(
                runtime=cri,
                events=watch,
                pods=self._pods,
                processes=self._processes,
                memory=StoredIds(self._store, BEATING),
                listener=self._hangs,
                polls=self._next_steps,
                report=self._report_heartbeats,
                calls=SideProcess("heartbeats", cgroup_root=self._processes.cgroup_root),
            )
            # Before the journal is replayed, which can take seconds: an exit in that time is handled afterwards.
            await watch.until_listed()
            steps = await subscriptions.enter_async_context(watch.subscribe())
            restarts = await self._begin(
                cri, watch, tasks=tasks, socket_path=choice.path, ends=ends, heartbeats=heartbeats
            )
            assert self.rounds is not None
            exits = self._exits(restarts, rounds=self.rounds, cri=cri, ends=ends)
            aio.spawn_eternal(tasks, exits.run(steps), name="exits")
            self._follow_launchers(tasks, cri=cri, watch=watch, ends=ends)
            if self._hub is not None:
                known = StatusPrefetcher(runtime=cri, events=watch, pods=self._pods)
                aio.spawn_eternal(tasks, known.run(), name="foreknowledge")
                hub = self._hub.run(
                    rounds=self.rounds,
                    containers=watch,
                    runtime=cri,
                    doubt=lambda failure: _doubt(ends, failure, now=self._now),
                    alone=lambda failure: exits.restart(_ended(failure)),
                )
                aio.spawn_eternal(tasks, hub, name="hub")
            aio.spawn_eternal(tasks, heartbeats.run(), name="heartbeats")
            hangs = self._hangs.run(restarts=restarts, still_hung=heartbeats.still_hung)
            aio.spawn_eternal(tasks, hangs, name="hangs")

    def _follow_launchers(
        self, tasks: asyncio.TaskGroup, *, cri: client.CriClient, watch: ContainerWatch, ends: PodEnds
    ) -> None:
        """Follow the launchers in containers. The hub decides about failures of gang members' programs."""
        failed: Failed = _left_to_launcher
        if self._hub is not None:
            programs = self._hub.failed_programs(self._launchers, why_ending=ends.why, now=self._now)
            aio.spawn_eternal(tasks, programs.run(), name="failed-programs")
            failed = programs.failed
        launchers = LauncherWatch(
            runtime=cri,
            events=watch,
            pods=self._pods,
            launchers=self._launchers,
            changed=self._show_spare,
            failed=failed,
            hold=lambda pod: process.FAILED_HOLD if self._is_reported(pod) else 0.0,
            opted_in_namespaces=frozenset(self._settings.opt_in_namespaces),
            own_pod_uid=self._settings.pod_uid,
        )
        aio.spawn_eternal(tasks, launchers.run(), name="launchers")

    def _is_reported(self, pod: PodView) -> bool:
        """Return whether a pod's failures are reported to the hub, which decides about them."""
        return self._hub is not None and pod.gang is not None and not self._settings.dry_run

    def _show_spare(self, container: ContainerRef, launcher: process.Launcher | None) -> None:
        pod, state = container.pod, launcher.spare_state.value if launcher is not None else None
        self._metrics.show_spare(pod.namespace, pod.name, container.name, state=state)

    def _exits(
        self,
        restarts: RestartScheduler,
        *,
        rounds: RoundParticipant,
        cri: client.CriClient,
        ends: PodEnds,
    ) -> Exits:
        return Exits(
            restarts=restarts,
            pods=self._pods,
            runtime=cri,
            ends=ends,
            rounds=rounds,
            knowledge=self._knowledge,
            now=self._now,
            reported=lambda pod: self._hub is not None and pod.gang is not None,
            opted_in_namespaces=frozenset(self._settings.opt_in_namespaces),
            own_pod_uid=self._settings.pod_uid,
        )

    async def _discover(self) -> discovery.Choice:
        backoff = aio.Backoff(first=0.5, limit=5.0)
        while True:
            try:
                return discovery.discover(self._settings.cri_endpoint)
            except (discovery.NoRuntimeSocketError, ValueError) as error:
                what, _, hint = str(error).partition("; ")
                self._report(ComponentStatus(ComponentState.DEGRADED, what, hint))
                await backoff.wait()

    async def _begin(
        self,
        cri: client.CriClient,
        watch: ContainerWatch,
        *,
        tasks: asyncio.TaskGroup,
        socket_path: str,
        ends: PodEnds,
        heartbeats: HeartbeatSource,
    ) -> RestartScheduler:
        """Replay the journal before any new restart; the runtime may need some time to answer.

        Containers held by a round come first, and are left to the round.
        """
        files = HostFiles(symlink_dir=self._settings.pod_log_symlinks)
        holds = ExecHolds(socket_path=socket_path, proc=self._settings.proc, tells=cri)
        standbys = await self._standbys(holds)
        freezer = Freezer(
            runtime=cri,
            holds=holds if standbys is not None else None,
            processes=self._processes,
            proc=self._processes.root,
            cgroup_root=self._processes.cgroup_root,
            owner=self._owner,
        )
        broom = ShmCleaner(
            socket_path, calls=self._sweeping, proc=self._processes.root, cgroup_root=self._processes.cgroup_root
        )
        caches = CacheCleaner(
            socket_path,
            calls=self._sweeping,
            documents=self._store,
            proc=self._processes.root,
            count=lambda result: self._metrics.caches.labels(result.value).inc(),
        )
        aio.spawn_eternal(tasks, caches.run(), name="cache-remains")
        patience = Patience(leave=self._settings.device_release_timeout)
        gates = ReleaseGates(driver=self._driver, processes=self._processes, patience=patience)
        outside = ports.Dependencies(
            runtime=cri,
            events=watch,
            pods=self._pods,
            devices=self._driver,
            owners=self._owners,
            reporter=self._reporter,
            announcements=self._announcements,
            processes=self._processes,
            heartbeats=heartbeats,
            launchers=self._launchers,
            actuators=ports.Actuators.of(
                ActuatorContext(
                    runtime=cri,
                    events=watch,
                    files=files,
                    processes=self._processes,
                    standbys=standbys,
                    launchers=self._launchers,
                    broom=broom,
                    caches=caches,
                    gates=gates,
                    ending=ends.why,
                ),
                pods=self._pods,
            ),
            prover=self._prover,
        )
        self._restarts = RestartScheduler(
            outside=outside,
            store=self._store,
            metrics=self._metrics,
            now=self._now,
            opted_in_namespaces=frozenset(self._settings.opt_in_namespaces),
            own_pod_uid=self._settings.pod_uid,
            can_hold=standbys is not None,
            dry_run=self._settings.dry_run,
            storm=budgets.Window(limit=self._settings.storm_restarts, seconds=self._settings.storm_window),
            suspects=self._suspects,
            newcomers=self._newcomers,
            next_steps=self._next_steps,
            gangs=self._gangs,
        )
        self.rounds = RoundParticipant(
            outside=outside,
            store=self._store,
            restarts=self._restarts,
            freezer=freezer,
            knowledge=self._knowledge,
            clocks=Clocks(now=self._now, since_boot=since_boot, boot=self._boot_id),
            metrics=self._metrics,
            bounds=NodePolicy(
                opted_in_namespaces=frozenset(self._settings.opt_in_namespaces),
                own_pod_uid=self._settings.pod_uid,
                dry_run=self._settings.dry_run,
                obstacle=freezer.obstacle,
            ),
        )
        held = await _until_done(self.rounds.load, name="rounds")
        aio.spawn_eternal(tasks, self.rounds.run(), name="rounds")
        recovery = Recovery(outside=outside, store=self._store, now=self._now, spared=held)
        count = await _until_done(recovery.run, name="journal")
        log.info("journal.replayed", intents=count, held=len(held))
        doubt = functools.partial(why_not_its_own, pods=self._pods, events=watch, runtime=cri, ends=ends)
        self._access.fulfil(RuntimeAccess(self._restarts, watch, cri, doubt))
        return self._restarts

    async def _standbys(self, holds: ExecHolds) -> Standbys | None:
        """Return the component that holds successors; None, with a log line, where this node does not support it."""
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


def _left_to_launcher(*_: object) -> None:
    return


def _ended(failure: "Failure") -> Ended:
    how = Exit(failure.container.ref.name, failure.exit_code, failure.reason)
    return Ended(failure.container, how, failure.at)


async def _doubt(ends: PodEnds, failure: "Failure", *, now: Callable[[], float]) -> str:
    """Return why a member's exit is caused by the end of its pod; empty where it is a fault."""
    ended = _ended(failure)
    return await ends.why_not_its_own(ended.container, ended.how, lag=max(0.0, now() - ended.at))


async def _until_done(work: Callable[[], Awaitable[_T]], *, name: str) -> _T:
    """Run work that must precede any restart, and retry until the runtime and the disk allow it."""
    backoff = aio.Backoff(first=0.1, limit=5.0)
    while True:
        try:
            return await work()
        except (CriError, HistoryError) as error:
            log.warning("journal.replay_waits", what=name, error=str(error))
            await backoff.wait()
