"""The devices below a PCIe port, in a sysfs tree with the kernel's layout."""

from pathlib import Path

import pytest

from kubemend.agent.model.devices import PciAddress
from kubemend.agent.sources import pci_tree

ROOT_PORT = PciAddress.parse("0000:40:01.1")
GPU = PciAddress.parse("0000:45:00.0")
NIC = PciAddress.parse("0000:44:00.0")


class Sysfs:
    """A sysfs with only PCI devices."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._links = root / "bus" / "pci" / "devices"
        self._links.mkdir(parents=True)

    def add(self, way: str, code: str) -> Path:
        """Add a device at the end of a path of addresses, and the links by which it is found."""
        path = self.root / "devices" / "pci0000:40" / way
        path.mkdir(parents=True)
        (path / "class").write_text(f"{code}\n")
        (self._links / path.name).symlink_to(path)
        return path

    def remove(self, way: str) -> None:
        """Remove a device without children."""
        path = self.root / "devices" / "pci0000:40" / way
        (path / "class").unlink()
        path.rmdir()
        (self._links / path.name).unlink()


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    """A root port, a switch below it, and below that a NIC with a virtual function, a GPU with its sound, a disk."""
    sysfs = Sysfs(tmp_path)
    way = f"{ROOT_PORT}/0000:41:00.0"
    sysfs.add(str(ROOT_PORT), "0x060400")
    sysfs.add(way, "0x060400")
    for port, name, code in (
        ("0000:42:00.0", "0000:44:00.0", "0x020700"),
        ("0000:42:01.0", "0000:45:00.0", "0x030200"),
        ("0000:42:02.0", "0000:46:00.0", "0x010802"),
    ):
        sysfs.add(f"{way}/{port}", "0x060400")
        sysfs.add(f"{way}/{port}/{name}", code)
    sysfs.add(f"{way}/0000:42:01.0/0000:45:00.1", "0x040300")
    virtual = sysfs.add(f"{way}/0000:42:00.0/0000:44:00.1", "0x020700")
    (virtual / "physfn").symlink_to(virtual.parent / "0000:44:00.0")
    (sysfs.root / "devices" / "pci0000:40" / str(ROOT_PORT) / f"{ROOT_PORT}:pcie001").mkdir()
    return sysfs


@pytest.mark.parametrize(
    ("address", "devices"),
    [
        (str(ROOT_PORT), (NIC, GPU)),
        ("0000:42:01.0", (GPU,)),
        ("0000:45:00.0", (GPU,)),
        ("0000:44:00.0", (NIC,)),
        pytest.param("0000:44:00.1", (), id="virtual function"),
        pytest.param("0000:45:00.1", (), id="sound"),
        pytest.param("0000:46:00.0", (), id="disk"),
        pytest.param("0000:42:02.0", (), id="port of the disk"),
        pytest.param("0000:99:00.0", (), id="never there"),
    ],
)
def test_port_leads_to_gpus_and_adapters_below_it(sysfs: Sysfs, address: str, devices: tuple[PciAddress, ...]) -> None:
    assert pci_tree.PciTree(sysfs.root).below(PciAddress.parse(address)) == devices


def test_nvswitch_counts_though_it_is_a_bridge(sysfs: Sysfs) -> None:
    sysfs.add(f"{ROOT_PORT}/0000:41:00.0/0000:42:03.0", "0x068000")

    assert PciAddress.parse("0000:42:03.0") in pci_tree.PciTree(sysfs.root).below(ROOT_PORT)


def test_removed_gpu_still_counts_by_its_address(sysfs: Sysfs) -> None:
    tree = pci_tree.PciTree(sysfs.root)
    for name in ("0000:45:00.0", "0000:46:00.0"):
        port = "0000:42:01.0" if name == "0000:45:00.0" else "0000:42:02.0"
        sysfs.remove(f"{ROOT_PORT}/0000:41:00.0/{port}/{name}")

    assert tree.below(GPU) == (GPU,)
    assert tree.below(PciAddress.parse("0000:46:00.0")) == (), "a removed disk is irrelevant"
    assert tree.below(ROOT_PORT) == (NIC,)


def test_answers_are_cached_until_forget(sysfs: Sysfs) -> None:
    tree = pci_tree.PciTree(sysfs.root)
    assert tree.below(ROOT_PORT) == (NIC, GPU)

    sysfs.remove(f"{ROOT_PORT}/0000:41:00.0/0000:42:01.0/0000:45:00.0")

    assert tree.below(ROOT_PORT) == (NIC, GPU)
    tree.forget()
    assert tree.below(ROOT_PORT) == (NIC,)


def test_address_stands_for_itself_without_sysfs(tmp_path: Path) -> None:
    assert pci_tree.PciTree(tmp_path / "none").below(GPU) == (GPU,)
