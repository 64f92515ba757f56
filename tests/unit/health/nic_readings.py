"""Builders for the state of a NIC, and the changes that the rules emit."""

from collections.abc import Iterable, Mapping

from kubemend.agent.health.nic import rules
from kubemend.agent.health.nic.links import LinkLimits, LinkReading, LinkType
from kubemend.agent.health.nic.nic_inventory_state import NicMemory
from kubemend.agent.health.nic.rdma_errors import CounterReading
from kubemend.agent.health.nic.rules import NicChange, NicReading
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import FindingKind

LIMITS = LinkLimits()
PCI = PciAddress.parse("0000:18:00.0")


def netdev(
    *,
    up: bool = True,
    admin_up: bool = True,
    drops: int | None = 0,
    speed: int | None = None,
    name: str = "eth1",
    serial: int = 7,
) -> LinkReading:
    return LinkReading(
        name=name, type=LinkType.NETDEV, up=up, admin_up=admin_up, drops=drops, speed=speed, serial=serial
    )


def port(state: str = "ACTIVE", *, name: str = "mlx5_0/1", speed: int | None = None, roce: bool = False) -> LinkReading:
    kind = LinkType.ROCE if roce else LinkType.INFINIBAND
    return LinkReading(name=name, type=kind, up=state == "ACTIVE", state=state, speed=speed)


def nic(
    *links: LinkReading,
    pci: PciAddress = PCI,
    scanned: bool = True,
    driver: str | None = "mlx5_core",
    names: Iterable[str] | None = None,
    counters: Mapping[str, CounterReading] | None = None,
) -> NicReading:
    return NicReading(
        pci=pci,
        scanned=scanned,
        driver=driver if scanned else None,
        model="15b3:1021",
        names=frozenset(names) if names is not None else frozenset(link.name for link in links),
        links=links,
        counters=counters or {},
    )


class Emitted:
    """One life of an agent: the changes that the rules made of the readings so far."""

    def __init__(self, *, memory: NicMemory | None = None) -> None:
        self.state = rules.begun(memory or NicMemory("boot-1"))
        self.changes: list[NicChange] = []
        self.now = 0.0

    def at(self, now: float, *readings: NicReading) -> "Emitted":
        assert now >= self.now
        self.now = now
        self.state, changes = rules.observe(self.state, readings, now=now, limits=LIMITS)
        self.changes += changes
        return self

    @property
    def held(self) -> dict[FindingKind, str]:
        """The faults that hold for the NIC at ``PCI``, from the emitted changes: texts by kind."""
        return self.held_of(PCI)

    def held_of(self, pci: PciAddress) -> dict[FindingKind, str]:
        """The faults that hold for a NIC."""
        last = {change.kind: change.text for change in self.changes if change.pci == pci}
        return {kind: text for kind, text in last.items() if text is not None}

    def count(self, kind: FindingKind, *, over: bool = False) -> int:
        """How often a kind was emitted, or with ``over`` its end."""
        return sum(change.kind is kind and (change.text is None) == over for change in self.changes)

    @property
    def memory(self) -> NicMemory:
        return rules.known(self.state, boot_id="boot-1")
