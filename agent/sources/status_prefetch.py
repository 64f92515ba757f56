"""Query the container facts that a restart needs in advance for members of gangs, so that rounds are shorter.

In a round all members of a node are queried at once, while the gang is held. The facts queried here do not change while
a container runs.
"""

import asyncio
from typing import Final

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.common import contained

log = structlog.get_logger(__name__)

SETTLED: Final = 1.0
"""Seconds to wait after a container's start before querying it, to leave its start undisturbed."""


class StatusPrefetcher:
    """Queries one container after another. Only the length of a round depends on it."""

    def __init__(
        self, *, runtime: ports.StatusCache, events: ports.Events, pods: ports.Pods, settled: float = SETTLED
    ) -> None:
        self._runtime = runtime
        self._events = events
        self._pods = pods
        self._settled = settled
        self._known: set[ContainerId] = set()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Query indefinitely."""
        async with self._events.subscribe() as changes, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(changes), name="status prefetch events")
            await self._pods.until_synced()
            await self._events.until_listed()
            while True:
                await self._started.wait()
                await asyncio.sleep(self._settled)
                self._started.clear()
                for view in self._events.containers():
                    with contained.within(contained.Part.CONTAINER, view.ref):
                        if view.state is ContainerState.RUNNING and view.id not in self._known and self._matters(view):
                            await self._query(view)

    async def _follow(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        self._started.set()  # containers may exist already
        while True:
            change = await changes.get()
            if change.kind is EventKind.STARTED:
                self._started.set()
            elif change.kind in (EventKind.STOPPED, EventKind.DELETED):
                self._known.discard(change.container_id)
                self._runtime.forget(change.container_id)

    async def _query(self, view: ContainerSummary) -> None:
        self._known.add(view.id)
        try:
            await self._runtime.info_of(view)
            await self._runtime.sandbox_config(view.sandbox_id)
        except CriError as error:
            log.debug("status_prefetch.failed", container=str(view.ref), error=str(error))

    def _matters(self, view: ContainerSummary) -> bool:
        pod = self._pods.pods().get(view.ref.pod.uid)
        return pod is not None and pod.gang is not None
