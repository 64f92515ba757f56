"""Find the processes on devices, from the driver's list and /proc."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from kubemend.agent.restart import device_release

log = structlog.get_logger(__name__)


class Driver(Protocol):
    """The driver (``agent.sources.nvml.driver.Driver``)."""

    async def uses(
        self, uuids: Iterable[DeviceId], *, timeout: float
    ) -> Mapping[DeviceId, device_release.DeviceUse] | None:
        """Return the use of each device that answers; None if the driver does not answer in ``timeout`` seconds."""


@dataclass(frozen=True, slots=True)
class Host:
    """Driver and host together."""

    driver: Driver
    processes: ports.DeviceProcesses

    async def processes_on(
        self, devices: frozenset[DeviceId], *, timeout: float
    ) -> device_release.DeviceListing | None:
        """Return the processes on the devices; None if the driver did not answer in ``timeout`` seconds."""
        if not devices:
            return device_release.DeviceListing({}, {})
        uses = await self.driver.uses(devices, timeout=timeout)
        if uses is None:
            return None
        processes = {}
        for pid in {each.pid for use in uses.values() for each in use.processes}:
            if (facts := read_facts(self.processes, pid)) is not None:
                processes[pid] = device_release.Process(started=facts.started, container=facts.container)
        return device_release.DeviceListing(uses, processes)


def read_facts(processes: ports.ProcessEnds, pid: int) -> ProcessFacts | None:
    """Return the facts about a process, or None if it does not exist or cannot be read. The latter is logged.

    For callers that may treat both cases alike.
    """
    try:
        return processes.facts(pid)
    except OSError as error:
        log.warning("processes.unreadable", pid=pid, error=str(error))
        return None


def is_stuck(processes: ports.DeviceProcesses, pid: int, *, if_unknown: bool) -> bool:
    """Return whether no signal reaches a process; ``if_unknown`` where that is unknown."""
    try:
        return processes.is_stuck(pid)
    except OSError as error:
        log.warning("processes.unreadable", pid=pid, error=str(error))
        return if_unknown


class Listed(Protocol):
    """The runtime's containers (``agent.sources.containers.ContainerWatch``)."""

    def containers(self) -> tuple[ContainerSummary, ...]: ...


class DeviceFiles(Protocol):
    """Read the processes of containers (``agent.sources.processes.ProcFs``)."""

    def facts(self, pid: int) -> ProcessFacts | None: ...
    def container_pids(self, pid: int, *, of: ContainerId) -> frozenset[int]: ...
    def on_devices(self, pids: Collection[int]) -> frozenset[int]: ...


class DeviceUsers(Protocol):
    """Find the processes of containers that use devices (``OldProcesses``)."""

    async def on_devices(self, containers: Collection[ContainerId]) -> Mapping[int, device_release.Process]: ...


class OldProcesses:
    """Find which processes of containers that are about to be stopped have device files open.

    This is known from the host alone, where the driver is too busy with a fault to list a device's processes in time.
    """

    def __init__(self, *, runtime: ports.CachedStatuses, events: Listed, processes: DeviceFiles) -> None:
        self._runtime = runtime
        self._events = events
        self._processes = processes

    async def on_devices(self, containers: Collection[ContainerId]) -> Mapping[int, device_release.Process]:
        """Return these containers' processes with device files of GPUs open; those that cannot be read are logged."""
        found: dict[int, device_release.Process] = {}
        for view in [view for view in self._events.containers() if view.id in containers]:
            try:
                pid = (await self._runtime.cached_status(view)).pid
                if pid:
                    found |= await asyncio.to_thread(self._read, pid, view.id)
            except (CriError, OSError) as error:
                log.info("device_release.not_recorded", container_id=view.id, error=str(error))
        return found

    def _read(self, pid: int, container: ContainerId) -> dict[int, device_release.Process]:
        users = self._processes.on_devices(self._processes.container_pids(pid, of=container))
        facts = {each: self._processes.facts(each) for each in users}
        return {
            each: device_release.Process(started=seen.started, container=container)
            for each, seen in facts.items()
            if seen
        }


class NoDriver:
    """A driver that never answers."""

    async def uses(
        self,
        uuids: Iterable[DeviceId],  # noqa: ARG002
        *,
        timeout: float,  # noqa: ARG002
    ) -> Mapping[DeviceId, device_release.DeviceUse] | None:
        return None


class NoProcesses:
    """A host without processes."""

    def facts(self, pid: int) -> ProcessFacts | None:  # noqa: ARG002
        return None

    def is_stuck(self, pid: int) -> bool:  # noqa: ARG002
        return False

    def threads(self, pids: Iterable[int]) -> tuple[Thread, ...]:  # noqa: ARG002
        return ()

    async def ended(self, pid: int, *, started: float = 0.0) -> None:
        """Return at once: there are no processes."""
