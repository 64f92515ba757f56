"""NICs, their names and their ports, from a sysfs made of files."""

import errno
import os
from pathlib import Path

import pytest

from kubemend.agent.health.nic import pairing
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.nics import LinkLayer, Nic, NicInventory, RdmaPort
from kubemend.agent.sources.network.sysfs import Sysfs
from tests.fakes.sysfs_tree import DOWN, FakePort, SysfsTree

ALL = frozenset({"eth1"})
NIC, GPU = "0008:03:00.0", "0008:04:00.0"


def pci(text: str) -> PciAddress:
    return PciAddress.parse(text)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")


@pytest.fixture
def sysfs(tree: SysfsTree) -> Sysfs:
    return Sysfs(tree.root)


def nics(sysfs: Sysfs) -> tuple[Nic, ...]:
    return sysfs.scan().nics


def test_nic_is_a_function_with_netdev_and_rdma_device(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC, bus="pci0008:00", bridges=("0008:00:00.0",), numa_node=1)
    tree.netdev(NIC, "eth1", port_name="p0")
    tree.rdma(NIC, "mlx5_0", FakePort(link_layer="Ethernet"))
    (nic,) = nics(sysfs)
    assert (nic.pci, nic.netdevs, nic.rdma_device, nic.driver) == (pci(NIC), ("eth1",), "mlx5_0", "mlx5_core")
    assert nic.ports == (RdmaPort("mlx5_0", 1, LinkLayer.ETHERNET),)
    assert (nic.ports[0].name, nic.ports[0].link_layer) == ("mlx5_0/1", LinkLayer.ETHERNET)
    assert nic.model == "15b3:1021:15b3:0041"
    assert nic.place.path == ("pci0008:00", "0008:00:00.0", NIC)
    assert nic.place.numa_node == 1
    assert nic.names == {NIC, "eth1", "mlx5_0"}


