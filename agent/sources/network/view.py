"""Current state of the node's NICs, combined into readings for ``agent.health.nic.rules``."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from kubemend.agent.health.nic.links import LinkReading, LinkType
from kubemend.agent.health.nic.rdma_errors import COUNTERS, CounterReading
from kubemend.agent.health.nic.rules import NicReading
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.nics import LinkLayer, Nic, NicInventory, RdmaPort
from kubemend.agent.sources.network import sysfs
from kubemend.agent.sources.network.netlink import Link
from kubemend.agent.sources.network.reader import Reading
from kubemend.agent.sources.network.sysfs import PortState, Scan


class View:
    """Keeps the latest answers. Values that are unknown or outdated are omitted from the readings."""

    def __init__(self, *, known: Iterable[PciAddress], ignored: frozenset[str]) -> None:
        """Start with the NICs ``known`` from this boot; NICs named in ``ignored`` are omitted everywhere."""
        self._known = set(known)
        self._ignored = ignored
        self._nics: dict[PciAddress, Nic] = {}
        self._scan: Scan | None = None
        self._links: dict[int, Link] = {}
        self._links_known = False
        self._ports: Mapping[RdmaPort, PortState] = {}
        self._speeds: Mapping[str, int] = {}
        self._counters: Mapping[RdmaPort, CounterReading] = {}

    @property
    def inventory(self) -> NicInventory:
        """Every NIC that sysfs has shown since the agent started; complete only while their links are known too."""
        known = self._scan is not None and (self._links_known or self.empty)
        return NicInventory(tuple(self._nics[pci] for pci in sorted(self._nics)), complete=known)

    @property
    def nics(self) -> tuple[Nic, ...]:
        """The NICs present at the last scan."""
        return self._wanted(self._scan) if self._scan is not None else ()

    @property
    def empty(self) -> bool:
        """Whether the node has no NICs, and had none on this boot."""
        return not self._known

    def update(self, reading: Reading, *, at: float) -> None:
        """Store the results of a sysfs check made at ``at`` seconds."""
        if reading.scan is not None:
            self._scan = reading.scan
            found = {nic.pci: nic for nic in self._wanted(reading.scan)}
            self._nics.update(found)
            self._known.update(found)
        if reading.ports is not None:
            self._ports = reading.ports
        if reading.speeds is not None:
            self._speeds = reading.speeds
        if reading.counters is not None:
            self._counters = {port: CounterReading(at, values) for port, values in reading.counters.items()}

    def forget(self, pci: PciAddress) -> None:
        """Forget a NIC, until a scan finds it."""
        self._known.discard(pci)
        self._nics.pop(pci, None)

    def forget_sysfs(self) -> None:
        """Forget all values from sysfs, because it cannot be read now."""
        self._scan = None
        self._ports, self._speeds, self._counters = {}, {}, {}

    def take_links(self, links: Iterable[Link]) -> None:
        """Store the complete list of links."""
        self._links = {link.index: link for link in links}
        self._links_known = True

    def lose_links(self) -> None:
        """Forget the links, because netlink delivers none now."""
        self._links, self._links_known = {}, False

    def take_link(self, link: Link) -> bool:
        """Store a change of one link. Return whether the set of links or their names changed."""
        before = self._links.pop(link.index, None)
        if link.gone:
            return before is not None
        self._links[link.index] = link
        return before is None or before.name != link.name

    def has_link(self, index: int) -> bool:
        """Return whether a link with that index is known."""
        return index in self._links

    def owners(self, netdev: str) -> tuple[PciAddress, ...]:
        """Return the NICs that the netdev belongs to: one or none."""
        return tuple(pci for pci, nic in self._nics.items() if netdev in nic.netdevs)

    def links_up(self) -> frozenset[str]:
        """Return the names of the links that are up."""
        return frozenset(link.name for link in self._links.values() if link.up)

    def readings(self, pcis: Iterable[PciAddress] | None = None) -> Iterator[NicReading]:
        """Yield the readings of these NICs; without ``pcis``, of all that were present on this boot."""
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
            elif netdevs:  # if its netdev is in a pod's network namespace, whether the port should be up is unknown
                yield LinkReading(
                    name=port.name,
                    type=LinkType.ROCE,
                    up=state.active,
                    admin_up=any(link.admin_up for link in netdevs),
                    state=state.name,
                    serial=state.serial,
                )

    def _infiniband(self, port: RdmaPort, state: PortState) -> LinkReading:
        counters = self._counters.get(port)
        return LinkReading(
            name=port.name,
            type=LinkType.INFINIBAND,
            up=state.active,
            admin_up=not state.disabled,
            state=state.name,
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
