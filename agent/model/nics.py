"""NICs: the PCI functions of the node that are network adapters, and the kernel's names for their parts."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from kubemend.agent.model.devices import PciAddress


class LinkLayer(enum.Enum):
    """The link layer of an RDMA port, as the kernel names it (``ports/N/link_layer``). ``Ethernet`` is RoCE."""

    ETHERNET = "Ethernet"
    INFINIBAND = "InfiniBand"
    UNSPECIFIED = "Unknown"
    """Any other link layer, such as EFA's."""


@dataclass(frozen=True, order=True, slots=True)
class RdmaPort:
    """One port of an RDMA device. Ports count from 1."""

    device: str
    number: int
    link_layer: LinkLayer = field(compare=False)

    @property
    def name(self) -> str:
        """Name in the notation of ``rdma link``: ``mlx5_0/1``."""
        return f"{self.device}/{self.number}"


@dataclass(frozen=True, slots=True)
class PciPlace:
    """The position of a PCI function: the bridges above it, root first, then itself, and its NUMA node.

    ``path`` uses sysfs names: ``("pci0000:3a", "0000:3a:01.0", "0000:3b:00.0")``.
    """

    path: tuple[str, ...] = ()
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """One physical function with a network or RDMA device. Virtual functions and virtual devices are excluded.

    ``model`` is vendor, device and subsystem; peers have the same model. A network device that was moved into a pod's
    network namespace is not visible, and ``netdevs`` lacks it.
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
        """Name of the RDMA device (``mlx5_0``), or None where it has none."""
        return self.ports[0].device if self.ports else None

    @property
    def names(self) -> frozenset[str]:
        """All names that an operator may use for it: PCI address, netdevs and RDMA device."""
        return frozenset({str(self.pci), *self.netdevs, *(port.device for port in self.ports)})


@dataclass(frozen=True, slots=True)
class NicInventory:
    """The NICs of the node. ``complete`` is False while sysfs or netlink is unavailable: absence proves nothing."""

    nics: tuple[Nic, ...] = ()
    complete: bool = False
    _by_pci: Mapping[PciAddress, Nic] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        addresses = {address: nic for nic in self.nics for address in (nic.pci, *nic.virtual_functions)}
        object.__setattr__(self, "_by_pci", addresses)

    def by_pci(self, pci: PciAddress) -> Nic | None:
        """Return the NIC at that address, or the NIC whose virtual function has that address."""
        return self._by_pci.get(pci)
