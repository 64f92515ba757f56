"""Find the NICs near each GPU: those that share the most bridges of the PCI tree with it."""

from collections.abc import Mapping
from types import MappingProxyType

from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.nics import PciPlace


def pairs(
    gpus: Mapping[PciAddress, PciPlace], nics: Mapping[PciAddress, PciPlace]
) -> Mapping[PciAddress, tuple[PciAddress, ...]]:
    """Return, for each GPU, the NICs with the lowest common ancestor, in order of address.

    Where no NIC shares even the root bridge with a GPU (each in a PCI domain of its own, as on Grace), the NICs on its
    NUMA node are returned. The result is empty for a GPU for which both are unknown.
    """
    return MappingProxyType({gpu: _nearest(place, nics) for gpu, place in gpus.items()})


def _nearest(gpu: PciPlace, nics: Mapping[PciAddress, PciPlace]) -> tuple[PciAddress, ...]:
    nearness = {pci: _nearness(gpu, place) for pci, place in nics.items()}
    best = max(nearness.values(), default=(0, False))
    if best == (0, False):
        return ()
    return tuple(sorted(pci for pci, near in nearness.items() if near == best))


def _nearness(one: PciPlace, other: PciPlace) -> tuple[int, bool]:
    """Return how many bridges two places share, from the root down; the NUMA node counts only if they share none."""
    shared = 0
    for mine, theirs in zip(one.path, other.path, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared, shared == 0 and one.numa_node is not None and one.numa_node == other.numa_node
