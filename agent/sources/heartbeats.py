"""Watches the heartbeat files of all containers whose pods ask for it (``agent.restart.options.Heartbeat``)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog

from agent.cri.events import ContainerEvent
from agent.health import heartbeat
from agent.health.heartbeat import Heart, Pulse
from agent.model.hangs import Hang
from agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerView,
    PodRef,
    PodUid,
    PodView,
)
from agent.restart import members, options
from agent.sources.heartbeat_watch import Runtime, Watch
from agent.sources.pods import PodChange
from agent.sources.processes import ProcFs
from common import contained
from common.own_process import Calls
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


class Events(Protocol):
    """The node's containers (``agent.sources.containers.ContainerWatch``)."""

    def subscribe(self) -> AbstractAsyncContextManager["asyncio.Queue[ContainerEvent]"]: ...
    def containers(self) -> tuple[ContainerView, ...]: ...


class Pods(Protocol):
    """The node's pods (``agent.sources.pods.PodWatch``)."""

    def pods(self) -> Mapping[PodUid, PodView]: ...
    def subscribe(self, listener: Callable[[PodChange], None]) -> Callable[[], None]: ...


class Memory(Protocol):
    """Remembers over restarts of the agent which containers beat: one that hung meanwhile would never be seen to."""

    async def load(self) -> frozenset[ContainerId]: ...
    async def save(self, beating: frozenset[ContainerId]) -> None: ...


class Listener(Protocol):
    """Who is told."""

    def hung(self, hang: Hang) -> None:
        """A container has fallen silent. Told again every ten minutes for as long as it is."""

    def silent_for(self, container: ContainerRef, seconds: float | None) -> None:
        """For how long its file has not been touched; None while that is not known."""

    def refused(self, pod: PodRef, why: str) -> None:
        """A pod asks for a heartbeat in words that cannot be understood; ``why`` is empty when it no longer does."""


