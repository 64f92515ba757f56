"""Hold every container that starts in a pod while a round has the pod, including those that kubelet starts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.clients.cri.errors import CriError, DeadlineExceeded
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodRef, PodUid, PodView
from kubemend.agent.restart import members
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.common import aio, contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)

_RECHECK_SECONDS = 1.0
"""Seconds between checks of the running containers when no event comes."""
_POD_RECHECK_SECONDS = 60.0
_UNKILLABLE = 2
"""Kills that may time out before the container counts as unkillable (``agent.actuator.plan_runner``)."""


class PodHolder:
    """Follow one pod.

    - ``changed`` is set at each change.
    - ``kubelet_started`` has the containers that kubelet started.
    - ``settled`` has those about which the restart has decided.
    - ``on_deleted`` is called when the pod is being deleted or ended (an eviction, the node's shutdown), or is gone.
    """

    def __init__(
        self, pod: PodRef, *, dependencies: Dependencies, holding: HoldSet, on_deleted: Callable[[], None]
    ) -> None:
        self.changed = asyncio.Event()
        self.kubelet_started: set[ContainerId] = set()
        self.settled: set[ContainerId] = set()
        self._pod = pod
        self._dependencies = dependencies
        self._holding = holding
        self._on_deleted = on_deleted
        self._catching: set[asyncio.Task[None]] = set()

    @property
    def created(self) -> frozenset[ContainerId]:
        """Return the containers that kubelet has created and not started, without those in ``settled``.

        They are the runtime's latest: events of this pod may wait while an earlier one is processed.
        """
        return frozenset(
            view.id
            for view in self._dependencies.events.containers()
            if view.ref.pod.uid == self._pod.uid
            and (view.state, view.restart_id) == (ContainerState.CREATED, None)
            and self._is_held(view)
            and view.id not in self.settled
        )

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Follow the pod during the block. If the block is cancelled, held containers stay held."""
        async with self._dependencies.events.subscribe(self._pod.uid) as changes:
            following = asyncio.create_task(self._follow(changes), name=f"containers of {self._pod}")
            watching = asyncio.create_task(self._watch_pod(), name=f"deletion of {self._pod}")
            try:
                yield
            finally:
                for task in (following, watching, *self._catching):
                    task.cancel()
                await asyncio.gather(following, watching, *self._catching, return_exceptions=True)

    async def until_changed(self, *, timeout: float | None = _RECHECK_SECONDS) -> None:
        """Wait for the next change, at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.changed.wait()
        self.changed.clear()

    async def hold_running(self, over: asyncio.Event) -> None:
        """Hold the running containers, except those that the restart ends; stop when ``over`` is set."""
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while not over.is_set():
            try:
                views = await self._dependencies.runtime.list_containers(pod_uid=self._pod.uid)
            except CriError as error:
                log.warning("round.not_listed", pod=str(self._pod), error=str(error))
                await backoff.wait()
            else:
                taken = [view.id for view in views if _runs(view) and self._holding.must_hold(view.ref.name)]
                await asyncio.gather(*(self._holding.hold(container_id) for container_id in taken))
                return

    async def catch_up(self, ended: ContainerSummary) -> None:
        """Hold containers that kubelet created in place of ``ended`` before this object received events."""
        for view in self._dependencies.events.containers():
            if view.ref == ended.ref and view.generation > ended.generation and view.restart_id is None:
                if view.state is ContainerState.CREATED:
                    await self._holding.expect(view.id)
                elif _runs(view):
                    self._hold_soon(view)

    async def end(self, container_id: ContainerId) -> bool:
        """Stop a duplicate: an older running container of a name that an unfinished restart left.

        Return False if it cannot be killed.
        """
        backoff = aio.Backoff(first=0.02, limit=2.0)
        unkilled = 0
        while unkilled < _UNKILLABLE:
            try:
                await self._dependencies.runtime.stop_container(container_id, grace=0)
            except CriError as error:
                unkilled += isinstance(error, DeadlineExceeded)
                log.warning("round.duplicate_runs", pod=str(self._pod), container=container_id, error=str(error))
                await backoff.wait()
            else:
                return True
        return False

    async def until_ended(self, containers: Collection[ContainerId], *, over: asyncio.Event) -> None:
        """Wait until none of these containers runs, or ``over`` is set."""
        while not over.is_set():
            self.changed.clear()
            if not any(view.id in containers and _runs(view) for view in self._dependencies.events.containers()):
                return
            await self.until_changed()

    async def has_started(self, timeout: float | None) -> bool:
        """Wait until the newest container of each name runs, or the pod is gone; False after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._all_run() and self._is_there():
                    await self.until_changed()
        return self._all_run() or not self._is_there()

    def _all_run(self) -> bool:
        self.changed.clear()
        mine = (view for view in self._dependencies.events.containers() if view.ref.pod.uid == self._pod.uid)
        newest = members.newest(view for view in mine if view.id not in self._holding.excluded)
        return all(name in newest and _runs(newest[name]) for name in self._holding.names)

    def _is_there(self) -> bool:
        """Return whether something may still start in the pod."""
        pod = self._dependencies.pods.pods().get(self._pod.uid)
        return not pod.is_over if pod is not None else not self._dependencies.pods.synced

    async def _follow(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        while True:
            event = await changes.get()
            self.changed.set()
            with contained.within(Part.CONTAINER, event.container.ref):
                await self._process(event)

    async def _process(self, event: ContainerEvent) -> None:
        view = event.container
        if not self._is_held(view):
            return
        if event.kind is EventKind.CREATED and view.restart_id is None:
            await self._holding.expect(view.id)
        elif event.kind is EventKind.STARTED:
            self._hold_soon(view)

    def _is_held(self, view: ContainerSummary) -> bool:
        return self._holding.must_hold(view.ref.name) and view.id not in self._holding.excluded

    def _hold_soon(self, view: ContainerSummary) -> None:
        foreign = view.restart_id is None
        if foreign:
            self.kubelet_started.add(view.id)
        task = asyncio.create_task(self._hold(view, foreign=foreign), name=f"catch {view.ref}")
        self._catching.add(task)
        task.add_done_callback(self._catching.discard)

    async def _hold(self, view: ContainerSummary, *, foreign: bool) -> None:
        with contained.within(Part.CONTAINER, view.ref):
            await self._holding.hold(view.id, foreign=foreign)

    async def _watch_pod(self) -> None:
        pods, uid = self._dependencies.pods, self._pod.uid
        while True:
            ending = await pods.wait_for(uid, is_ending, timeout=_POD_RECHECK_SECONDS)
            if ending is not None or (pods.synced and uid not in pods.pods()):
                self._on_deleted()
                return


def is_ending(pod: PodView) -> bool:
    """Return whether the pod is being deleted or ended, or is over."""
    return pod.deleting or bool(pod.leaving) or pod.is_over


async def wait_terminated(uid: PodUid, *, events: ports.Events) -> None:
    """Wait until no container of the pod runs. A force-deleted pod leaves the API server before its containers end."""
    async with events.subscribe(uid) as changes:
        while any(view.ref.pod.uid == uid and _runs(view) for view in events.containers()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RECHECK_SECONDS):
                    await changes.get()


def _runs(view: ContainerSummary) -> bool:
    return view.state is ContainerState.RUNNING
