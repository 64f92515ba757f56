"""Query the container facts that a restart needs in advance, so that restarts are shorter.

In a round all members of a node are queried at once, while the gang is held; after an exit nothing of the container
runs. The facts queried here do not change while a container runs.
"""

import asyncio
from typing import Final

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import admission, clone
from kubemend.common import contained

log = structlog.get_logger(__name__)

SETTLED: Final = 1.0
"""Seconds to wait after a container's start before querying it, to leave its start undisturbed."""


class StatusPrefetcher:
    """Queries one container after another. Only the length of a restart depends on it."""

    def __init__(
        self,
        *,
        runtime: ports.StatusCache,
        events: ports.Events,
        pods: ports.Pods,
        opted_in_namespaces: frozenset[str] = frozenset(),
        own_pod_uid: str | None = None,
        settled: float = SETTLED,
    ) -> None:
        self._runtime = runtime
        self._events = events
        self._pods = pods
        self._namespaces = opted_in_namespaces
        self._own_pod_uid = own_pod_uid
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
            elif change.kind is EventKind.STOPPED:
                self._runtime.stopped(change.container_id)
            elif change.kind is EventKind.DELETED:
                self._known.discard(change.container_id)
                self._runtime.forget(change.container_id)

    async def _query(self, view: ContainerSummary) -> None:
        self._known.add(view.id)
        try:
            await self._runtime.cached_status(view)
            await self._runtime.sandbox_config(view.sandbox_id)
        except (CriError, clone.CloneRefusedError) as error:
            log.debug("status_prefetch.failed", container=str(view.ref), error=str(error))

    def _matters(self, view: ContainerSummary) -> bool:
        pod = self._pods.pods().get(view.ref.pod.uid)
        if pod is None:
            return False
        return pod.gang is not None or not admission.no_fault_reason(
            pod, view.ref.name, opted_in_namespaces=self._namespaces, own_pod_uid=self._own_pod_uid
        )
