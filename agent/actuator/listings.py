"""List the containers that a restart is about, and wait until they change."""

import asyncio
from collections.abc import Iterable

from kubemend.agent import ports
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerSummary
from kubemend.agent.restart import steps

RELIST_SECONDS = 1.0
"""Seconds after which the runtime is listed again without an event."""


class TargetListing:
    """All containers of one name."""

    def __init__(self, runtime: ports.RestartCalls, target: ContainerRef) -> None:
        self._runtime = runtime
        self._target = target

    async def containers(self) -> tuple[ContainerSummary, ...]:
        return await self._runtime.list_containers(pod_uid=self._target.pod.uid, name=self._target.name)

    def is_first(self, seen: Iterable[ContainerSummary]) -> bool:  # noqa: ARG002 - there is one start
        return True

    def current(self, seen: Iterable[ContainerSummary]) -> dict[str, ContainerId]:
        """Return the newest container."""
        newest = sorted(seen, key=lambda view: view.generation)
        return {view.ref.name: view.id for view in newest}

    def end_detail(self, end: steps.Step) -> str:
        has_completed = end.reason is steps.StepReason.COMPLETED
        return "the program ended with exit code 0 before it was stopped" if has_completed else ""


async def next_change(changes: "asyncio.Queue[ContainerEvent]", *, timeout: float | None = None) -> None:
    """Wait for the pod's containers to change; return after ``timeout`` (``RELIST_SECONDS``) in any case."""
    try:
        async with asyncio.timeout(RELIST_SECONDS if timeout is None else timeout):
            await changes.get()
    except TimeoutError:
        return
    while not changes.empty():
        changes.get_nowait()  # one listing answers them all
