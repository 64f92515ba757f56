"""Periodic blocking kernel queries in threads of their own: one job at a time per thread, each with a deadline."""

import asyncio
import contextlib
import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kubemend.agent.model.nics import Nic, RdmaPort
from kubemend.agent.sources.network import netlink, sockets
from kubemend.agent.sources.network.netlink import RawLink
from kubemend.agent.sources.network.sockets import Listener
from kubemend.agent.sources.network.sysfs import PortState, Scan, Sysfs
from kubemend.common import contained
from kubemend.common.blocking import DedicatedThread

T = TypeVar("T")


class Task(enum.Enum):
    """The kinds of check. ``DETAILS`` are speeds and counters, which the device itself must answer."""

    SCAN = "scan"
    PORTS = "ports"
    DETAILS = "details"


@dataclass(frozen=True, slots=True)
class Reading:
    """The results of one check; None for a task that was not requested."""

    scan: Scan | None = None
    ports: Mapping[RdmaPort, PortState] | None = None
    speeds: Mapping[str, int] | None = None
    counters: Mapping[RdmaPort, Mapping[str, int]] | None = None


class Reader:
    """Does the blocking work of the source, in one thread for netlink and one for sysfs, independent of each other.

    All sockets belong to the network namespace ``netns``, by default the agent's own.
    """

    def __init__(self, sysfs: Sysfs, *, netns: Path | None, receive_buffer: int, deadline: float) -> None:
        self._sysfs = sysfs
        self._netns = netns
        self._receive_buffer = receive_buffer
        self._deadline = deadline
        self._asking = DedicatedThread("network-sysfs")
        self._linking = DedicatedThread("network-links")
        self._free = asyncio.Lock()  # both channels use the netlink thread
        self._entered = netns is None

    @property
    def at(self) -> Path:
        """The path that is being read, or was read last."""
        return self._sysfs.at

    def close(self) -> None:
        """Stop the threads as soon as their calls return."""
        self._asking.close()
        self._linking.close()

    async def listen_to_links(self) -> Listener:
        """Open a socket for link changes. Raises OSError and TimeoutError."""
        return await self._in_netlink(lambda: netlink.listen(receive_buffer=self._receive_buffer))

    async def listen_to_uevents(self) -> Listener:
        """Open a socket for uevents. Raises OSError and TimeoutError."""
        return await self._in_netlink(lambda: sockets.listen_uevents(receive_buffer=self._receive_buffer))

    async def links(self) -> tuple[netlink.Link, ...]:
        """List the links that belong to a device. Raises ListingError, OSError and TimeoutError.

        One that cannot be decoded is left out, so its state is unknown.
        """
        return await self._in_netlink(lambda: self._decoded(netlink.links()))

    def _decoded(self, listed: Iterable[RawLink]) -> tuple[netlink.Link, ...]:
        links = []
        for raw in filter(self.is_of_device, listed):
            with contained.within(contained.Part.DEVICE, f"link {raw.index}"):
                links.append(raw.decode())
        return tuple(links)

    async def read(self, tasks: frozenset[Task], nics: tuple[Nic, ...], *, up: frozenset[str] = frozenset()) -> Reading:
        """Run the tasks, on the given NICs unless they include a scan.

        ``up`` names the netdevs that are up: only their speed is read. Raises OSError and TimeoutError.
        """
        return await self._asking.call(lambda: self._read(tasks, nics, up=up), timeout=self._deadline)

    def is_of_device(self, raw: RawLink) -> bool:
        """Return whether a link belongs to a device, as virtual links do not. Never blocks."""
        return self._sysfs.has_device(raw.name)

    def _read(self, tasks: frozenset[Task], nics: tuple[Nic, ...], *, up: frozenset[str]) -> Reading:
        scan = self._sysfs.scan() if Task.SCAN in tasks else None
        nics = scan.nics if scan is not None else nics
        if not tasks & {Task.PORTS, Task.DETAILS}:
            return Reading(scan=scan)
        ports = self._sysfs.ports(nics)
        if Task.DETAILS not in tasks:
            return Reading(scan=scan, ports=ports)
        return Reading(
            scan=scan,
            ports=ports,
            speeds=self._sysfs.speeds(nics, up=up),
            counters=self._sysfs.counters(nics, up=ports),
        )

    async def _in_netlink(self, work: Callable[[], T]) -> T:
        async with self._free:
            return await self._linking.call(lambda: self._in_namespace(work), timeout=self._deadline)

    def _in_namespace(self, work: Callable[[], T]) -> T:
        if not self._entered and self._netns is not None:
            sockets.enter_network_namespace(self._netns)
            self._entered = True
        return work()


class ReadSchedule:
    """Each task is due once per period, in seconds, and whenever it is requested.

    Initially only the scan is scheduled.
    """

    def __init__(self, periods: Mapping[Task, float]) -> None:
        self._periods = dict(periods)
        self._next = {Task.SCAN: 0.0, Task.PORTS: math.inf, Task.DETAILS: math.inf}
        self._wanted = asyncio.Event()

    def want(self, *tasks: Task) -> None:
        """Make these tasks due now."""
        self._next.update(dict.fromkeys(tasks, 0.0))
        self._wanted.set()

    def rest(self, *tasks: Task) -> None:
        """Suspend these tasks until they are requested."""
        self._next.update(dict.fromkeys(tasks, math.inf))

    def delay(self, seconds: float) -> None:
        """Delay all tasks by so many seconds."""
        self._next = dict.fromkeys(Task, asyncio.get_running_loop().time() + seconds)

    async def next(self) -> frozenset[Task]:
        """Wait until a task is due, and return all that are."""
        while True:
            self._wanted.clear()
            now = asyncio.get_running_loop().time()
            due = frozenset(task for task, at in self._next.items() if at <= now)
            if due:
                self._next.update({task: now + self._periods[task] for task in due})
                return due
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(self._next.values())):
                    await self._wanted.wait()
