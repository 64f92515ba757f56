"""One pod while a round has it: what starts there is held at once, whoever has started it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection

import structlog

from agent.actuator.holding import Holding
from agent.cri.errors import CriError, DeadlineExceeded
from agent.cri.events import ContainerEvent, EventKind
from agent.engine import ports
from agent.model.workloads import ContainerId, ContainerState, ContainerView, PodRef, PodUid
from agent.restart import members
from common import aio, contained
from common.contained import Part

log = structlog.get_logger(__name__)

_LOOK_AGAIN = 1.0
"""Seconds after which what runs is looked at again although no event has come."""
_POD_LOOK_AGAIN = 60.0
_UNKILLABLE = 2
"""A kill that has taken for ever so many times will not come to its end (``agent.actuator.steps``)."""


class Catcher:
    """Follows one pod. ``changed`` is set at each change, and ``strangers`` are what somebody else has started there,
    ``created`` what he has yet to start.

    ``on_deleted`` is called when the pod is being deleted, or has gone.
    """

    def __init__(
        self, pod: PodRef, *, outside: ports.Outside, holding: Holding, on_deleted: Callable[[], None]
    ) -> None:
        self.changed = asyncio.Event()
        self.strangers: set[ContainerId] = set()
        self.created: set[ContainerId] = set()
        self._pod = pod
        self._outside = outside
        self._holding = holding
        self._on_deleted = on_deleted
        self._catching: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Follow the pod for the length of the block. What is held when that is cancelled stays so."""
        async with self._outside.events.subscribe(self._pod.uid) as changes:
            following = asyncio.create_task(self._follow(changes), name=f"containers of {self._pod}")
            watching = asyncio.create_task(self._watch_pod(), name=f"deletion of {self._pod}")
            try:
                yield
            finally:
                for task in (following, watching, *self._catching):
                    task.cancel()
                await asyncio.gather(following, watching, *self._catching, return_exceptions=True)

    async def until_changed(self, *, timeout: float | None = _LOOK_AGAIN) -> None:
        """Wait for the next change, for so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.changed.wait()
        self.changed.clear()

    async def hold_what_runs(self, over: asyncio.Event) -> None:
        """Hold what has been started already, but for what is to end; give up when it is ``over``."""
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while not over.is_set():
            try:
                views = await self._outside.runtime.list_containers(pod_uid=self._pod.uid)
            except CriError as error:
                log.warning("round.not_listed", pod=str(self._pod), error=str(error))
                await backoff.wait()
            else:
                taken = [view.id for view in views if _runs(view) and self._holding.takes(view.ref.name)]
                await asyncio.gather(*(self._holding.hold(container_id) for container_id in taken))
                return

    async def catch_up(self, ended: ContainerView) -> None:
        """Hold what somebody else has made in the place of a container, of which no event has told here."""
        for view in self._outside.events.containers():
            if view.ref == ended.ref and view.created_at > ended.created_at and view.restart_id is None:
                if view.state is ContainerState.CREATED:
                    await self._holding.expect(view.id)
                elif _runs(view):
                    self._catch(view)

    async def end(self, container_id: ContainerId) -> bool:
        """End a container that runs beside the newest one of its name: a restart before has not come to its end.

        False when it cannot be killed.
        """
        backoff = aio.Backoff(first=0.02, limit=2.0)
        unkilled = 0
        while unkilled < _UNKILLABLE:
            try:
                await self._outside.runtime.stop_container(container_id, grace=0)
            except CriError as error:
                unkilled += isinstance(error, DeadlineExceeded)
                log.warning("round.stray_lives", pod=str(self._pod), container=container_id, error=str(error))
                await backoff.wait()
            else:
                return True
        return False

    async def until_ended(self, containers: Collection[ContainerId], *, over: asyncio.Event) -> None:
        """Wait until none of these runs; give up when it is ``over``."""
        while not over.is_set():
            self.changed.clear()
            if not any(view.id in containers and _runs(view) for view in self._outside.events.containers()):
                return
            await self.until_changed()

    async def has_started(self, timeout: float | None) -> bool:
        """Wait until the newest container of each name runs, or the pod is gone; whether that came."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._all_run() and self._is_there():
                    await self.until_changed()
        return self._all_run() or not self._is_there()

    def _all_run(self) -> bool:
        self.changed.clear()
        mine = (view for view in self._outside.events.containers() if view.ref.pod.uid == self._pod.uid)
        newest = members.newest(view for view in mine if view.id not in self._holding.spared)
        return all(name in newest and _runs(newest[name]) for name in self._holding.names)

    def _is_there(self) -> bool:
        """Whether something may yet start in the pod."""
        pod = self._outside.pods.pods().get(self._pod.uid)
        return not pod.is_over if pod is not None else not self._outside.pods.synced

    async def _follow(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        while True:
            event = await changes.get()
            self.changed.set()
            with contained.within(Part.CONTAINER, event.container.ref):
                await self._take(event)

    async def _take(self, event: ContainerEvent) -> None:
        view = event.container
        if event.kind is not EventKind.CREATED:
            self.created.discard(view.id)
        if not self._holding.takes(view.ref.name) or view.id in self._holding.spared:
            return
        if event.kind is EventKind.CREATED and view.restart_id is None:
            self.created.add(view.id)
            await self._holding.expect(view.id)
        elif event.kind is EventKind.STARTED:
            self._catch(view)

    def _catch(self, view: ContainerView) -> None:
        foreign = view.restart_id is None
        if foreign:
            self.strangers.add(view.id)
        task = asyncio.create_task(self._hold(view, foreign=foreign), name=f"catch {view.ref}")
        self._catching.add(task)
        task.add_done_callback(self._catching.discard)

    async def _hold(self, view: ContainerView, *, foreign: bool) -> None:
        with contained.within(Part.CONTAINER, view.ref):
            await self._holding.hold(view.id, foreign=foreign)

    async def _watch_pod(self) -> None:
        pods, uid = self._outside.pods, self._pod.uid
        while True:
            deleting = await pods.wait_for(uid, lambda pod: pod.deleting, timeout=_POD_LOOK_AGAIN)
            if deleting is not None or (pods.synced and uid not in pods.pods()):
                self._on_deleted()
                return


async def until_dead(uid: PodUid, *, events: ports.Events) -> None:
    """Wait until nothing of a pod runs: one that was deleted by force is gone for the API server before it is dead."""
    async with events.subscribe(uid) as changes:
        while any(view.ref.pod.uid == uid and _runs(view) for view in events.containers()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await changes.get()


def _runs(view: ContainerView) -> bool:
    return view.state is ContainerState.RUNNING
