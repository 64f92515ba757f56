"""Find a pod's NICs: those that it holds, and those near its GPUs in the PCI tree."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from kubemend.agent.health.nic import pairing
from kubemend.agent.model.devices import DeviceInventory, PciAddress
from kubemend.agent.model.nics import NicInventory, PciPlace


class NicAffinity:
    """Pairs GPUs with NICs, and again when one of the two inventories has changed."""

    def __init__(
        self,
        *,
        gpus: Callable[[], DeviceInventory],
        nics: Callable[[], NicInventory],
        place: Callable[[PciAddress], PciPlace],
    ) -> None:
        self._gpus = gpus
        self._nics = nics
        self._place = place
        self._paired_for: tuple[frozenset[PciAddress], frozenset[PciAddress]] | None = None
        self._pairs: Mapping[PciAddress, tuple[PciAddress, ...]] = MappingProxyType({})

    def near(self, devices: Collection[str]) -> frozenset[str]:
        """Return the NICs near these GPUs."""
        inventory = self._gpus()
        pairs = self._up_to_date(inventory)
        gpus = [gpu for gpu in inventory.gpus if gpu.uuid in devices]
        return frozenset(str(nic) for gpu in gpus for nic in pairs.get(gpu.pci, ()))

    def held_as(self, plugin_id: str) -> str | None:
        """Return the NIC that a device plugin allocates under that id, None where the id is not a NIC's PCI address."""
        try:
            pci = PciAddress.parse(plugin_id)
        except ValueError:
            return None
        nic = self._nics().by_pci(pci)  # also for a virtual function: its health is that of the NIC
        return str(nic.pci) if nic is not None else None

    def is_there(self, device: str) -> bool | None:
        """Return True if a NIC of that name is present; None for other devices and for NICs that were never seen."""
        nics = self._nics()
        try:
            pci = PciAddress.parse(device)
        except ValueError:
            return None
        return True if nics.complete and nics.by_pci(pci) is not None else None

    def _up_to_date(self, inventory: DeviceInventory) -> Mapping[PciAddress, tuple[PciAddress, ...]]:
        nics = {nic.pci: nic.place for nic in self._nics().nics}
        gpus = frozenset(gpu.pci for gpu in inventory.gpus)
        if self._paired_for != (gpus, frozenset(nics)):
            self._pairs = pairing.pairs({pci: self._place(pci) for pci in gpus}, nics)
            self._paired_for = gpus, frozenset(nics)
        return self._pairs
