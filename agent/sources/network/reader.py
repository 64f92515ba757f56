"""What asks the kernel, in threads of its own: one job at a time in each, each with a deadline."""

import asyncio
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agent.model.nics import Nic, RdmaPort
from agent.sources.network import netlink, sockets, uevents
from agent.sources.network.netlink import RawLink
from agent.sources.network.sockets import Listener
from agent.sources.network.sysfs import PortState, Scan, Sysfs
from common.own_thread import OwnThread

T = TypeVar("T")


class Task(enum.Enum):
    """What can be looked at. ``DETAILS`` are speeds and counters, for which the device itself is asked."""

    SCAN = "scan"
    PORTS = "ports"
    DETAILS = "details"


@dataclass(frozen=True, slots=True)
class Look:
    """What one turn has found: None for what was not asked for."""

    scan: Scan | None = None
    ports: Mapping[RdmaPort, PortState] | None = None
    speeds: Mapping[str, int] | None = None
    counters: Mapping[RdmaPort, Mapping[str, int]] | None = None


class Reader:
    """Does the blocking work of the source, in one thread for netlink and one for sysfs: neither waits for the other.

    All sockets are of the network namespace ``netns``, by default our own.
    """

    def __init__(self, sysfs: Sysfs, *, netns: Path | None, receive_buffer: int, deadline: float) -> None:
        self._sysfs = sysfs
        self._netns = netns
        self._receive_buffer = receive_buffer
        self._deadline = deadline
        self._asking = OwnThread("network-sysfs")
        self._linking = OwnThread("network-links")
        self._free = asyncio.Lock()  # both channels use the thread for netlink
        self._entered = netns is None

    @property
    def at(self) -> Path:
        """The path that is being read, or was read last."""
        return self._sysfs.at

    def close(self) -> None:
        """End the threads as soon as they come back."""
        self._asking.close()
        self._linking.close()

    async def listen_to_links(self) -> Listener:
        """Open a socket for changes of links. Raises OSError and TimeoutError."""
        return await self._in_netlink(lambda: netlink.listen(receive_buffer=self._receive_buffer))

    async def listen_to_uevents(self) -> Listener:
        """Open a socket for uevents. Raises OSError and TimeoutError."""
        return await self._in_netlink(lambda: uevents.listen(receive_buffer=self._receive_buffer))

    async def links(self) -> tuple[netlink.Link, ...]:
        """List the links that belong to a device. Raises ListingError, OSError and TimeoutError."""
        return await self._in_netlink(lambda: tuple(raw.decode() for raw in netlink.links() if self.is_of_device(raw)))

    async def look(self, tasks: frozenset[Task], nics: tuple[Nic, ...], *, up: frozenset[str] = frozenset()) -> Look:
        """Look at what is asked for, on these NICs where the tasks have no scan.

        ``up`` names the netdevs that are up: only they are asked for their speed. Raises OSError and TimeoutError.
        """
        return await self._asking.call(lambda: self._look(tasks, nics, up=up), timeout=self._deadline)

    def is_of_device(self, raw: RawLink) -> bool:
        """Whether a link belongs to a device, as virtual ones do not. Never hangs."""
        return self._sysfs.has_device(raw.name)

    def _look(self, tasks: frozenset[Task], nics: tuple[Nic, ...], *, up: frozenset[str]) -> Look:
        scan = self._sysfs.scan() if Task.SCAN in tasks else None
        nics = scan.nics if scan is not None else nics
        if not tasks & {Task.PORTS, Task.DETAILS}:
            return Look(scan=scan)
        ports = self._sysfs.ports(nics)
        if Task.DETAILS not in tasks:
            return Look(scan=scan, ports=ports)
        return Look(
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