def test_port_without_readable_link_layer_is_omitted(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.netdev(NIC, "eth1")
    tree.rdma(NIC, "mlx5_0", FakePort("Ethernet"), FakePort("Unknown"), FakePort("Ethernet"))
    (tree.port_directory("mlx5_0", 3) / "link_layer").unlink()
    (nic,) = nics(sysfs)
    assert [port.link_layer for port in nic.ports] == [LinkLayer.ETHERNET, LinkLayer.UNSPECIFIED]


def test_infiniband_adapter_without_netdev_is_a_nic(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC, pci_class="0x020700")
    tree.rdma(NIC, "mlx5_0", FakePort(), FakePort(state=DOWN))
    (nic,) = nics(sysfs)
    assert [(port.name, port.link_layer) for port in nic.ports] == [
        ("mlx5_0/1", LinkLayer.INFINIBAND),
        ("mlx5_0/2", LinkLayer.INFINIBAND),
    ]


def test_virtio_adapter_has_its_netdev_one_level_down(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC, driver="virtio-pci")
    tree.netdev(NIC, "eth0", below="virtio2")
    assert [nic.netdevs for nic in nics(sysfs)] == [("eth0",)]


@pytest.mark.parametrize("what", ["gpu", "virtual function", "veth", "nothing made"])
def test_other_functions_are_not_nics(what: str, tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.netdev(NIC, "eth1")
    if what == "gpu":
        tree.function(GPU, pci_class="0x030200", driver="nvidia")
    elif what == "virtual function":
        tree.function(GPU, physical=NIC)
        tree.netdev(GPU, "eth1v0")
    elif what == "veth":
        tree.virtual_netdev("veth1")
    else:
        tree.function(GPU, driver="vfio-pci")
    assert [nic.pci for nic in nics(sysfs)] == [pci(NIC)]


def test_nic_knows_its_virtual_functions(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.netdev(NIC, "eth1")
    virtual = [f"0008:03:00.{function}" for function in (1, 2)]
    for address in virtual:
        tree.function(address, physical=NIC)
    inventory = NicInventory(nics(sysfs))
    (nic,) = inventory.nics
    assert nic.virtual_functions == tuple(map(pci, virtual))
    assert [inventory.by_pci(pci(address)) for address in (NIC, *virtual, GPU)] == [nic, nic, nic, None]


def test_netdevs_of_virtual_functions_are_excluded(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    for name, port_name in {"eth1": "p0", "eth1_0": "pf0vf0", "eth1_1": "c1pf0vf1", "eth1_s": "pf0sf88"}.items():
        tree.netdev(NIC, name, port_name=port_name)
    assert [nic.netdevs for nic in nics(sysfs)] == [("eth1",)]


def test_drivers_show_unbound_and_missing_functions(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function("0008:05:00.0")
    for address in (NIC, GPU):
        tree.function(address)
        tree.netdev(address, f"eth-{address[5:7]}")
    assert len(nics(sysfs)) == 2
    tree.unbind(NIC)
    tree.unplug(GPU)
    scan = sysfs.scan()
    assert scan.nics == ()
    assert dict(scan.drivers) == {pci(NIC): "", pci("0008:05:00.0"): "mlx5_core"}


@pytest.mark.parametrize("missing", ["bus/pci/devices", "bus"])
def test_missing_sysfs_raises(missing: str, tree: SysfsTree, sysfs: Sysfs) -> None:
    (tree.root / missing).rename(tree.root / "away")
    with pytest.raises(OSError, match="no PCI devices"):
        sysfs.scan()


def test_sysfs_that_vanishes_during_scan_raises(tree: SysfsTree, sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.function(NIC)
    tree.netdev(NIC, "eth1")
    listed, bus = os.listdir, tree.root / "bus"

    def list_once(directory: Path) -> list[str]:
        names = listed(directory)
        if bus.exists():
            bus.rename(tree.root / "away")
        return names

    monkeypatch.setattr(os, "listdir", list_once)
    with pytest.raises(OSError, match="no PCI devices"):
        sysfs.scan()


def test_unreadable_driver_is_not_a_missing_driver(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.netdev(NIC, "eth1")
    (tree.device(NIC) / "driver").unlink()
    (tree.device(NIC) / "driver").write_text("")  # readlink fails with EINVAL
    with pytest.raises(OSError) as failure:  # noqa: PT011 - only the errno matters
        sysfs.scan()
    assert failure.value.errno == errno.EINVAL


def test_ports_have_state_and_rate(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC, pci_class="0x020700")
    tree.rdma(
        NIC,
        "mlx5_0",
        FakePort(rate="2.5 Gb/sec (1X SDR)"),
        FakePort(state="2: INIT"),
        FakePort(state=DOWN, phys_state="3: Disabled"),
    )
    ports = sysfs.ports(nics(sysfs)).values()
    assert [(port.name, port.active, port.disabled, port.rate) for port in ports] == [
        ("ACTIVE", True, False, 2500),
        ("INIT", False, False, 400_000),
        ("DOWN", False, True, 400_000),
    ]


def test_down_roce_port_is_not_disabled_by_phys_state(tree: SysfsTree, sysfs: Sysfs) -> None:
    """mlx5 reports this for every RoCE port that is not active (mlx5_query_port_roce)."""
    tree.function(NIC)
    tree.rdma(NIC, "mlx5_0", FakePort(link_layer="Ethernet", state=DOWN, phys_state="3: Disabled"))
    assert [port.disabled for port in sysfs.ports(nics(sysfs)).values()] == [False]


def test_unreadable_port_is_omitted(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.rdma(NIC, "mlx5_0", FakePort(), FakePort())
    known = nics(sysfs)
    (tree.port_directory("mlx5_0", 1) / "state").write_text("")
    assert [port.number for port in sysfs.ports(known)] == [2]
    tree.unbind(NIC)
    assert sysfs.ports(known) == {}


def test_recreated_device_has_another_serial(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.rdma(NIC, "mlx5_0")
    (before,) = sysfs.ports(nics(sysfs)).values()
    directory = tree.root / "class/infiniband/mlx5_0"
    made = directory.resolve()
    made.rename(made.with_name("old"))  # so that its inode is not reused
    tree.root.joinpath("class/infiniband/mlx5_0").unlink()
    tree.rdma(NIC, "mlx5_0")
    (after,) = (state for port, state in sysfs.ports(nics(sysfs)).items() if port.device == "mlx5_0")
    assert before.serial != after.serial


@pytest.mark.parametrize(("speed", "read"), [(400_000, {"eth1": 400_000}), (-1, {}), (0, {})])
def test_speed_is_in_megabits_or_missing(speed: int, read: dict[str, int], tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.netdev(NIC, "eth1", speed=speed)
    assert sysfs.speeds(nics(sysfs), up=ALL) == read
    assert sysfs.speeds(nics(sysfs), up=frozenset()) == {}


COUNTED = FakePort(
    counters={"symbol_error": 3, "link_downed": 2, "port_xmit_data": 10**15}, hw_counters={"local_ack_timeout_err": 7}
)


def test_only_counters_with_a_limit_are_read(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.rdma(NIC, "mlx5_0", COUNTED)
    known = nics(sysfs)
    assert list(sysfs.counters(known, up=sysfs.ports(known)).values()) == [
        {"symbol_error": 3, "link_downed": 2, "local_ack_timeout_err": 7}
    ]


def test_counters_of_a_down_port_are_not_read(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.rdma(NIC, "mlx5_0", FakePort(state=DOWN, counters=COUNTED.counters))
    known = nics(sysfs)
    assert sysfs.counters(known, up=sysfs.ports(known)) == {}


@pytest.mark.parametrize("name", [NIC, "eth1", "mlx5_0"])
def test_unasked_nic_is_not_queried(name: str, tree: SysfsTree) -> None:
    tree.function(NIC)
    tree.netdev(NIC, "eth1")
    tree.rdma(NIC, "mlx5_0", COUNTED)
    askable = Sysfs(tree.root)
    states = askable.ports(nics(askable))
    sysfs = Sysfs(tree.root, unasked=frozenset({name}))
    known = nics(sysfs)
    assert [nic.rdma_device for nic in known] == ["mlx5_0"]
    assert [sysfs.ports(known), sysfs.speeds(known, up=ALL), sysfs.counters(known, up=states)] == [{}, {}, {}]


@pytest.mark.parametrize("what", ["state", "counters/symbol_error"])
def test_refused_query_is_suspended_for_a_while(what: str, tree: SysfsTree) -> None:
    """Each refusal writes a line to the kernel log: ``ACCESS_REG … failed``."""
    now = 1000.0
    sysfs = Sysfs(tree.root, clock=lambda: now)
    tree.function(NIC)
    tree.rdma(NIC, "mlx5_0", COUNTED)
    known = nics(sysfs)
    states = sysfs.ports(known)

    def read() -> bool:
        return bool(sysfs.ports(known) if what == "state" else sysfs.counters(known, up=states))

    refusing = tree.port_directory("mlx5_0") / what
    text = refusing.read_text()
    refusing.unlink()
    refusing.mkdir()  # reading it fails, as with EINVAL from the firmware
    assert not read()
    refusing.rmdir()
    refusing.write_text(text)
    assert not read()
    now += 300.0
    assert read()


def test_gpus_and_nics_are_paired_by_position(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(GPU, bus="pci0008:00", bridges=("0008:00:00.0", "0008:01:00.0"), pci_class="0x030200")
    tree.function(NIC, bus="pci0008:00", bridges=("0008:00:00.0", "0008:01:00.0"))
    tree.function("0000:18:00.0", bus="pci0000:15", bridges=("0000:15:01.0",))
    tree.netdev(NIC, "eth1")
    tree.netdev("0000:18:00.0", "eth0")
    places = {nic.pci: nic.place for nic in nics(sysfs)}
    assert pairing.pairs({pci(GPU): sysfs.place(pci(GPU))}, places) == {pci(GPU): (pci(NIC),)}
    assert sysfs.place(pci("0000:ff:00.0")).path == ()


def test_only_netdevs_of_devices_have_a_device(tree: SysfsTree, sysfs: Sysfs) -> None:
    tree.function(NIC)
    tree.netdev(NIC, "eth1")
    tree.virtual_netdev("veth1")
    assert [sysfs.has_device(name) for name in ("eth1", "veth1", "gone")] == [True, False, False]


def test_sysfs_of_this_machine_is_read() -> None:
    if not os.path.isdir("/sys/bus/pci/devices") or not os.listdir("/sys/bus/pci/devices"):  # noqa: PTH112, PTH208
        pytest.skip("this machine has no PCI bus")
    sysfs = Sysfs(Path("/sys"))
    known = nics(sysfs)
    states = sysfs.ports(known)
    sysfs.speeds(known, up=frozenset(name for nic in known for name in nic.netdevs))
    sysfs.counters(known, up=states)
