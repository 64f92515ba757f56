"""Record which processes of containers that are about to be stopped have device files open.

This is known from the host alone, where the driver is too busy with a fault to list a device's processes in time.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from kubemend.agent.restart.device_release import Process

log = structlog.get_logger(__name__)


class Listed(Protocol):
    """The runtime's containers (``agent.sources.containers.ContainerWatch``)."""

    def containers(self) -> tuple[ContainerSummary, ...]: ...


class DeviceFiles(Protocol):
    """Read the processes of containers (``agent.sources.processes.ProcFs``)."""

    def facts(self, pid: int) -> ProcessFacts | None: ...
    def beside(self, pid: int) -> frozenset[int]: ...
    def on_devices(self, pids: Collection[int]) -> frozenset[int]: ...


class DeviceUsers(Protocol):
    """Find the processes of containers that use devices (``OldProcesses``)."""

    async def on_devices(self, containers: Collection[ContainerId]) -> Mapping[int, Process]: ...


class OldProcesses:
    """Find them in the host's /proc."""

    def __init__(self, *, runtime: ports.CachedStatuses, events: Listed, processes: DeviceFiles) -> None:
        self._runtime = runtime
        self._events = events
        self._processes = processes

    async def on_devices(self, containers: Collection[ContainerId]) -> Mapping[int, Process]:
        """Return these containers' processes with device files of GPUs open; those that cannot be read are logged."""
        found: dict[int, Process] = {}
        for view in [view for view in self._events.containers() if view.id in containers]:
            try:
                info = await self._runtime.info_of(view)
                if info.pid:
                    found |= await asyncio.to_thread(self._read, info.pid, view.id)
            except (CriError, OSError) as error:
                log.info("device_release.not_recorded", container_id=view.id, error=str(error))
        return found

    def _read(self, pid: int, container: ContainerId) -> dict[int, Process]:
        users = self._processes.on_devices(self._processes.beside(pid))
        facts = {each: self._processes.facts(each) for each in users}
        return {each: Process(started=seen.started, container=container) for each, seen in facts.items() if seen}
