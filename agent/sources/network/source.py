"""The NICs of the node as a source of findings; the package's docstring describes the division of work.

A lost carrier is reported as soon as netlink reports it. State without events (RDMA ports, their counters, speeds) is
read periodically (``Periods``). If a read fails or hangs, its values count as unknown.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import structlog

from kubemend.agent.health.nic import rules
from kubemend.agent.health.nic.links import LinkLimits
from kubemend.agent.health.nic.nic_inventory_state import NicMemory
from kubemend.agent.health.nic.rules import NicReading
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.model.nics import Nic, NicInventory, PciPlace
from kubemend.agent.sources.network import component_status, netlink, sockets
from kubemend.agent.sources.network.channel import Channel, ChannelName
from kubemend.agent.sources.network.finding_emitter import FindingEmitter
from kubemend.agent.sources.network.netlink import Link, ListingError
from kubemend.agent.sources.network.reader import Reader, ReadSchedule, Task
from kubemend.agent.sources.network.sockets import Listener
from kubemend.agent.sources.network.sysfs import Sysfs
from kubemend.agent.sources.network.view import View
from kubemend.common import aio, contained
from kubemend.common.components import ComponentStatus

log = structlog.get_logger(__name__)

_SUBSYSTEMS = ("pci", "infiniband")
_ACTIONS = ("add", "remove", "bind", "unbind", "move")
_LATE = 1.0
"""Seconds. If a state has been due to change for longer, the agent has not run, and has not seen the NICs."""

_NEEDED = frozenset({component_status.SYSFS, *(channel.value for channel in ChannelName)})


@dataclass(frozen=True, slots=True)
class Periods:
    """All in seconds.

    ``ports``: between checks of the RDMA ports, a few short queries to each device. ``details``: between readings of
    speeds and counters. ``scan``: between listings of the bus; uevents cause earlier ones. ``deadline``: after which a
    check counts as hanging. ``retry``: between a failed check and the next attempt.
    """

    ports: float = 5.0
    details: float = 30.0
    scan: float = 60.0
    deadline: float = 5.0
    retry: float = 5.0


class Meter(Protocol):
    """Monotonic counters of the source."""

    def overflowed(self, channel: str) -> None:
        """The kernel dropped messages of ``links`` or ``uevents``, because they were not read fast enough."""


class NetworkSource:
    """Carrier, RDMA ports, their errors and the presence of this node's NICs as findings.

    A node without NICs costs a scan of the bus once a minute; links are watched when a NIC appears.
    """

    def __init__(
        self,
        *,
        emit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        report: Callable[[ComponentStatus], None],
        meter: Meter,
        known_before: NicMemory,
        remember: Callable[[NicMemory], None],
        sysfs: Path = Path("/sys"),
        netns: Path | None = None,
        ignored: frozenset[str] = frozenset(),
        unasked: frozenset[str] = frozenset(),
        limits: LinkLimits | None = None,
        periods: Periods | None = None,
        receive_buffer: int = 1 << 20,
        make_reader: Callable[..., Reader] = Reader,
    ) -> None:
        """Create the source.

        ``known_before`` is what a previous agent passed to ``remember`` on this boot (``nic_inventory_state``).
        ``remember`` receives the new memory whenever it changes and must not block. ``netns`` is the network namespace
        whose links are watched, by default the agent's own, which then must be the host's. ``ignored`` and ``unasked``
        hold PCI addresses and names of netdevs and RDMA devices: ``ignored`` NICs do not matter, ``unasked`` NICs must
        not be queried for ports, speed and counters. ``receive_buffer`` is in bytes, for each of the two netlink
        sockets. ``make_reader`` creates the reader that queries the kernel.
        """
        self._findings = FindingEmitter(emit=emit, classify=classify)
        self._meter = meter
        self._remember = remember
        self._limits = limits if limits is not None else LinkLimits()
        self._periods = periods if periods is not None else Periods()
        self._memory = _without(known_before, ignored)
        self._state = rules.begun(self._memory)
        self._view = View(known=self._memory.nics, ignored=ignored)
        self._sysfs = Sysfs(sysfs, unasked=unasked)
        self._reader = make_reader(
            self._sysfs, netns=netns, receive_buffer=receive_buffer, deadline=self._periods.deadline
        )
        self._statuses = component_status.Statuses(report=report, needed=_NEEDED)
        self._schedule = ReadSchedule(
            {
                Task.SCAN: self._periods.scan,
                Task.PORTS: self._periods.ports,
                Task.DETAILS: self._periods.details,
            }
        )
        self._scanned: tuple[Nic, ...] = ()
        self._needed = asyncio.Event()  # set when there are NICs, so their links must be followed
        self._judged = asyncio.Event()
        self._unwatched = 0.0  # seconds in which the agent has not run, and which count for no rule
        self._deferred = False
        self._folded_at = 0.0

    @property
    def inventory(self) -> NicInventory:
        """Every NIC seen since the agent started, including lost ones; complete only while sysfs and netlink work."""
        return self._view.inventory

    def place(self, pci: PciAddress) -> PciPlace:
        """Return the position of any PCI function, such as a GPU (``agent.health.nic.pairing``). Only reads links."""
        return self._sysfs.place(pci)

    def forget(self, device: str) -> None:
        """Forget a device whose faults an operator has cleared: a lost NIC need not come back.

        A NIC that is present starts from a clean state; a link of it that is down counts as never cabled.
        """
        try:
            pci = PciAddress.parse(device)
        except ValueError:
            return  # a GPU, by its UUID
        self._view.forget(pci)
        self._state = rules.without(self._state, pci)
        self._fold(())
        self._schedule.want(Task.SCAN)

    async def run(self) -> None:
        """Follow the NICs indefinitely. Missing or failing components are reported, and resumed when possible."""
        uevents_channel = self._channel(
            ChannelName.UEVENTS, connect=self._reader.listen_to_uevents, begin=self._rescan, take=self._take_uevent
        )
        links_channel = self._channel(
            ChannelName.LINKS, connect=self._listen_to_links, begin=self._list_links, take=self._take_links
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                aio.spawn_eternal(tasks, uevents_channel.run(), name="network-uevents")
                aio.spawn_eternal(tasks, links_channel.run(), name="network-links")
                aio.spawn_eternal(tasks, self._check_periodically(), name="network-sysfs")
                aio.spawn_eternal(tasks, self._apply_timers(), name="network-time")
        finally:
            self._reader.close()

    def _channel(
        self,
        name: ChannelName,
        *,
        connect: Callable[[], Awaitable[Listener]],
        begin: Callable[[], Awaitable[None]],
        take: Callable[[bytes], None],
    ) -> Channel:
        return Channel(
            name,
            connect=connect,
            begin=begin,
            take=take,
            deaf=lambda error: self._channel_failed(name, error),
            overflowed=lambda: self._meter.overflowed(name.value),
        )

    def _channel_failed(self, name: ChannelName, error: OSError | ListingError) -> None:
        self._statuses.netlink_away(name.value, error)
        if name is ChannelName.LINKS:
            self._view.lose_links()
            self._fold(self._view.readings())

    async def _rescan(self) -> None:
        """Scan for devices that came or went while the socket was closed."""
        self._schedule.want(Task.SCAN)
        self._set_working(ChannelName.UEVENTS.value)

    def _take_uevent(self, message: bytes) -> None:
        event = sockets.parse_uevent(message)
        if event is not None and event.subsystem in _SUBSYSTEMS and event.action in _ACTIONS:
            log.debug("network.uevent", action=event.action, path=event.path)
            self._schedule.want(Task.SCAN, Task.PORTS)

    async def _listen_to_links(self) -> Listener:
        await self._needed.wait()
        return await self._reader.listen_to_links()

    async def _list_links(self) -> None:
        self._view.take_links(await self._reader.links())
        self._fold(self._view.readings())
        self._schedule.want(Task.DETAILS)  # only links that are known to be up are queried for their speed
        self._set_working(ChannelName.LINKS.value)

    def _take_links(self, message: bytes) -> None:
        for raw in netlink.raw_links(message):
            with contained.within(contained.Part.DEVICE, f"link {raw.index}"):
                if self._view.has_link(raw.index) or self._reader.is_of_device(raw):
                    self._take_link(raw.decode())  # virtual links, numerous on a node full of pods, are not decoded

    def _take_link(self, link: Link) -> None:
        if self._view.take_link(link):
            self._schedule.want(Task.SCAN)
        if owners := self._view.owners(link.name):
            self._fold(self._view.readings(owners))
            self._schedule.want(Task.PORTS, *([Task.DETAILS] if link.up else []))

    async def _check_periodically(self) -> None:
        while True:
            await self._read_sysfs(await self._schedule.next())

    async def _read_sysfs(self, tasks: frozenset[Task]) -> None:
        try:
            reading = await self._reader.read(tasks, self._view.nics, up=self._view.links_up())
        except OSError as error:
            self._view.forget_sysfs()
            self._schedule.delay(self._periods.retry)
            self._statuses.sysfs_away(self._reader.at, error)
        else:
            self._view.update(reading, at=time.monotonic())
            self._plan()
            self._set_working(component_status.SYSFS)
        self._fold(self._view.readings())

    def _plan(self) -> None:
        """Schedule further tasks according to the results."""
        if self._view.empty:
            self._schedule.rest(Task.PORTS, Task.DETAILS)
            return
        self._needed.set()
        if self._view.nics != self._scanned:
            self._scanned = self._view.nics
            self._schedule.want(Task.PORTS, Task.DETAILS)

    def _set_working(self, what: str) -> None:
        self._statuses.well(what, idle=self._view.empty)

    async def _apply_timers(self) -> None:
        """Apply the rules when a state is due to change without a new reading."""
        while True:
            self._judged.clear()
            try:
                due = rules.due(self._state)
                async with asyncio.timeout_at(due + self._unwatched if due is not None else None):
                    await self._judged.wait()
            except TimeoutError:
                self._fold(())

    def _fold(self, readings: Iterable[NicReading]) -> None:
        now = self._folded_at = self._now()
        self._state, changes = rules.observe(self._state, readings, now=now, limits=self._limits)
        self._judged.set()
        memory = rules.known(self._state, boot_id=self._memory.boot_id)
        if memory != self._memory:
            self._memory = memory
            self._remember(memory)
        for change in changes:
            with contained.within(contained.Part.DEVICE, type(change).__name__):
                self._findings.emit(change)

    def _now(self) -> float:
        """Return the time of the rules. A state that is overdue gets the time of one more reading, but only once."""
        now, due = time.monotonic() - self._unwatched, rules.due(self._state)
        self._deferred = due is not None and now - due > _LATE and not self._deferred
        if due is None or not self._deferred:
            return now
        last = max(self._folded_at, due - _LATE)
        self._unwatched += now - last
        self._schedule.want(Task.SCAN, Task.PORTS)
        return last


def _without(memory: NicMemory, ignored: frozenset[str]) -> NicMemory:
    """Return the memory without the NICs that are now ignored."""
    kept = {pci: nic for pci, nic in memory.nics.items() if not ignored & {str(pci), *nic.links}}
    return replace(memory, nics=MappingProxyType(kept))
