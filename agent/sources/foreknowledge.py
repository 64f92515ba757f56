"""What a restart must know of a container is asked beforehand for members of gangs: a round then waits for less.

In a round all members of a node are asked about at once, while the gang stands still. What is asked here does not
change as long as a container runs.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import structlog

from agent.cri.answers import ContainerInfo
from agent.cri.errors import CriError
from agent.cri.events import ContainerEvent, EventKind
from agent.model.workloads import ContainerId, ContainerState, ContainerView, PodUid, PodView, SandboxId
from common import contained, gangs

log = structlog.get_logger(__name__)

SETTLED: Final = 1.0
"""Seconds for which a container that has just been started is left in peace: it has better to do."""


class Runtime(Protocol):
    """The calls of ``agent.cri.client.CriClient`` that keep their answers; each raises CriError."""

    async def info_of(self, view: ContainerView) -> ContainerInfo: ...
    async def sandbox_config(self, sandbox_id: SandboxId) -> Mapping[str, object] | None: ...
    def forget(self, container_id: ContainerId) -> None: ...


class Events(Protocol):
    """The node's containers (``agent.sources.containers.ContainerWatch``)."""

    async def until_listed(self) -> None: ...
    def containers(self) -> tuple[ContainerView, ...]: ...
    def subscribe(self) -> AbstractAsyncContextManager["asyncio.Queue[ContainerEvent]"]: ...


class Pods(Protocol):
    """The node's pods (``agent.sources.pods.PodWatch``)."""

    async def until_synced(self) -> None: ...
    def pods(self) -> Mapping[PodUid, PodView]: ...


class Foreknowledge:
    """Asks, one container after another. Nothing depends on it but how long a round takes."""

    def __init__(self, *, runtime: Runtime, events: Events, pods: Pods, settled: float = SETTLED) -> None:
        self._runtime = runtime
        self._events = events
        self._pods = pods
        self._settled = settled
        self._asked: set[ContainerId] = set()
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Ask for ever."""
        async with self._events.subscribe() as changes, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(changes), name="containers to be known")
            await self._pods.until_synced()
            await self._events.until_listed()
            while True:
                await self._started.wait()
                await asyncio.sleep(self._settled)
                self._started.clear()
                for view in self._events.containers():
                    with contained.within(contained.Part.CONTAINER, view.ref):
                        if view.state is ContainerState.RUNNING and view.id not in self._asked and self._matters(view):
                            await self._ask(view)

    async def _follow(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        self._started.set()  # there may be some already
        while True:
            change = await changes.get()
            if change.kind is EventKind.STARTED:
                self._started.set()
            elif change.kind in (EventKind.STOPPED, EventKind.DELETED):
                self._asked.discard(change.container_id)
                self._runtime.forget(change.container_id)

    async def _ask(self, view: ContainerView) -> None:
        self._asked.add(view.id)
        try:
            await self._runtime.info_of(view)
            await self._runtime.sandbox_config(view.sandbox_id)
        except CriError as error:
            log.debug("foreknowledge.not_told", container=str(view.ref), error=str(error))

    def _matters(self, view: ContainerView) -> bool:
        pod = self._pods.pods().get(view.ref.pod.uid)
        return pod is not None and gangs.key(pod.ref.namespace, pod.labels) is not None
