"""Who is on the devices: what the driver lists and what /proc says of it, put together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from agent.model.devices import GpuUuid
from agent.model.hangs import Thread
from agent.model.workloads import ContainerId
from agent.restart import gates

log = structlog.get_logger(__name__)


class Driver(Protocol):
    """The driver (``agent.sources.nvml.driver.Driver``)."""

    async def uses(self, uuids: Iterable[GpuUuid], *, timeout: float) -> Mapping[GpuUuid, gates.DeviceUse] | None:
        """Return who is on those of the devices that answer; None when the driver did not in ``timeout`` seconds."""


class ProcessFacts(Protocol):
    """What /proc says about a process (``agent.sources.processes.ProcessFacts``)."""

    @property
    def container(self) -> ContainerId | None: ...
    @property
    def started(self) -> float: ...


class Processes(Protocol):
    """The host's processes (``agent.sources.processes.ProcFs``). Looks raise OSError when nothing can be told."""

    def look(self, pid: int) -> ProcessFacts | None: ...
    def is_stuck(self, pid: int) -> bool: ...
    def threads(self, pids: Iterable[int]) -> tuple[Thread, ...]: ...
    async def ended(self, pid: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Host:
    """Driver and host together."""

    driver: Driver
    processes: Processes

    async def look(self, devices: frozenset[GpuUuid], *, timeout: float) -> gates.Seen | None:
        """Return who is on the devices; None when the driver did not answer in ``timeout`` seconds."""
        if not devices:
            return gates.Seen({}, {})
        uses = await self.driver.uses(devices, timeout=timeout)
        if uses is None:
            return None
        processes = {}
        for pid in {each.pid for use in uses.values() for each in use.processes}:
            if (facts := look(self.processes, pid)) is not None:
                processes[pid] = gates.Process(started=facts.started, container=facts.container)
        return gates.Seen(uses, processes)


def look(processes: Processes, pid: int) -> ProcessFacts | None:
    """Return what is known of a process: nothing where there is none, and, with a word in the log, where it cannot be
    told. For those who may take the one for the other.
    """
    try:
        return processes.look(pid)
    except OSError as error:
        log.warning("processes.not_read", pid=pid, error=str(error))
        return None


def is_stuck(processes: Processes, pid: int, *, unless_told: bool) -> bool:
    """Whether no signal reaches a process; ``unless_told`` where that cannot be told."""
    try:
        return processes.is_stuck(pid)
    except OSError as error:
        log.warning("processes.not_read", pid=pid, error=str(error))
        return unless_told


class NoDriver:
    """Never answers."""

    async def uses(
        self,
        uuids: Iterable[GpuUuid],  # noqa: ARG002
        *,
        timeout: float,  # noqa: ARG002
    ) -> Mapping[GpuUuid, gates.DeviceUse] | None:
        return None


class NoProcesses:
    """A host on which nothing runs."""

    def look(self, pid: int) -> ProcessFacts | None:  # noqa: ARG002
        return None

    def is_stuck(self, pid: int) -> bool:  # noqa: ARG002
        return False

    def threads(self, pids: Iterable[int]) -> tuple[Thread, ...]:  # noqa: ARG002
        return ()

    async def ended(self, pid: int) -> None:
        """Nothing runs."""
