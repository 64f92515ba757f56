"""Watch the heartbeat files of all containers whose pods request it (``agent.restart.options.Heartbeat``)."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.health.state import heartbeat
from kubemend.agent.health.state.heartbeat import HeartbeatState, HeartbeatStatus
from kubemend.agent.health.state.next_step import FileCheck
from kubemend.agent.model.hangs import Hang
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodUid,
)
from kubemend.agent.restart import members, options
from kubemend.agent.sources.heartbeat_watch import Watch
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.side_process import Calls

log = structlog.get_logger(__name__)


class Listener(Protocol):
    """Receives the results."""

    def hung(self, hang: Hang) -> None:
        """A container hangs. Called again every ten minutes while the hang persists."""

    def silent_for(self, container: ContainerRef, seconds: float | None) -> None:
        """Seconds since the file was last touched; None while that is unknown."""


class Polls(Protocol):
    """Receives every check of a file (``agent.restarts.next_step_timer.NextStepTimer``)."""

    def polled(self, container: ContainerSummary, check: FileCheck) -> None:
        """A container's file has been checked."""

    def unwatched(self, container: ContainerSummary) -> None:
        """A container's file is no longer checked."""


class HeartbeatSource:
    """Watches the containers. One counts as hung only after its first heartbeat, and only while it is able to beat."""

    def __init__(
        self,
        *,
        runtime: ports.ContainerStatuses,
        events: ports.Events,
        pods: ports.Pods,
        processes: ProcFs,
        memory: ports.StoredIds,
        listener: Listener,
        polls: Polls,
        report: Callable[[ComponentStatus], None],
        calls: Calls,
    ) -> None:
        """``calls`` runs the inspection of containers; it is closed with this object."""
        self._runtime = runtime
        self._events = events
        self._pods = pods
        self._processes = processes
        self._memory = memory
        self._listener = listener
        self._polls = polls
        self._report = report
        self._calls = calls
        self._watches: dict[ContainerId, tuple[Watch, asyncio.Task[None]]] = {}
        self._remembered: frozenset[ContainerId] = frozenset()
        self._restarted_early: set[ContainerId] = set()  # by a replay, before the watch has begun
        self._is_loaded = False
        self._saved: frozenset[ContainerId] = frozenset()
        self._requesting: frozenset[PodUid] = frozenset()
        self._wake = asyncio.Event()
        self._to_save = asyncio.Event()

    async def run(self) -> None:
        """Watch indefinitely."""
        self._saved = await self._memory.load()
        self._remembered, self._is_loaded = self._saved - self._restarted_early, True
        unsubscribe = self._pods.subscribe(lambda _: self._wake.set())
        try:
            async with self._events.subscribe() as changes, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._wake_on(changes), name="container changes for heartbeats")
                tasks.create_task(self._save(), name="heartbeat state")
                while True:
                    self._wake.clear()
                    self._adjust(tasks)
                    await self._wake.wait()
        finally:
            unsubscribe()
            await self._calls.close()

    def restarted(self, container: ContainerId) -> None:
        """Start the watch of a container again, because its program has ended or has been restarted in it."""
        if not self._is_loaded:
            self._restarted_early.add(container)
        self._remembered -= {container}
        if container in self._watches:
            self._watches[container][0].begin_again()

    async def still_hung(self, container: ContainerId) -> str:
        """Check a hung container again; return the reason why it no longer counts as hung.

        Empty: it still hangs.
        """
        if container not in self._watches:
            return "it has ended, or its heartbeat is no longer requested"
        watch, _ = self._watches[container]
        return _NO_LONGER_HUNG[(await watch.poll()).status]

    async def _wake_on(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        """Update the watches when the containers of a pod with a heartbeat change; most pods have none."""
        while True:
            change = await changes.get()
            if change.pod.uid in self._requesting or change.container_id in self._watches:
                self._wake.set()

    def _adjust(self, tasks: asyncio.TaskGroup) -> None:
        """Start the watches that are needed and stop the others."""
        wanted = {view.id: (view, config) for view, config in self._wanted()}
        for container, (watch, task) in list(self._watches.items()):
            if container not in wanted or wanted[container][1] != watch.config:
                task.cancel()
                del self._watches[container]
                self._listener.silent_for(watch.view.ref, None)
                self._polls.unwatched(watch.view)
                self._to_save.set()
        for container, (view, config) in wanted.items():
            if container not in self._watches:
                with contained.within(contained.Part.HEARTBEAT, view.ref):
                    self._begin(view, config, tasks)
        self._report_status()

    def _begin(self, view: ContainerSummary, config: options.Heartbeat, tasks: asyncio.TaskGroup) -> None:
        watch = Watch(
            view,
            config,
            state=heartbeat.REMEMBERED if view.id in self._remembered else HeartbeatState(),
            runtime=self._runtime,
            processes=self._processes,
            calls=self._calls,
            changed=self._changed,
            on_hang=self._listener.hung,
            on_poll=self._polled,
        )
        log.info("heartbeat.watched", container=str(view.ref), file=config.file, timeout=config.timeout)
        self._watches[view.id] = watch, tasks.create_task(watch.run(), name=f"heartbeat of {view.ref}")

    def _wanted(self) -> Iterator[tuple[ContainerSummary, options.Heartbeat]]:
        pods = self._pods.pods()
        requested: dict[PodUid, options.Options] = {}
        for uid, pod in pods.items():
            if options.HEARTBEAT_FILE in pod.annotations:
                with (
                    contained.within(contained.Part.HEARTBEAT, pod.ref),
                    contextlib.suppress(options.BadAnnotationError),
                ):
                    requested[uid] = options.parse(pod.annotations)
        self._requesting = frozenset(requested)
        for view in self._events.containers():
            chosen, is_target = requested.get(view.ref.pod.uid), False
            if chosen is None or chosen.heartbeat is None or view.state is not ContainerState.RUNNING:
                continue
            with contained.within(contained.Part.HEARTBEAT, view.ref):
                is_target = view.ref.name in members.targets(pods[view.ref.pod.uid], named=chosen.containers)
            if is_target:
                yield view, chosen.heartbeat

    def _changed(self, watch: Watch) -> None:
        state = watch.state
        known = state.status in (HeartbeatStatus.BEATING, HeartbeatStatus.HUNG)
        self._listener.silent_for(watch.view.ref, state.silent if known else None)
        if state.started is not (watch.view.id in self._saved):
            self._to_save.set()
        self._report_status()

    def _polled(self, container: ContainerSummary, check: FileCheck) -> None:
        """Pass a check on. One that ``still_hung`` began may end after the container is no longer watched."""
        if container.id in self._watches:
            with contained.within(contained.Part.HEARTBEAT, container.ref):
                self._polls.polled(container, check)

    async def _save(self) -> None:
        while True:
            await self._to_save.wait()
            self._to_save.clear()
            self._saved = self._beating()
            await self._memory.save(self._saved)

    def _beating(self) -> frozenset[ContainerId]:
        """Return the containers with a heartbeat, including remembered ones that run and are not watched (yet)."""
        running = {view.id for view in self._events.containers()} - self._watches.keys()
        beating = {container for container, (watch, _) in self._watches.items() if watch.state.started}
        return frozenset(beating | (self._remembered & running))

    def _report_status(self) -> None:
        obstacle = next((watch.obstacle for watch, _ in self._watches.values() if watch.obstacle), "")
        if obstacle:
            what, _, hint = obstacle.partition("; ")
            self._report(ComponentStatus(ComponentState.DEGRADED, what, hint))
        elif self._watches:
            self._report(ComponentStatus(ComponentState.READY, "watching heartbeat files"))
        else:
            self._report(ComponentStatus(ComponentState.IDLE, "no running container requests a heartbeat"))


_NO_LONGER_HUNG = {
    HeartbeatStatus.HUNG: "",
    HeartbeatStatus.BEATING: "it beats again",
    HeartbeatStatus.NOT_STARTED: "its heartbeat file has been removed, or its program restarted",
    HeartbeatStatus.UNKNOWN: "its heartbeat file could not be read",
}
