"""The services that need the container runtime: find its socket, replay the journal, then handle faults."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import structlog

from kubemend.agent.actuator.cache_cleanup import CacheCleaner
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.device_processes import OldProcesses
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.hold.exec_hold import ExecHolds, HoldError
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.actuator.hold.oci_runtimes import OciRuntimes
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.actuator.layer_keeping import LayerKeeper
from kubemend.agent.actuator.release_gate import Timeouts
from kubemend.agent.actuator.shm_cleanup import ShmCleaner
from kubemend.agent.actuator.stop_requests import StopRequests
from kubemend.agent.app import last_resort
from kubemend.agent.app.dead_man_switch import DeadManSwitch
from kubemend.agent.app.node_services import NodeServices, Resources
from kubemend.agent.app.oci_programs import OciPrograms
from kubemend.agent.app.persisted_state import BEATING, PROGRAMS, StoredIds, StoredNumbers
from kubemend.agent.clients.containerd.snapshots import SnapshotClient
from kubemend.agent.clients.cri import client, discovery
from kubemend.agent.clients.cri.connection_drain import ConnectionDrain
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.clients.launcher.client import LauncherClient
from kubemend.agent.faults.exits import Ended, Exits, outside_reason
from kubemend.agent.model.rounds import StepResult
from kubemend.agent.model.workloads import ContainerRef, PodUid, PodView
from kubemend.agent.reporters.spare_conditions import SpareConditions
from kubemend.agent.restart import process
from kubemend.agent.restart.exits import Exit
from kubemend.agent.restarts.dependencies import Actuators, Dependencies
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.recovery import Background, Recovery
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.rounds.order_resolver import NodePolicy
from kubemend.agent.rounds.participant import RoundParticipant
from kubemend.agent.rounds.round_records import Clocks, since_boot
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.heartbeats import HeartbeatSource
from kubemend.agent.sources.launchers import Failed, LauncherWatch
from kubemend.agent.sources.pod_ends import PodEnds
from kubemend.agent.sources.program_starts import ProgramStarts
from kubemend.agent.sources.status_prefetch import StatusPrefetcher
from kubemend.common import aio, budgets
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.side_process import SideProcess

if TYPE_CHECKING:
    from kubemend.agent.hub.members import Failure

log = structlog.get_logger(__name__)

_T = TypeVar("_T")


class RuntimeServices:
    """Starts the services when the runtime is found; all other components work before that."""

    def __init__(self, shared: Resources, node: NodeServices, *, now: Callable[[], float] = time.time) -> None:
        self._settings = shared.settings
        self._store = shared.store
        self._metrics = shared.metrics
        self._access = node.access
        self._hangs = node.hangs
        self._suspects = node.suspects
        self._api = shared.api
        self._pods = node.pods
        self._driver = driver = node.sources.driver
        self._owners = node.owners
        self._device_facts = node.device_facts
        self._gangs = node.gangs
        self._hub = node.hub
        self._boot_id = shared.boot_id
        self._reporter = node.reporting.pods
        self._event_recorder = node.reporting.events
        self._spares = SpareConditions(pods=node.pods.pods, publish=node.reporting.pods.set)
        self._processes = processes = shared.processes
        self._prover = node.prover
        self._now = now
        self._report = shared.parts.reporter("container-runtime")
        self._report_heartbeats = shared.parts.reporter("heartbeats")
        self._oci_runtimes = OciRuntimes()
        self._reattach_timer = DeviceReattachTimer(driver=driver, processes=processes, metrics=shared.metrics)
        self._next_steps = NextStepTimer(metrics=shared.metrics)
        self._programs = ProgramStarts()
        self._scheduler: aio.Promise[RestartScheduler] = aio.Promise()
        self._sweeping = SideProcess("shm", cgroup_root=processes.cgroup_root)
        self._asking = SideProcess("launchers", cgroup_root=processes.cgroup_root)
        self._launchers = LauncherClient(calls=self._asking, processes=self._processes)

    async def drained(self) -> None:
        """Wait until no restart is in progress. The next agent resumes members of rounds that only wait."""
        if (restarts := self._scheduler.value) is not None:
            await restarts.quiet.wait()

    async def leave(self, *, timeout: float) -> None:
        """Report the results of rounds to the hub, and disconnect from it."""
        if self._hub is not None:
            await self._hub.leave(timeout=timeout)

    async def run(self) -> None:
        """Discover the runtime, then follow it indefinitely."""
        self._report_heartbeats(ComponentStatus(ComponentState.IDLE, "needs the container runtime first"))
        choice = await self._discover()
        log.info("cri.found", socket=choice.path, reason=choice.reason)
        owner = last_resort.owner(self._settings.node_name, socket_path=choice.path)
        dead_man = DeadManSwitch(
            state_dir=self._settings.state_dir,
            socket=choice.path,
            owner=owner,
            cgroup_root=self._processes.cgroup_root,
            proc=self._processes.root,
        )
        async with (
            client.CriClient(choice.path, proc=self._settings.proc) as cri,
            self._sweeping,
            self._asking,
            dead_man.at_work(),
            contextlib.AsyncExitStack() as subscriptions,
            asyncio.TaskGroup() as tasks,
        ):
            aio.spawn_eternal(tasks, dead_man.run(), name="dead-man")
            await dead_man.take_charge()
            watch = ContainerWatch(cri, report=self._report)
            ends = PodEnds(
                pods=self._pods, runtime=cri, containers=watch, api=self._api, node_name=self._settings.node_name
            )
            watch.on_sandbox_stopped(ends.sandbox_stopped)
            aio.spawn_eternal(tasks, watch.run(), name="container-watch")
            connection_drain = ConnectionDrain(cgroup_root=self._processes.cgroup_root)
            aio.spawn_eternal(tasks, ends.run(), name="pod-ends")
            asked = StopRequests(
                socket_path=choice.path,
                proc=self._settings.proc,
                stopped=ends.stop_asked,
                unread=ends.request_unread,
                runtimes=self._oci_runtimes,
            )
            programs = OciPrograms(cri, self._oci_runtimes)
            aio.spawn_eternal(tasks, programs.run(), name="oci-programs")
            aio.spawn_eternal(tasks, _follow_stops(asked, after=programs), name="stop-requests")
            aio.spawn_eternal(tasks, connection_drain.run(cri.connections()), name="connection-drain")
            aio.spawn_eternal(tasks, self._reattach_timer.run(), name="reattach-timer")
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
            restarts, rounds = await self._begin(
                cri, watch, tasks=tasks, socket_path=choice.path, owner=owner, ends=ends, heartbeats=heartbeats
            )
            exits = self._exits(restarts, rounds=rounds, cri=cri, ends=ends)
            aio.spawn_eternal(tasks, exits.run(steps), name="exits")
            self._follow_launchers(tasks, cri=cri, watch=watch, ends=ends, heartbeats=heartbeats)
            known = StatusPrefetcher(
                runtime=cri,
                events=watch,
                pods=self._pods,
                opted_in_namespaces=frozenset(self._settings.opt_in_namespaces),
                own_pod_uid=self._settings.pod_uid,
            )
            aio.spawn_eternal(tasks, known.run(), name="foreknowledge")
            if self._hub is not None:
                hub = self._hub.run(
                    rounds=rounds,
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
        self,
        tasks: asyncio.TaskGroup,
        *,
        cri: client.CriClient,
        watch: ContainerWatch,
        ends: PodEnds,
        heartbeats: HeartbeatSource,
    ) -> None:
        """Follow the launchers in containers. The hub decides about failures of gang members' programs."""
        failed: Failed = _left_to_launcher
        if self._hub is not None:
            programs = self._hub.failed_programs(self._launchers, ending_reason=ends.reason, now=self._now)
            aio.spawn_eternal(tasks, programs.run(), name="failed-programs")
            failed = programs.failed
        launchers = LauncherWatch(
            runtime=cri,
            events=watch,
            pods=self._pods,
            launchers=self._launchers,
            memory=StoredNumbers(self._store, PROGRAMS),
            changed=self._show_spare,
            failed=failed,
            hold=lambda pod: process.FAILED_HOLD if self._is_reported(pod) else 0.0,
            began=self._spares.adopt,
            started=self._programs.started,
            renewed=heartbeats.restarted,
            opted_in_namespaces=frozenset(self._settings.opt_in_namespaces),
            own_pod_uid=self._settings.pod_uid,
        )
        aio.spawn_eternal(tasks, launchers.run(), name="launchers")

    def _is_reported(self, pod: PodView) -> bool:
        """Return whether a pod's failures are reported to the hub, which decides about them."""
        return self._hub is not None and pod.gang is not None and not self._settings.dry_run

    def _show_spare(
        self, container: ContainerRef, launcher: process.Launcher | process.LauncherUnavailable | None
    ) -> None:
        pod, answer = container.pod, launcher if isinstance(launcher, process.Launcher) else None
        self._metrics.show_spare(pod.namespace, pod.name, container.name, launcher=answer)
        self._spares.show(container, launcher)

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
            device_facts=self._device_facts,
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
        owner: str,
        ends: PodEnds,
        heartbeats: HeartbeatSource,
    ) -> tuple[RestartScheduler, RoundParticipant]:
        """Replay the journal before any new restart; the runtime may need some time to answer.

        Containers held by a round come first, and are left to the round.
        """
        files = HostFiles(symlink_dir=self._settings.pod_log_symlinks)
        holds = ExecHolds(socket_path=socket_path, proc=self._settings.proc, roots=cri, oci_runtimes=self._oci_runtimes)
        standbys = await self._standbys(holds, owner=owner)
        freezer = Freezer(
            runtime=cri,
            holds=holds if standbys is not None else None,
            processes=self._processes,
            proc=self._processes.root,
            cgroup_root=self._processes.cgroup_root,
            owner=owner,
        )
        shm_cleaner = ShmCleaner(
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
        layers = LayerKeeper(
            socket_path,
            calls=self._sweeping,
            snapshots=SnapshotClient(socket_path),
            statuses=cri,
            proc=self._processes.root,
        )
        timeouts = Timeouts(leave=self._settings.device_release_timeout)
        old = OldProcesses(runtime=cri, events=watch, processes=self._processes)
        gates = ReleaseGates(driver=self._driver, processes=self._processes, old=old, timeouts=timeouts)
        dependencies = Dependencies(
            runtime=cri,
            events=watch,
            pods=self._pods,
            devices=self._driver,
            owners=self._owners,
            reporter=self._reporter,
            event_recorder=self._event_recorder,
            processes=self._processes,
            heartbeats=heartbeats,
            launchers=self._launchers,
            actuators=Actuators.of(
                ActuatorContext(
                    runtime=cri,
                    events=watch,
                    files=files,
                    processes=self._processes,
                    standbys=standbys,
                    launchers=self._launchers,
                    shm_cleaner=shm_cleaner,
                    caches=caches,
                    layers=layers,
                    gates=gates,
                    ending=ends.reason,
                    stopping=ends.stop_reason,
                    kubelet_creates=self._pods.kubelet_creates,
                ),
                pods=self._pods,
            ),
            prover=self._prover,
            device_facts=self._device_facts,
        )
        restarts = RestartScheduler(
            dependencies=dependencies,
            store=self._store,
            metrics=self._metrics,
            now=self._now,
            opted_in_namespaces=frozenset(self._settings.opt_in_namespaces),
            own_pod_uid=self._settings.pod_uid,
            can_hold=standbys is not None,
            dry_run=self._settings.dry_run,
            storm=budgets.Window(limit=self._settings.storm_restarts, seconds=self._settings.storm_window),
            suspects=self._suspects,
            reattach_timer=self._reattach_timer,
            next_steps=self._next_steps,
            gangs=self._gangs,
        )
        self._scheduler.fulfil(restarts)
        rounds = RoundParticipant(
            dependencies=dependencies,
            store=self._store,
            restarts=restarts,
            freezer=freezer,
            device_facts=self._device_facts,
            clocks=Clocks(now=self._now, since_boot=since_boot, boot=self._boot_id),
            metrics=self._metrics,
            on_result=self._report_result,
            bounds=NodePolicy(
                opted_in_namespaces=frozenset(self._settings.opt_in_namespaces),
                own_pod_uid=self._settings.pod_uid,
                dry_run=self._settings.dry_run,
                obstacle=freezer.obstacle,
            ),
        )
        held = await _until_done(rounds.load, name="rounds")
        aio.spawn_eternal(tasks, rounds.run(), name="rounds")
        recovery = Recovery(
            dependencies=dependencies,
            store=self._store,
            now=self._now,
            spared=held,
            background=Background(tasks, restarts),
        )
        count = await _until_done(recovery.run, name="journal")
        log.info("journal.replayed", intents=count, held=len(held))
        unowned = functools.partial(last_resort.end_unowned_swaps, cri, freezer, opened=self._pods_with_restarts)
        tasks.create_task(_until_done(unowned, name="frozen"), name="unowned swaps")
        doubt = functools.partial(outside_reason, pods=self._pods, events=watch, runtime=cri, ends=ends)
        self._access.fulfil(RuntimeAccess(restarts, watch, cri, doubt, self._programs))
        return restarts, rounds

    async def _pods_with_restarts(self) -> frozenset[PodUid]:
        """Return the pods with open intents. Raises JournalError."""
        return frozenset(each.target.pod.uid for each in await self._store.unfinished())

    def _report_result(self, step_result: StepResult) -> None:
        if self._hub is not None:
            self._hub.report_result(step_result)

    async def _standbys(self, holds: ExecHolds, *, owner: str) -> Standbys | None:
        """Return the component that holds successors; None, with a log line, where this node does not support it."""
        standbys = Standbys(
            holds=holds,
            proc=self._settings.proc,
            cgroup_root=self._settings.sysfs / "fs" / "cgroup",
            owner=owner,
        )
        try:
            await standbys.check()
        except HoldError as error:
            log.warning("standby.unavailable", error=str(error))
            return None
        return standbys


async def _follow_stops(requests: StopRequests, *, after: OciPrograms) -> None:
    """Follow stop requests once the programs that send them are known."""
    await after.asked()
    await requests.run()


def _left_to_launcher(*_: object) -> None:
    return


def _ended(failure: "Failure") -> Ended:
    how = Exit(failure.container.ref.name, failure.exit_code, failure.reason)
    return Ended(failure.container, how, failure.at)


async def _doubt(ends: PodEnds, failure: "Failure", *, now: Callable[[], float]) -> str:
    """Return why a member's exit is caused by the end of its pod; empty where it is a fault."""
    ended = _ended(failure)
    return await ends.outside_reason(ended.container, ended.how, lag=max(0.0, now() - ended.at))


async def _until_done(work: Callable[[], Awaitable[_T]], *, name: str) -> _T:
    """Run work that must precede any restart, and retry until the runtime and the disk allow it."""
    backoff = aio.Backoff(first=0.1, limit=5.0)
    while True:
        try:
            return await work()
        except (CriError, JournalError) as error:
            log.warning("journal.replay_waits", what=name, error=str(error))
            await backoff.wait()