class HeartbeatSource:
    """Watches. A container counts as hung only after it has beaten once, and only while it could beat."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        events: Events,
        pods: Pods,
        processes: ProcFs,
        memory: Memory,
        listener: Listener,
        report: Callable[[PartStatus], None],
        calls: Calls,
    ) -> None:
        """``calls`` is where looks into containers are made; it is closed with this."""
        self._runtime = runtime
        self._events = events
        self._pods = pods
        self._processes = processes
        self._memory = memory
        self._listener = listener
        self._report = report
        self._calls = calls
        self._watches: dict[ContainerId, tuple[Watch, asyncio.Task[None]]] = {}
        self._remembered: frozenset[ContainerId] = frozenset()
        self._saved: frozenset[ContainerId] = frozenset()
        self._refused: dict[PodUid, str] = {}
        self._asked: frozenset[PodUid] = frozenset()
        self._wake = asyncio.Event()
        self._to_save = asyncio.Event()

    async def run(self) -> None:
        """Watch for ever."""
        self._remembered = self._saved = await self._memory.load()
        unsubscribe = self._pods.subscribe(lambda _: self._wake.set())
        try:
            async with self._events.subscribe() as changes, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._wake_on(changes), name="container changes for heartbeats")
                tasks.create_task(self._save(), name="who beats")
                while True:
                    self._wake.clear()
                    self._adjust(tasks)
                    await self._wake.wait()
        finally:
            unsubscribe()
            await self._calls.close()

    async def still_hung(self, container: ContainerId) -> str:
        """Look at a container that was found to hang once more; return why it does not count as hung any longer.

        Empty: it still hangs.
        """
        if container not in self._watches:
            return "it has ended, or its heartbeat is not asked for any longer"
        watch, _ = self._watches[container]
        return _WHY_NOT[(await watch.look()).pulse]

    async def _wake_on(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        """Look again when a pod's containers change that asks for a heartbeat; most do not."""
        while True:
            change = await changes.get()
            if change.pod.uid in self._asked or change.container_id in self._watches:
                self._wake.set()

    def _adjust(self, tasks: asyncio.TaskGroup) -> None:
        """Watch who is to be watched now, and nobody else."""
        wanted = {view.id: (view, wish) for view, wish in self._wanted()}
        for container, (watch, task) in list(self._watches.items()):
            if container not in wanted or wanted[container][1] != watch.wish:
                task.cancel()
                del self._watches[container]
                self._listener.silent_for(watch.view.ref, None)
                self._to_save.set()
        for container, (view, wish) in wanted.items():
            if container not in self._watches:
                with contained.within(contained.Part.HEARTBEAT, view.ref):
                    self._begin(view, wish, tasks)
        self._tell_status()

    def _begin(self, view: ContainerView, wish: options.Heartbeat, tasks: asyncio.TaskGroup) -> None:
        watch = Watch(
            view,
            wish,
            heart=heartbeat.REMEMBERED if view.id in self._remembered else Heart(),
            runtime=self._runtime,
            processes=self._processes,
            calls=self._calls,
            changed=self._changed,
            on_hang=self._listener.hung,
        )
        log.info("heartbeat.watched", container=str(view.ref), file=wish.file, timeout=wish.timeout)
        self._watches[view.id] = watch, tasks.create_task(watch.run(), name=f"heartbeat of {view.ref}")

    def _wanted(self) -> Iterator[tuple[ContainerView, options.Heartbeat]]:
        pods = self._pods.pods()
        self._refused = {uid: why for uid, why in self._refused.items() if uid in pods}
        wishes: dict[PodUid, options.Options] = {}
        for uid, pod in pods.items():
            with contained.within(contained.Part.HEARTBEAT, pod.ref):
                if (wish := self._wishes(pod)) is not None:
                    wishes[uid] = wish
        self._asked = frozenset(wishes)
        for view in self._events.containers():
            asked = wishes.get(view.ref.pod.uid)
            if asked is None or asked.heartbeat is None or view.state is not ContainerState.RUNNING:
                continue
            if view.ref.name in members.targets(pods[view.ref.pod.uid], named=asked.containers):
                yield view, asked.heartbeat

    def _wishes(self, pod: PodView) -> options.Options | None:
        """Return what a pod asks for; None when no heartbeat is among it, or it cannot be understood."""
        wishes, why = None, ""
        if {options.HEARTBEAT_FILE, options.HEARTBEAT_TIMEOUT} & pod.annotations.keys():
            try:
                wishes = options.parse(pod.annotations)
            except options.BadAnnotationError as error:
                why = str(error)
        if why != self._refused.get(pod.ref.uid, ""):
            self._refused[pod.ref.uid] = why
            self._listener.refused(pod.ref, why)
        return wishes

    def _changed(self, watch: Watch) -> None:
        heart = watch.heart
        known = heart.pulse in (Pulse.BEATING, Pulse.HUNG)
        self._listener.silent_for(watch.view.ref, heart.silent if known else None)
        if heart.started is not (watch.view.id in self._saved):
            self._to_save.set()
        self._tell_status()

    async def _save(self) -> None:
        while True:
            await self._to_save.wait()
            self._to_save.clear()
            self._saved = self._beating()
            await self._memory.save(self._saved)

    def _beating(self) -> frozenset[ContainerId]:
        """Return who beats; of those remembered that are not watched (yet) all that the runtime still shows."""
        running = {view.id for view in self._events.containers()} - self._watches.keys()
        beating = {container for container, (watch, _) in self._watches.items() if watch.heart.started}
        return frozenset(beating | (self._remembered & running))

    def _tell_status(self) -> None:
        obstacle = next((watch.obstacle for watch, _ in self._watches.values() if watch.obstacle), "")
        if obstacle:
            what, _, mend = obstacle.partition("; ")
            self._report(PartStatus(PartState.DEGRADED, what, mend))
        elif self._watches:
            self._report(PartStatus(PartState.READY, "watching heartbeat files"))
        else:
            self._report(PartStatus(PartState.IDLE, "no running container is asked for a heartbeat"))


_WHY_NOT = {
    Pulse.HUNG: "",
    Pulse.BEATING: "it beats again",
    Pulse.NOT_STARTED: "its heartbeat file has been taken away",
    Pulse.UNKNOWN: "whether it beats could not be told",
}
