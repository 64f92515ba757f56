"""The NICs of the node as a source of findings: see the package's docstring for how the work is divided.

A lost carrier is told as soon as netlink has told it. What no event tells of (RDMA ports, their counters, speeds) is
looked at in ``Periods``. Where a look fails or hangs, what it would have shown counts as "could not tell".
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import structlog

from agent.health import nics
from agent.health.links import LinkLimits
from agent.health.nic_memory import NicMemory
from agent.health.nics import NicReading
from agent.model.actions import ActionClass
from agent.model.devices import PciAddress
from agent.model.findings import Finding, FindingKind
from agent.model.nics import Nic, NicInventory, PciPlace
from agent.sources.network import netlink, statuses, uevents
from agent.sources.network.agenda import Agenda
from agent.sources.network.channel import Channel, ChannelName
from agent.sources.network.netlink import Link, ListingError
from agent.sources.network.reader import Reader, Task
from agent.sources.network.sockets import Listener
from agent.sources.network.sysfs import Sysfs
from agent.sources.network.telling import Teller
from agent.sources.network.view import View
from common import aio, contained
from common.parts import PartStatus

log = structlog.get_logger(__name__)

_SUBSYSTEMS = ("pci", "infiniband")
_ACTIONS = ("add", "remove", "bind", "unbind", "move")
_NEEDED = frozenset({statuses.SYSFS, *(channel.value for channel in ChannelName)})


@dataclass(frozen=True, slots=True)
class Periods:
    """All in seconds.

    ``ports``: between looks at the RDMA ports, which is a few short questions to each device. ``details``: between
    readings of speeds and counters. ``scan``: between lists of what is on the bus; uevents make it sooner.
    ``deadline``: after which a look counts as hanging. ``retry``: until the next try after a look that failed.
    """

    ports: float = 5.0
    details: float = 30.0
    scan: float = 60.0
    deadline: float = 5.0
    retry: float = 5.0


class Meter(Protocol):
    """Counters of the source. They only grow."""

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
        report: Callable[[PartStatus], None],
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
        """Prepare the source.

        ``known_before`` is what an earlier agent gave to ``remember`` on this boot (``agent.health.nic_memory``), which
        gets the new memory whenever it has changed and must not block. ``netns`` is the network namespace whose links
        are watched, by default the agent's own, which then must be the host's. ``ignored`` and ``unasked`` hold PCI
        addresses and names of netdevs and RDMA devices: NICs that do not matter, and NICs that may not be asked for
        ports, speed and counters. ``receive_buffer`` is in bytes, of each of the two netlink sockets. ``make_reader``
        makes what asks the kernel.
        """
        self._teller = Teller(emit=emit, classify=classify)
        self._meter = meter
        self._remember = remember
        self._limits = limits if limits is not None else LinkLimits()
        self._periods = periods if periods is not None else Periods()
        self._memory = _without(known_before, ignored)
        self._state = nics.begun(self._memory)
        self._view = View(known=self._memory.nics, ignored=ignored)
        self._sysfs = Sysfs(sysfs, unasked=unasked)
        self._reader = make_reader(
            self._sysfs, netns=netns, receive_buffer=receive_buffer, deadline=self._periods.deadline
        )
        self._statuses = statuses.Statuses(report=report, needed=_NEEDED)
        self._agenda = Agenda(
            {
                Task.SCAN: self._periods.scan,
                Task.PORTS: self._periods.ports,
                Task.DETAILS: self._periods.details,
            }
        )
        self._scanned: tuple[Nic, ...] = ()
        self._needed = asyncio.Event()  # there are NICs, so their links are to be followed
        self._judged = asyncio.Event()

    @property
    def inventory(self) -> NicInventory:
        """Every NIC seen since the agent started, lost ones too; complete only while sysfs and netlink tell of them."""
        return self._view.inventory

    def place(self, pci: PciAddress) -> PciPlace:
        """Return where any PCI function sits, such as a GPU (``agent.health.pairing``). Reads no more than links."""
        return self._sysfs.place(pci)

    def forget(self, device: str) -> None:
        """A person has said that what is known of a device is dealt with: a lost NIC need not come back.

        Of one that is there all begins anew; a link of it that is down counts as one that was never cabled.
        """
        try:
            pci = PciAddress.parse(device)
        except ValueError:
            return  # a GPU, by its UUID
        self._view.forget(pci)
        self._state = nics.without(self._state, pci)
        self._fold(())
        self._agenda.want(Task.SCAN)

    async def run(self) -> None:
        """Follow the NICs for ever. What is missing or breaks is reported, and taken up again when it can be."""
        uevents_channel = self._channel(
            ChannelName.UEVENTS, connect=self._reader.listen_to_uevents, begin=self._look_again, take=self._take_uevent
        )
        links_channel = self._channel(
            ChannelName.LINKS, connect=self._listen_to_links, begin=self._list_links, take=self._take_links
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                aio.spawn_eternal(tasks, uevents_channel.run(), name="network-uevents")
                aio.spawn_eternal(tasks, links_channel.run(), name="network-links")
                aio.spawn_eternal(tasks, self._look_for_ever(), name="network-sysfs")
                aio.spawn_eternal(tasks, self._keep_time(), name="network-time")
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
            deaf=lambda error: self._deaf(name, error),
            overflowed=lambda: self._meter.overflowed(name.value),
        )

    def _deaf(self, name: ChannelName, error: OSError | ListingError) -> None:
        self._statuses.netlink_away(name.value, error)
        if name is ChannelName.LINKS:
            self._view.lose_links()
            self._fold(self._view.readings())

    async def _look_again(self) -> None:
        """Look at what came or went while nobody listened."""
        self._agenda.want(Task.SCAN)
        self._works(ChannelName.UEVENTS.value)

    def _take_uevent(self, message: bytes) -> None:
        event = uevents.parse(message)
        if event is not None and event.subsystem in _SUBSYSTEMS and event.action in _ACTIONS:
            log.debug("network.uevent", action=event.action, path=event.path)
            self._agenda.want(Task.SCAN, Task.PORTS)

    async def _listen_to_links(self) -> Listener:
        await self._needed.wait()
        return await self._reader.listen_to_links()

    async def _list_links(self) -> None:
        self._view.take_links(await self._reader.links())
        self._fold(self._view.readings())
        self._agenda.want(Task.DETAILS)  # only links that are known to be up are asked for their speed
        self._works(ChannelName.LINKS.value)

    def _take_links(self, message: bytes) -> None:
        for raw in netlink.raw_links(message):
            with contained.within(contained.Part.DEVICE, f"link {raw.index}"):
                if self._view.has_link(raw.index) or self._reader.is_of_device(raw):
                    self._take_link(raw.decode())  # virtual links, most of all on a node full of pods, are not decoded

    def _take_link(self, link: Link) -> None:
        if self._view.take_link(link):
            self._agenda.want(Task.SCAN)
        if owners := self._view.owners(link.name):
            self._fold(self._view.readings(owners))
            self._agenda.want(Task.PORTS, *([Task.DETAILS] if link.up else []))

    async def _look_for_ever(self) -> None:
        while True:
            await self._look(await self._agenda.next())

    async def _look(self, tasks: frozenset[Task]) -> None:
        try:
            look = await self._reader.look(tasks, self._view.nics, up=self._view.links_up())
        except OSError as error:
            self._view.lose_sight()
            self._agenda.put_off(self._periods.retry)
            self._statuses.sysfs_away(self._reader.at, error)
        else:
            self._view.take_look(look, at=time.monotonic())
            self._plan()
            self._works(statuses.SYSFS)
        self._fold(self._view.readings())

    def _plan(self) -> None:
        """Decide what else is to be looked at, after what was found."""
        if self._view.empty:
            self._agenda.rest(Task.PORTS, Task.DETAILS)
            return
        self._needed.set()
        if self._view.nics != self._scanned:
            self._scanned = self._view.nics
            self._agenda.want(Task.PORTS, Task.DETAILS)

    def _works(self, what: str) -> None:
        self._statuses.well(what, idle=self._view.empty)

    async def _keep_time(self) -> None:
        """See to what begins or ends by itself."""
        while True:
            self._judged.clear()
            try:
                async with asyncio.timeout_at(nics.due(self._state)):
                    await self._judged.wait()
            except TimeoutError:
                self._fold(())

    def _fold(self, readings: Iterable[NicReading]) -> None:
        self._state, changes = nics.observe(self._state, readings, now=time.monotonic(), limits=self._limits)
        self._judged.set()
        memory = nics.known(self._state, boot_id=self._memory.boot_id)
        if memory != self._memory:
            self._memory = memory
            self._remember(memory)
        for change in changes:
            with contained.within(contained.Part.DEVICE, type(change).__name__):
                self._teller.tell(change)


def _without(memory: NicMemory, ignored: frozenset[str]) -> NicMemory:
    """Return the memory without the NICs that are to be ignored now."""
    kept = {pci: nic for pci, nic in memory.nics.items() if not ignored & {str(pci), *nic.links}}
    return replace(memory, nics=MappingProxyType(kept))
