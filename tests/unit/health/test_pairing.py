"""GPUs and NICs are paired by the lowest common ancestor in the PCI tree, in any PCI domain."""

from kubemend.agent.health.nic import pairing
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.nics import PciPlace


def pci(text: str) -> PciAddress:
    return PciAddress.parse(text)


def place(*path: str, numa_node: int | None = None) -> PciPlace:
    return PciPlace(path, numa_node)


GPU_A = place("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:01.0", "0000:19:00.0")
NIC_A = place("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
NIC_OF_THE_SOCKET = place("pci0000:15", "0000:15:05.0", "0000:29:00.0")
GPU_B = place("pci0000:3a", "0000:3a:01.0", "0000:3b:00.0", "0000:3c:01.0", "0000:3e:00.0")
NIC_B = place("pci0000:3a", "0000:3a:01.0", "0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0")


def test_gpu_gets_the_nic_behind_the_same_switch() -> None:
    pairs = pairing.pairs(
        {pci("0000:19:00.0"): GPU_A, pci("0000:3e:00.0"): GPU_B},
        {pci("0000:18:00.0"): NIC_A, pci("0000:29:00.0"): NIC_OF_THE_SOCKET, pci("0000:3d:00.0"): NIC_B},
    )
    assert pairs == {
        pci("0000:19:00.0"): (pci("0000:18:00.0"),),
        pci("0000:3e:00.0"): (pci("0000:3d:00.0"),),
    }


def test_gpu_without_switch_neighbour_gets_nic_of_root_bridge() -> None:
    nics = {pci("0000:29:00.0"): NIC_OF_THE_SOCKET, pci("0000:3d:00.0"): NIC_B}
    assert pairing.pairs({pci("0000:19:00.0"): GPU_A}, nics)[pci("0000:19:00.0")] == (pci("0000:29:00.0"),)


def test_defect_9_gpus_in_other_pci_domains_find_their_nics() -> None:
    """nvidia-resiliency-ext walks only through addresses that begin with ``0000:``."""
    gpu = place("pci0008:00", "0008:00:00.0", "0008:01:00.0", "0008:02:01.0", "0008:04:00.0")
    near = place("pci0008:00", "0008:00:00.0", "0008:01:00.0", "0008:02:00.0", "0008:03:00.0")
    vmd = place("pci10000:e0", "10000:e0:01.0", "10000:e1:00.0")
    nics = {pci("0008:03:00.0"): near, pci("0000:18:00.0"): NIC_A, pci("10000:e1:00.0"): vmd}
    assert pairing.pairs({pci("0008:04:00.0"): gpu}, nics)[pci("0008:04:00.0")] == (pci("0008:03:00.0"),)


def test_two_equally_near_nics_are_both_paired() -> None:
    gpu = place("pci0000:15", "0000:15:01.0", "0000:19:00.0")
    one, other = (place("pci0000:15", "0000:15:02.0", f"0000:18:00.{function}") for function in (0, 1))
    nics = {pci("0000:18:00.1"): other, pci("0000:18:00.0"): one}
    assert pairing.pairs({pci("0000:19:00.0"): gpu}, nics)[pci("0000:19:00.0")] == (
        pci("0000:18:00.0"),
        pci("0000:18:00.1"),
    )


def test_numa_node_decides_where_pci_domains_are_separate() -> None:
    gpus = {pci("0009:01:00.0"): place("pci0009:00", "0009:00:00.0", "0009:01:00.0", numa_node=0)}
    nics = {
        pci("0000:03:00.0"): place("pci0000:00", "0000:00:00.0", "0000:03:00.0", numa_node=0),
        pci("0010:03:00.0"): place("pci0010:00", "0010:00:00.0", "0010:03:00.0", numa_node=1),
    }
    assert pairing.pairs(gpus, nics)[pci("0009:01:00.0")] == (pci("0000:03:00.0"),)


def test_gpu_with_unknown_place_has_no_nic() -> None:
    assert pairing.pairs({pci("0000:19:00.0"): place()}, {pci("0000:18:00.0"): NIC_A})[pci("0000:19:00.0")] == ()
    unknown = {pci("0000:18:00.0"): place("pci0000:40", "0000:18:00.0")}
    assert pairing.pairs({pci("0000:19:00.0"): GPU_A}, unknown)[pci("0000:19:00.0")] == ()
