"""A pod's NICs: those near its GPUs, and those that it holds by their address."""

from dataclasses import dataclass, field

from kubemend.agent.app.device_sources import NicAffinity
from kubemend.agent.model.devices import DeviceId, DeviceInventory, Gpu, PciAddress
from kubemend.agent.model.nics import Nic, NicInventory, PciPlace

GPUS = [PciAddress.parse(f"0000:{bus}:00.0") for bus in ("1b", "43")]
NICS = [PciAddress.parse(f"0000:{bus}:00.0") for bus in ("18", "40")]
ROOTS = {"1": ("pci0000:15", "0000:15:01.0"), "4": ("pci0000:37", "0000:37:01.0")}


def place(pci: PciAddress) -> PciPlace:
    return PciPlace(path=(*ROOTS[f"{pci.bus:02x}"[0]], str(pci)))


@dataclass
class Node:
    gpus: DeviceInventory = field(
        default_factory=lambda: DeviceInventory(
            gpus=tuple(Gpu(uuid=DeviceId(f"GPU-{index}"), pci=pci, index=index) for index, pci in enumerate(GPUS)),
            complete=True,
        )
    )
    nics: NicInventory = field(
        default_factory=lambda: NicInventory(tuple(Nic(pci=pci, place=place(pci)) for pci in NICS), complete=True)
    )
    asked: list[PciAddress] = field(default_factory=list)

    def nearby(self) -> NicAffinity:
        return NicAffinity(gpus=lambda: self.gpus, nics=lambda: self.nics, place=self._place)

    def _place(self, pci: PciAddress) -> PciPlace:
        self.asked.append(pci)
        return place(pci)


def test_gpu_has_the_nic_below_the_same_switch() -> None:
    nearby = Node().nearby()
    assert nearby.nics_for_gpus({"GPU-0"}) == {str(NICS[0])}
    assert nearby.nics_for_gpus({"GPU-0", "GPU-1"}) == {str(nic) for nic in NICS}
    assert nearby.nics_for_gpus({"GPU-7"}) == frozenset()


def test_tree_is_read_again_only_when_devices_change() -> None:
    node = Node()
    nearby = node.nearby()
    for _ in range(3):
        nearby.nics_for_gpus({"GPU-0"})
    assert len(node.asked) == len(GPUS)
    node.nics = NicInventory(node.nics.nics[1:], complete=True)
    assert nearby.nics_for_gpus({"GPU-1"}) == {str(NICS[1])}
    assert nearby.nics_for_gpus({"GPU-0"}) == frozenset()


def test_nic_is_found_by_pci_address_only() -> None:
    nearby = Node().nearby()
    assert nearby.nic_for_plugin_id("0000:18:00.0") == str(NICS[0])
    assert nearby.nic_for_plugin_id("0000:99:00.0") is None
    assert nearby.nic_for_plugin_id("hca-3") is None


def test_nic_that_is_not_visible_is_not_reported_present() -> None:
    node = Node()
    nearby = node.nearby()
    assert nearby.is_there(str(NICS[0])) is True
    assert nearby.is_there("GPU-0") is None
    node.nics = NicInventory(node.nics.nics, complete=False)
    assert nearby.is_there(str(NICS[0])) is None
