"""Which NICs are a pod's: those that it holds, and those beside its GPUs in the PCI tree."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from agent.health import pairing
from agent.model.devices import Inventory, PciAddress
from agent.model.nics import NicInventory, PciPlace


class NearbyNics:
    """Pairs GPUs with NICs; anew when one of the two inventories has changed."""

    def __init__(
        self,
        *,
        gpus: Callable[[], Inventory],
        nics: Callable[[], NicInventory],
        place: Callable[[PciAddress], PciPlace],
    ) -> None:
        self._gpus = gpus
        self._nics = nics
        self._place = place
        self._paired_for: tuple[frozenset[PciAddress], frozenset[PciAddress]] | None = None
        self._pairs: Mapping[PciAddress, tuple[PciAddress, ...]] = MappingProxyType({})

    def near(self, devices: Collection[str]) -> frozenset[str]:
        """Return the NICs beside these GPUs."""
        inventory = self._gpus()
        pairs = self._up_to_date(inventory)
        gpus = [gpu for gpu in inventory.gpus if gpu.uuid in devices]
        return frozenset(str(nic) for gpu in gpus for nic in pairs.get(gpu.pci, ()))

    def held_as(self, plugin_id: str) -> str | None:
        """Return the NIC that a device plugin gives out by that id, None where that is not its PCI address."""
        try:
            pci = PciAddress.parse(plugin_id)
        except ValueError:
            return None
        nic = self._nics().by_pci(pci)  # of a virtual function, too: its health is that of the NIC
        return str(nic.pci) if nic is not None else None

    def is_there(self, device: str) -> bool | None:
        """Return whether a NIC of that name is there; None for what is no NIC, or was never seen."""
        nics = self._nics()
        try:
            pci = PciAddress.parse(device)
        except ValueError:
            return None
        return True if nics.complete and nics.by_pci(pci) is not None else None

    def _up_to_date(self, inventory: Inventory) -> Mapping[PciAddress, tuple[PciAddress, ...]]:
        nics = {nic.pci: nic.place for nic in self._nics().nics}
        gpus = frozenset(gpu.pci for gpu in inventory.gpus)
        if self._paired_for != (gpus, frozenset(nics)):
            self._pairs = pairing.pairs({pci: self._place(pci) for pci in gpus}, nics)
            self._paired_for = gpus, frozenset(nics)
        return self._pairs
