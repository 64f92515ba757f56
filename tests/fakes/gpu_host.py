"""Fake processes on GPUs, in memory: the driver's lists and /proc, as a test sets them."""

import asyncio
import errno
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart.device_release import DeviceUse, Process, ProcessUse


@dataclass
class GpuHost:
    """Fake driver and /proc. ``answers`` False: the driver does not answer (``hangs``: not even in time).

    With ``busy`` a query is answered once that is set. ``files`` are the processes with device files open, as
    ``agent.actuator.device_processes`` reads them. Of the ``unreadable`` processes /proc shows nothing; ``used`` is the
    processes' CPU time. ``asked`` is set with every query; ``memory`` is the memory in use in addition to the listed
    processes.
    """

    answers: bool = True
    hangs: bool = False
    busy: asyncio.Event | None = None
    files: set[int] = field(default_factory=set)
    listed: dict[DeviceId, dict[int, int | None]] = field(default_factory=dict)
    memory: dict[DeviceId, int] = field(default_factory=dict)
    known: dict[int, ProcessFacts] = field(default_factory=dict)
    in_d_state: set[int] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)
    used: dict[int, int] = field(default_factory=dict)
    questions: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    _ends: dict[int, asyncio.Event] = field(default_factory=dict)

    def put(
        self, device: DeviceId, pid: int, *, container: str | None, used: int | None = 1 << 30, started: float = 1.0
    ) -> None:
        """Let a process run on a device."""
        self.listed.setdefault(device, {})[pid] = used
        self.known[pid] = ProcessFacts(
            pid=pid, container=ContainerId(container) if container is not None else None, started=started
        )
        self._ends.setdefault(pid, asyncio.Event())

    def die(self, pid: int) -> None:
        """Let a process end; the driver lists it until ``leave``."""
        self.known.pop(pid, None)
        self._ends.setdefault(pid, asyncio.Event()).set()

    def leave(self, pid: int) -> None:
        """Remove a process from the driver's list."""
        for users in self.listed.values():
            users.pop(pid, None)

    def end(self, pid: int) -> None:
        """Let a process end and leave."""
        self.leave(pid)
        self.die(pid)

    async def questions_reach(self, number: int) -> None:
        """Wait until the driver has been queried that often."""
        while self.questions < number:
            self.asked.clear()
            await self.asked.wait()

    async def uses(self, uuids: Iterable[DeviceId], *, timeout: float) -> Mapping[DeviceId, DeviceUse] | None:
        self.questions += 1
        self.asked.set()
        if self.hangs:
            await asyncio.sleep(timeout)
        if self.busy is not None:
            try:
                await asyncio.wait_for(self.busy.wait(), timeout)
            except TimeoutError:
                return None
        if self.hangs or not self.answers:
            return None
        return {uuid: self._use(uuid) for uuid in uuids if uuid in self.listed}

    async def on_devices(self, containers: Collection[ContainerId]) -> Mapping[int, Process]:
        users = [self.known[pid] for pid in sorted(self.files & self.known.keys())]
        return {each.pid: Process(each.started, each.container) for each in users if each.container in containers}

    def _use(self, uuid: DeviceId) -> DeviceUse:
        users = self.listed[uuid]
        used = self.memory.get(uuid, 0) + sum(size or 0 for size in users.values())
        return DeviceUse(tuple(ProcessUse(pid, size) for pid, size in users.items()), memory_used=used)

    def facts(self, pid: int) -> ProcessFacts | None:
        self._unless_unreadable(pid)
        return self.known.get(pid)

    def is_stuck(self, pid: int) -> bool:
        self._unless_unreadable(pid)
        return pid in self.in_d_state

    def threads(self, pids: Iterable[int]) -> tuple[Thread, ...]:
        alive = [pid for pid in sorted(pids) if pid in self.known]
        for pid in alive:
            self._unless_unreadable(pid)
        return tuple(
            Thread(pid, pid, "python", "D" if pid in self.in_d_state else "S", used=self.used.get(pid, 0))
            for pid in alive
        )

    async def ended(self, pid: int, *, started: float = 0.0) -> None:
        if pid in self._ends:
            await self._ends[pid].wait()

    def _unless_unreadable(self, pid: int) -> None:
        if pid in self.unreadable:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
