"""What is known of the node's NICs at this moment, put together to readings for ``agent.health.nics``."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from agent.health.links import LinkReading, LinkType
from agent.health.nics import NicReading
from agent.health.rdma_errors import COUNTERS, CounterReading
from agent.model.devices import PciAddress
from agent.model.nics import LinkLayer, Nic, NicInventory, RdmaPort
from agent.sources.network import sysfs
from agent.sources.network.netlink import Link
from agent.sources.network.reader import Look
from agent.sources.network.sysfs import PortState, Scan


class View:
    """Keeps the last answers. What has not been told, or not been told lately, is missing from the readings."""

    def __init__(self, *, known: Iterable[PciAddress], ignored: frozenset[str]) -> None:
        """Begin with the NICs that are ``known`` of this boot; those that ``ignored`` names are left out of all."""
        self._known = set(known)
        self._ignored = ignored
        self._nics: dict[PciAddress, Nic] = {}
        self._scan: Scan | None = None
        self._links: dict[int, Link] = {}
        self._links_told = False
        self._ports: Mapping[RdmaPort, PortState] = {}
        self._speeds: Mapping[str, int] = {}
        self._counters: Mapping[RdmaPort, CounterReading] = {}

    @property
    def inventory(self) -> NicInventory:
        """Every NIC that sysfs has shown since the agent started; complete only while their links are told of, too."""
        told = self._scan is not None and (self._links_told or self.empty)
        return NicInventory(tuple(self._nics[pci] for pci in sorted(self._nics)), complete=told)

    @property
    def nics(self) -> tuple[Nic, ...]:
        """The NICs that were there at the last scan."""
        return self._wanted(self._scan) if self._scan is not None else ()

    @property
    def empty(self) -> bool:
        """Whether the node has no NICs, and had none on this boot."""
        return not self._known

    def take_look(self, look: Look, *, at: float) -> None:
        """Take in what was found in sysfs at ``at`` seconds."""
        if look.scan is not None:
            self._scan = look.scan
            found = {nic.pci: nic for nic in self._wanted(look.scan)}
            self._nics.update(found)
            self._known.update(found)
        if look.ports is not None:
            self._ports = look.ports
        if look.speeds is not None:
            self._speeds = look.speeds
        if look.counters is not None:
            self._counters = {port: CounterReading(at, values) for port, values in look.counters.items()}

    def forget(self, pci: PciAddress) -> None:
        """Forget a NIC, until a scan finds it."""
        self._known.discard(pci)
        self._nics.pop(pci, None)

    def lose_sight(self) -> None:
        """Forget what sysfs told last: it cannot be read now."""
        self._scan = None
        self._ports, self._speeds, self._counters = {}, {}, {}

    def take_links(self, links: Iterable[Link]) -> None:
        """Take in the whole list of links."""
        self._links = {link.index: link for link in links}
        self._links_told = True

    def lose_links(self) -> None:
        """Forget the links: nobody tells of them now."""
        self._links, self._links_told = {}, False

    def take_link(self, link: Link) -> bool:
        """Take in a change of one link. Return whether there are other links than before, or other names."""
        before = self._links.pop(link.index, None)
        if link.gone:
            return before is not None
        self._links[link.index] = link
        return before is None or before.name != link.name

    def has_link(self, index: int) -> bool:
        """Whether a link of that index is known."""
        return index in self._links

    def owners(self, netdev: str) -> tuple[PciAddress, ...]:
        """Return which NIC the netdev belongs to, if any."""
        return tuple(pci for pci, nic in self._nics.items() if netdev in nic.netdevs)

    def links_up(self) -> frozenset[str]:
        """Return the names of the links that are up."""
        return frozenset(link.name for link in self._links.values() if link.up)

    def readings(self, pcis: Iterable[PciAddress] | None = None) -> Iterator[NicReading]:
        """Yield the reading of these NICs; without ``pcis``, of all that were there on this boot."""
        by_name = {link.name: link for link in self._links.values()}
        for pci in sorted(self._known if pcis is None else pcis):
            yield self._reading(pci, by_name)

    def _reading(self, pci: PciAddress, by_name: Mapping[str, Link]) -> NicReading:
        nic = self._nics.get(pci, Nic(pci))
        driver = self._scan.drivers.get(pci) if self._scan is not None else None
        there = self._scan is None or bool(driver)
        links = (*self._netdevs(nic, by_name), *self._rdma(nic, by_name)) if there else ()
        return NicReading(
            pci=pci,
            scanned=self._scan is not None,
            driver=driver,
            model=nic.model,
            names=frozenset((*nic.netdevs, *(port.name for port in nic.ports))),
            links=links,
            counters=MappingProxyType(self._error_counters(nic) if there else {}),
        )

    def _netdevs(self, nic: Nic, by_name: Mapping[str, Link]) -> Iterator[LinkReading]:
        for name in nic.netdevs:
            if (link := by_name.get(name)) is not None:
                yield LinkReading(
                    name=name,
                    type=LinkType.NETDEV,
                    up=link.up,
                    admin_up=link.admin_up,
                    drops=link.losses,
                    speed=self._speeds.get(name),
                    serial=link.index,
                )

    def _rdma(self, nic: Nic, by_name: Mapping[str, Link]) -> Iterator[LinkReading]:
        netdevs = [by_name[name] for name in nic.netdevs if name in by_name]
        for port in nic.ports:
            state = self._ports.get(port)
            if state is None:
                continue
            if port.link_layer is not LinkLayer.ETHERNET:
                yield self._infiniband(port, state)
            elif netdevs:  # where its netdev is in a pod's network namespace, nobody knows whether it is to be up
                yield LinkReading(
                    name=port.name,
                    type=LinkType.ROCE,
                    up=state.active,
                    admin_up=any(link.admin_up for link in netdevs),
                    state=state.word,
                    serial=state.serial,
                )

    def _infiniband(self, port: RdmaPort, state: PortState) -> LinkReading:
        counters = self._counters.get(port)
        return LinkReading(
            name=port.name,
            type=LinkType.INFINIBAND,
            up=state.active,
            admin_up=not state.disabled,
            state=state.word,
            drops=counters.values.get(sysfs.LINK_DOWNED) if counters is not None else None,
            speed=state.rate if state.active else None,
            serial=state.serial,
        )

    def _error_counters(self, nic: Nic) -> dict[str, CounterReading]:
        return {
            port.name: CounterReading(
                reading.at, {name: value for name, value in reading.values.items() if name in COUNTERS}
            )
            for port in nic.ports
            if (reading := self._counters.get(port)) is not None and port in self._ports and self._ports[port].active
        }

    def _wanted(self, scan: Scan) -> tuple[Nic, ...]:
        return tuple(nic for nic in scan.nics if not nic.names & self._ignored)
