"""NICs: which PCI functions of the node are network adapters, and what the kernel calls their parts."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.model.devices import PciAddress


class LinkLayer(enum.Enum):
    """What an RDMA port runs over, in the kernel's words (``ports/N/link_layer``). ``Ethernet`` is RoCE."""

    ETHERNET = "Ethernet"
    INFINIBAND = "InfiniBand"
    UNSPECIFIED = "Unknown"
    """Any other, such as EFA's."""


@dataclass(frozen=True, order=True, slots=True)
class RdmaPort:
    """One port of an RDMA device. Ports count from 1."""

    device: str
    number: int
    link_layer: LinkLayer = field(compare=False)

    @property
    def name(self) -> str:
        """As ``rdma link`` writes it: ``mlx5_0/1``."""
        return f"{self.device}/{self.number}"


@dataclass(frozen=True, slots=True)
class PciPlace:
    """Where a PCI function sits: the bridges above it, from the root down, itself last, and its NUMA node.

    ``path`` is in sysfs's words: ``("pci0000:3a", "0000:3a:01.0", "0000:3b:00.0")``.
    """

    path: tuple[str, ...] = ()
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """One physical function with a network or RDMA device. Virtual functions and virtual devices are none.

    ``model`` is vendor, device and subsystem, by which peers are found. A device moved into a pod's network namespace
    is not seen: then ``netdevs`` lacks it.
    """

    pci: PciAddress
    netdevs: tuple[str, ...] = ()
    ports: tuple[RdmaPort, ...] = ()
    driver: str = ""
    model: str = ""
    place: PciPlace = PciPlace()
    virtual_functions: tuple[PciAddress, ...] = ()

    @property
    def rdma_device(self) -> str | None:
        """The RDMA device's name (``mlx5_0``), or None where it has none."""
        return self.ports[0].device if self.ports else None

    @property
    def names(self) -> frozenset[str]:
        """Every name by which an operator may mean it: PCI address, netdevs and RDMA device."""
        return frozenset({str(self.pci), *self.netdevs, *(port.device for port in self.ports)})


@dataclass(frozen=True, slots=True)
class NicInventory:
    """The NICs of the node. ``complete`` is False while sysfs or netlink could not be asked: nothing is proven then."""

    nics: tuple[Nic, ...] = ()
    complete: bool = False
    _by_pci: Mapping[PciAddress, Nic] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        addresses = {address: nic for nic in self.nics for address in (nic.pci, *nic.virtual_functions)}
        object.__setattr__(self, "_by_pci", addresses)

    def by_pci(self, pci: PciAddress) -> Nic | None:
        """Return the NIC at that address, or the one that the function at that address is a virtual function of."""
        return self._by_pci.get(pci)
