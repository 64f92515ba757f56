"""Fake the agent's dependencies, in memory: pods, devices, holders, events, conditions and processes."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.devices import DeviceId, DeviceInventory, Gpu, PciAddress
from kubemend.agent.model.processes import ProcessFacts, ProcessOrigin
from kubemend.agent.model.workloads import (
    Allocation,
    Allocations,
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodChange,
    PodChangeKind,
    PodRef,
    PodUid,
    PodView,
    SandboxId,
)
from kubemend.agent.restart import admission

GPU = Gpu(uuid=DeviceId("GPU-0"), pci=PciAddress.parse("0000:41:00.0"), index=0)


class Pods:
    """The API server's last state; ``put`` is a watch event. ``answers`` False: it hangs."""

    def __init__(self, *pods: PodView) -> None:
        self._pods = {pod.ref.uid: pod for pod in pods}
        self._changed = asyncio.Condition()
        self._listeners: list[Callable[[PodChange], None]] = []
        self.synced = True
        self.answers = True
        self.waited = asyncio.Event()
        """Set when a caller begins to wait for a state of a pod."""

    async def ask(self, pod: PodRef, *, timeout: float) -> PodView | None:
        return self._pods.get(pod.uid) if self.answers else None

    def pods(self) -> Mapping[PodUid, PodView]:
        return self._pods

    def by_name(self, namespace: str, name: str) -> PodView | None:
        return next(
            (pod for pod in self._pods.values() if (pod.ref.namespace, pod.ref.name) == (namespace, name)), None
        )

    async def until_synced(self) -> None:
        return

    async def put(self, pod: PodView) -> None:
        kind = PodChangeKind.CHANGED if pod.ref.uid in self._pods else PodChangeKind.APPEARED
        async with self._changed:
            self._pods[pod.ref.uid] = pod
            self._changed.notify_all()
        for listener in self._listeners:
            listener(PodChange(kind, pod))

    def drop(self, uid: PodUid) -> None:
        gone = self._pods.pop(uid)
        for listener in self._listeners:
            listener(PodChange(PodChangeKind.GONE, gone))

    async def gone(self, uid: PodUid) -> None:
        async with self._changed:
            pod = self._pods.pop(uid)
            self._changed.notify_all()
        for listener in self._listeners:
            listener(PodChange(PodChangeKind.GONE, pod))

    def subscribe(self, listener: Callable[[PodChange], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_for(self, uid: PodUid, predicate: Callable[[PodView], bool], *, timeout: float) -> PodView | None:
        was_there = uid in self._pods

        def found() -> bool:
            return predicate(self._pods[uid]) if uid in self._pods else was_there

        self.waited.set()
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(found)
        except TimeoutError:
            return None
        return self._pods.get(uid)


@dataclass
class Devices:
    """The driver. ``answers`` None: it cannot be queried."""

    inventory: DeviceInventory = field(default_factory=lambda: DeviceInventory(gpus=(GPU,), complete=True))
    answers: bool | None = True
    recovery: int | None = None

    async def answering(self, uuids: Iterable[DeviceId], *, timeout: float) -> frozenset[DeviceId] | None:
        return None if self.answers is None else frozenset(uuids if self.answers else ())

    async def recovery_action(self, uuid: DeviceId, *, timeout: float) -> int | None:
        return self.recovery


@dataclass
class Holders:
    """Kubelet's pod-resources."""

    allocations: Allocations = field(default_factory=Allocations)
    asked: bool = False

    def hold(self, *refs: ContainerRef, device: DeviceId = GPU.uuid) -> None:
        items = tuple(Allocation(ref.pod.namespace, ref.pod.name, ref.name, frozenset({device})) for ref in refs)
        self.allocations = Allocations(items=items, known=True)

    async def current(self, *, max_age: float) -> Allocations:
        self.asked = True
        return self.allocations


class Events:
    """Containers and their events."""

    def __init__(self) -> None:
        self.views: dict[ContainerId, ContainerSummary] = {}
        self.listed = asyncio.Event()
        """Whether the runtime has listed them; True unless a test sets otherwise."""
        self.listed.set()
        self.awaited = asyncio.Event()
        """A caller waits, or has waited, for the listing."""
        self._queues: list[asyncio.Queue[ContainerEvent]] = []

    def containers(self) -> tuple[ContainerSummary, ...]:
        return tuple(self.views.values()) if self.listed.is_set() else ()

    async def until_listed(self) -> None:
        self.awaited.set()
        await self.listed.wait()

    def run(
        self,
        ref: ContainerRef,
        *,
        name: str,
        created_at: int = 1,
        attempt: int = 0,
        restart_id: str | None = None,
        state: ContainerState = ContainerState.RUNNING,
    ) -> ContainerId:
        view = ContainerSummary(
            id=ContainerId(name),
            ref=ref,
            sandbox_id=SandboxId("s"),
            attempt=attempt,
            state=state,
            created_at=created_at,
            restart_id=restart_id,
        )
        self.views[view.id] = view
        self._tell(ContainerEvent(EventKind.STARTED, view, created_at=created_at))
        return view.id

    def stop(self, container_id: ContainerId) -> None:
        view = self.views.pop(container_id)
        self._tell(ContainerEvent(EventKind.STOPPED, view, created_at=2))

    def exit(self, container_id: ContainerId, *, code: int | None, reason: str = "Error", at: int = 2) -> None:
        """End a container that stays listed; ``code`` None: the stream does not report it. ``at`` is in nanoseconds."""
        view = replace(self.views[container_id], state=ContainerState.EXITED)
        self.views[container_id] = view
        self._tell(ContainerEvent(EventKind.STOPPED, view, created_at=at, exit_code=code, reason=reason))

    def remove(self, container_id: ContainerId) -> None:
        """Remove a container that has ended."""
        self._tell(ContainerEvent(EventKind.DELETED, self.views.pop(container_id), created_at=3))

    def _tell(self, event: ContainerEvent) -> None:
        for queue in self._queues:
            queue.put_nowait(event)

    @contextlib.asynccontextmanager
    async def subscribe(self, pod_uid: PodUid | None = None) -> AsyncIterator[asyncio.Queue[ContainerEvent]]:
        queue: asyncio.Queue[ContainerEvent] = asyncio.Queue()
        self._queues.append(queue)
        try:
            yield queue
        finally:
            self._queues.remove(queue)


@dataclass
class Heartbeats:
    """Remember whose heartbeats begin again."""

    begun_again: list[ContainerId] = field(default_factory=list)

    def restarted(self, container: ContainerId) -> None:
        self.begun_again.append(container)


@dataclass
class Conditions:
    """Keep the newest condition of each type, and wake its waiters."""

    said: dict[tuple[PodRef, str], Condition] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self, pod: PodRef, condition: Condition) -> None:
        self.said[pod, condition.type] = condition
        self._changed.set()

    async def wait_for(self, pod: PodRef, kind: str, reason: str) -> Condition:
        while True:
            condition = self.said.get((pod, kind))
            if condition is not None and condition.reason == reason:
                return condition
            self._changed.clear()
            await self._changed.wait()


@dataclass
class Owners:
    """The rules of owners after restarts."""

    answer: admission.OwnerFacts | None = field(default_factory=admission.OwnerFacts)

    async def facts(self, pod: PodView, *, at_once: bool = False) -> admission.OwnerFacts | None:
        return self.answer


@dataclass
class Processes:
    """/proc: processes by pid, and an event for each that ends. The ``unreadable`` ones show nothing."""

    known: dict[int, ProcessFacts] = field(default_factory=dict)
    ends: dict[int, asyncio.Event] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    roots: str | None = "overlay"
    put_in: set[int] = field(default_factory=set)
    """Those that entered their container from outside, as the first process and ``kubectl exec`` do."""

    def add(self, pid: int, *, container: ContainerId | None, started: float = 0.0) -> None:
        self.known[pid] = ProcessFacts(pid=pid, container=container, started=started)
        self.ends[pid] = asyncio.Event()

    def facts(self, pid: int) -> ProcessFacts | None:
        if pid in self.unreadable:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return self.known.get(pid)

    def is_alive(self, process: ProcessFacts) -> bool:
        return self.known.get(process.pid) == process and not self.ends[process.pid].is_set()

    def origin(self, pid: int) -> ProcessOrigin | None:
        return ProcessOrigin(pid, is_its_own=pid not in self.put_in) if pid in self.known else None

    def cpuset(self, pid: int) -> str | None:
        return None

    def root_kind(self, pid: int) -> str | None:
        return self.roots

    async def ended(self, pid: int, *, started: float = 0.0) -> None:
        if not started or self.known[pid].started == started:
            await self.ends[pid].wait()
