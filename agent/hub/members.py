"""Follow the members on this node: find those that fail by themselves."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.hub import exits
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerState,
    ContainerSummary,
    PodChange,
    PodChangeKind,
    PodUid,
    PodView,
)
from kubemend.agent.restart import exits as restart_exits
from kubemend.agent.restart import members
from kubemend.common import aio, contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)

_NANOSECOND = 1e-9
_EXIT = "exit:"
_ASK_AGAIN = 0.5
"""Seconds after which the runtime is first asked again how a container has ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A main container of a member has ended by itself with a nonzero code. ``at`` is Unix time.

    ``program``: only this program of the container's launcher has ended; 0: the container has.
    """

    pod: PodView
    container: ContainerSummary
    exit_code: int
    reason: str
    at: float
    program: int = 0

    @property
    def id(self) -> str:
        """Return the id of the fault that it is."""
        return f"program:{self.container.id}/{self.program}" if self.program else f"{_EXIT}{self.container.id}"


@dataclass(frozen=True, slots=True)
class MemberCallbacks:
    """Callbacks: ``failed`` for failures, ``gone`` for deleted pods."""

    failed: Callable[[Failure], None]
    gone: Callable[[PodUid], None]


class Members:
    """The members. ``run`` does the work; the others may be called once ``until_known`` has returned."""

    def __init__(
        self,
        *,
        pods: ports.Pods,
        containers: ports.Events,
        runtime: ports.ContainerEnds,
        rounds: ports.Rounds,
        handled: ports.StoredIds,
        callbacks: MemberCallbacks,
        now: Callable[[], float] = time.time,
        opted_in_namespaces: frozenset[str] = frozenset(),
    ) -> None:
        """``handled`` are the exits that this agent and the ones before have handled; ``now`` is Unix time."""
        self._pods = pods
        self._containers = containers
        self._runtime = runtime
        self._rounds = rounds
        self._stored = handled
        self._handled: set[ContainerId] = set()
        self._unsaved = asyncio.Event()
        self._callbacks = callbacks
        self._now = now
        self._namespaces = opted_in_namespaces
        self._exit_codes: dict[ContainerId, int | None] = {}  # None: not read, its pod is over
        self._leaving: set[PodUid] = set()
        self._appeared: asyncio.Queue[PodView] = asyncio.Queue()
        self._known = asyncio.Event()

    async def until_known(self) -> None:
        """Wait until pods and containers are listed, and the exit codes of ended containers are known."""
        await self._known.wait()

    def fault_settled(self, fault_id: str) -> None:
        """Record that a fault was answered."""
        if fault_id.startswith(_EXIT):
            self.settled(ContainerId(fault_id.removeprefix(_EXIT)))

    def settled(self, container: ContainerId) -> None:
        """Record that an exit was answered: an agent that starts later does not report it again."""
        self._handled.add(container)
        self._unsaved.set()

    async def run(self) -> None:
        """Follow the members."""
        self._handled |= await self._stored.load()
        unsubscribe = self._pods.subscribe(self._on_pod)
        try:
            async with self._containers.subscribe() as steps, asyncio.TaskGroup() as tasks:
                await self._pods.until_synced()
                await self._containers.until_listed()
                for pod in [*self._pods.pods().values()]:
                    await self._check_pod(pod)
                    await self._check_missed(pod)
                self._known.set()
                tasks.create_task(self._check_late_pods(), name="gang-late-pods")
                tasks.create_task(self._save_handled(), name="gang-exits-handled")
                while True:
                    step = await steps.get()
                    with contained.within(Part.MEMBER, step.container.ref):
                        self._process(step, tasks)
        finally:
            unsubscribe()

    async def _save_handled(self) -> None:
        """Save the exits that were handled, without those of containers that the runtime has removed."""
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            self._handled &= {view.id for view in self._containers.containers()}
            await self._stored.save(frozenset(self._handled))

    async def _check_late_pods(self) -> None:
        """Check pods that the API server lists late, because their containers may have ended already."""
        while True:
            await self._check_pod(await self._appeared.get())

    def _on_pod(self, change: PodChange) -> None:
        uid = change.pod.ref.uid
        if change.kind is PodChangeKind.GONE:
            if change.pod.gang is not None and self._is_alive(uid):
                self._leaving.add(uid)  # force-deleted: it is gone when its last container has ended
            else:
                self._callbacks.gone(uid)
        elif change.kind is PodChangeKind.APPEARED and self._known.is_set():
            self._appeared.put_nowait(change.pod)

    def _process(self, step: ContainerEvent, tasks: asyncio.TaskGroup) -> None:
        uid = step.pod.uid
        if step.kind is EventKind.DELETED:
            self._exit_codes.pop(step.container_id, None)
        pod = self._pods.pods().get(uid)
        if step.kind is EventKind.STOPPED and pod is not None and pod.gang is not None:
            at = step.created_at * _NANOSECOND
            if step.exit_code is None:
                tasks.create_task(self._ask(step.container, at=at), name=f"how {step.container.ref} has ended")
            else:
                self._ended(step.container, step.exit_code, reason=step.reason, at=at)
        if uid in self._leaving and not self._is_alive(uid):
            self._leaving.remove(uid)
            self._callbacks.gone(uid)

    async def _ask(self, view: ContainerSummary, *, at: float) -> None:
        """Get the exit of a container that ended at ``at`` (Unix time) from the runtime, once it answers."""
        backoff = aio.Backoff(first=_ASK_AGAIN)
        with contained.within(Part.MEMBER, view.ref):
            while (info := await self._status(view)) is None and self._has_ended(view):
                await backoff.wait()
            if info is not None:
                self._ended(view, info.exit_code, reason=info.reason, at=at)

    def _has_ended(self, view: ContainerSummary) -> bool:
        """Return whether a container is listed as ended. Without that there is no more to learn about it."""
        return any(each.id == view.id and each.state is ContainerState.EXITED for each in self._containers.containers())

    async def _status(self, view: ContainerSummary) -> ContainerStatus | None:
        """Return the status of an ended container; None if the runtime does not report that it has ended."""
        try:
            info = await self._runtime.container_status(view.id)
        except CriError as error:
            log.info("hub.exit_unknown", container=str(view.ref), container_id=view.id, error=str(error))
            return None
        return info if info.state is ContainerState.EXITED else None

    async def _check_pod(self, pod: PodView) -> None:
        """Get the exits of a member's newest containers that were not observed."""
        with contained.within(Part.MEMBER, pod.ref):
            await self._get_exits(pod)

    async def _check_missed(self, pod: PodView) -> None:
        """Report the exits after which kubelet restarted a member while no agent observed it."""
        with contained.within(Part.MEMBER, pod.ref):
            if pod.gang is None or pod.is_over:
                return
            for view in [*exits.replaced_by_kubelet(self._of(pod.ref.uid))]:
                if view.id not in self._exit_codes and view.id not in self._handled:
                    await self._report_missed(view)

    async def _report_missed(self, view: ContainerSummary) -> None:
        info = await self._status(view)
        if info is None:
            return
        ended_at = info.finished_at * _NANOSECOND
        how = restart_exits.Exit(view.ref.name, info.exit_code, info.reason)
        if exits.is_missed_failure(how, seconds_ago=self._now() - ended_at):
            self._ended(view, info.exit_code, reason=info.reason, at=ended_at)

    async def _get_exits(self, pod: PodView) -> None:
        if pod.gang is None:
            return
        for view in members.newest(self._of(pod.ref.uid)).values():
            if view.state is not ContainerState.EXITED or view.id in self._exit_codes:
                continue
            if pod.is_over:
                self._exit_codes[view.id] = None  # the failure of a pod that is over is not reported
            elif (info := await self._status(view)) is not None:
                self._ended(view, info.exit_code, reason=info.reason, at=info.finished_at * _NANOSECOND)

    def _ended(self, view: ContainerSummary, exit_code: int, *, reason: str, at: float) -> None:
        if view.id in self._exit_codes:
            return  # reported by an event and found by a listing
        uid = view.ref.pod.uid
        self._exit_codes[view.id] = exit_code
        pod = self._pods.pods().get(uid)
        if pod is None:
            return  # deleted in the meantime
        ended = exits.Exit(
            pod=pod,
            container=view,
            exit_code=exit_code,
            containers=tuple(self._of(uid)),
            exit_codes=self._exit_codes,
            ours=self._is_ours(view),
        )
        no_fault = exits.no_fault_reason(ended, opted_in_namespaces=self._namespaces)
        write = log.info if no_fault is None else log.debug
        write(
            "hub.member_exit",
            container=str(view.ref),
            container_id=view.id,
            exit_code=exit_code,
            no_fault=no_fault.value if no_fault is not None else None,
        )
        if no_fault is None:
            self._callbacks.failed(Failure(pod=pod, container=view, exit_code=exit_code, reason=reason, at=at))

    def _is_ours(self, view: ContainerSummary) -> bool:
        return (
            self._rounds.busy(view.ref.pod.uid) or self._rounds.expects_end(view.id) or self._runtime.has_ended(view.id)
        )

    def _of(self, uid: PodUid) -> Iterator[ContainerSummary]:
        return (view for view in self._containers.containers() if view.ref.pod.uid == uid)

    def _is_alive(self, uid: PodUid) -> bool:
        return any(view.state in exits.ALIVE for view in self._of(uid))
