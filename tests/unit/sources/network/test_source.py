"""The source on a node of files: what uevents, ports and counters lead to, also when they cannot be read."""

import dataclasses
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.health.nic_memory import NicMemory
from agent.model.actions import ActionClass
from agent.model.devices import PciAddress
from agent.model.findings import FindingKind, Source
from agent.sources.network.source import Periods
from common.parts import PartState
from tests.fakes.netlink import FakeKernel
from tests.fakes.nic_node import BOOT, ONE, TWO, NicNode, Notes
from tests.fakes.sysfs_tree import DOWN, FakePort, SysfsTree

SELDOM = Periods(ports=3600.0, details=3600.0, scan=3600.0, deadline=60.0, retry=0.05)
"""What happens is told because something has happened, not because it was time to look."""


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def node(tmp_path: Path, kernel: FakeKernel) -> NicNode:
    return NicNode(SysfsTree(tmp_path / "sys"), kernel)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A file whose reader waits until ``release``."""
    path = tmp_path / "hanging"
    os.mkfifo(path)
    held = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path
    os.close(held)


def put(hanging: Path, path: Path) -> Path:
    """Put the hanging file in the place of another one."""
    return hanging.rename(path)


def release(path: Path) -> None:
    """Let whoever reads the hanging file read that it is empty, and take it away."""
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    path.unlink()
    os.close(writer)


async def ready(notes: Notes) -> None:
    await notes.until(lambda: notes.state is PartState.READY)


async def told(notes: Notes, kind: FindingKind, pci: str = ONE) -> str:
    await notes.until(lambda: kind in notes.held(pci))
    return notes.held(pci)[kind]


async def is_over(notes: Notes, kind: FindingKind, pci: str = ONE) -> None:
    await notes.until(lambda: notes.over(pci, kind))


async def test_a_finding_names_the_nic_and_the_catalogs_class(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_DOWN)
        kernel.carrier("eth1", up=False)
        await told(notes, FindingKind.LINK_DOWN)
    over = next(finding for finding in notes.findings if finding.code == "LinkDown")
    down = notes.findings[-1]
    assert (down.kind, down.code, down.action, down.source) == (
        FindingKind.LINK_DOWN,
        "",
        ActionClass.OBSERVE,
        Source.NETLINK,
    )
    assert down.device.pci == PciAddress.parse(ONE)
    assert (over.kind, over.action) == (FindingKind.FAULT_OVER, ActionClass.NONE)
    assert len({finding.key for finding in notes.findings}) == len(notes.findings)
    assert down.boot_seconds is not None


async def test_defect_9_a_nic_off_the_bus_is_lost_as_soon_as_the_kernel_says_so(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, periods=SELDOM):
        await ready(notes)
        await is_over(notes, FindingKind.NIC_LOST)
        node.tree.unplug(ONE)
        kernel.uevent("remove", f"/devices/pci0000:00/{ONE}", "pci")
        assert "not on the PCI bus" in await told(notes, FindingKind.NIC_LOST)


async def test_an_unbound_nic_is_lost_and_over_when_it_is_bound_again(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, periods=SELDOM) as source:
        await is_over(notes, FindingKind.LINK_DOWN)
        node.tree.unbind(ONE)
        kernel.remove("eth1")
        kernel.uevent("unbind", f"/devices/pci0000:00/{ONE}", "pci")
        assert await told(notes, FindingKind.NIC_LOST) == "its driver mlx5_core was unbound from it"
        assert [nic.pci for nic in source.inventory.nics] == [PciAddress.parse(ONE)]
        node.tree.bind(ONE, "mlx5_core")
        node.tree.netdev(ONE, "eth1")
        kernel.add("eth1")
        kernel.uevent("bind", f"/devices/pci0000:00/{ONE}", "pci")
        await is_over(notes, FindingKind.NIC_LOST)
    assert FindingKind.LINK_DOWN not in notes.held(ONE)


async def test_a_nic_that_was_lost_while_no_agent_ran_is_told(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    async with node.running(notes):
        await is_over(notes, FindingKind.NIC_LOST)
    node.tree.unplug(ONE)
    async with node.running(notes):
        await told(notes, FindingKind.NIC_LOST)


async def test_a_lost_nic_that_is_dealt_with_is_not_told_of_again(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    async with node.running(notes) as source:
        await is_over(notes, FindingKind.NIC_LOST)
        node.tree.unplug(ONE)
        await told(notes, FindingKind.NIC_LOST)
        source.forget("GPU-fa4e0000-0000-4000-8000-000000000000")
        source.forget(ONE)
        assert [nic.pci for nic in source.inventory.nics] == [PciAddress.parse(TWO)]
        assert PciAddress.parse(ONE) not in notes.memory.nics
    before = len(notes.findings)
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_DOWN, TWO)
    assert PciAddress.parse(ONE) not in {finding.device.pci for finding in notes.findings[before:]}


async def test_a_link_that_is_down_and_dealt_with_counts_as_never_cabled(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes) as source:
        await is_over(notes, FindingKind.LINK_DOWN)
        kernel.carrier("eth1", up=False)
        await told(notes, FindingKind.LINK_DOWN)
        source.forget(ONE)
        before = len(notes.findings)
        await notes.until(lambda: PciAddress.parse(ONE) in {finding.device.pci for finding in notes.findings[before:]})
        assert FindingKind.LINK_DOWN not in {finding.kind for finding in notes.findings[before:]}
        kernel.carrier("eth1", up=True)
        await notes.until(lambda: bool(notes.memory.nics[PciAddress.parse(ONE)].links))
        kernel.carrier("eth1", up=False)
        await notes.until(lambda: FindingKind.LINK_DOWN in {finding.kind for finding in notes.findings[before:]})


async def test_uevents_of_other_devices_are_passed_over(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    async with node.running(notes, periods=SELDOM):
        await is_over(notes, FindingKind.NIC_LOST)
        await is_over(notes, FindingKind.NIC_LOST, TWO)
        await is_over(notes, FindingKind.LINK_DOWN, TWO)
        node.tree.unplug(ONE)
        for subsystem in ("net", "queues", "block", "usb"):
            kernel.uevent("remove", "/devices/x", subsystem)
        kernel.carrier("eth2", up=False)
        await told(notes, FindingKind.LINK_DOWN, TWO)
        assert FindingKind.NIC_LOST not in notes.held(ONE)


@pytest.mark.parametrize("link_layer", ["InfiniBand", "Ethernet"])
async def test_a_port_that_is_not_active_any_more_is_down(link_layer: str, node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0", FakePort(link_layer))
    async with node.running(notes):
        await is_over(notes, FindingKind.RDMA_PORT_DOWN)
        node.tree.port("mlx5_0", FakePort(link_layer, state=DOWN, phys_state="2: Polling"))
        assert await told(notes, FindingKind.RDMA_PORT_DOWN) == "mlx5_0/1 is DOWN; it was active on this boot"
        node.tree.port("mlx5_0", FakePort(link_layer))
        await is_over(notes, FindingKind.RDMA_PORT_DOWN)


async def test_a_roce_port_is_looked_at_when_its_netdev_changes(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0", FakePort("Ethernet"))
    async with node.running(notes, periods=SELDOM):
        await is_over(notes, FindingKind.RDMA_PORT_DOWN)
        node.tree.port("mlx5_0", FakePort("Ethernet", state=DOWN))
        kernel.carrier("eth1", up=False)
        await told(notes, FindingKind.RDMA_PORT_DOWN)


async def test_a_roce_port_whose_netdev_was_taken_down_is_no_fault(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    for pci, device in {ONE: "mlx5_0", TWO: "mlx5_1"}.items():
        node.tree.rdma(pci, device, FakePort("Ethernet"))
    async with node.running(notes):
        await is_over(notes, FindingKind.RDMA_PORT_DOWN)
        await is_over(notes, FindingKind.RDMA_PORT_DOWN, TWO)
        kernel.admin("eth1", up=False)
        kernel.carrier("eth2", up=False)
        await told(notes, FindingKind.LINK_DOWN, TWO)
        node.tree.port("mlx5_0", FakePort("Ethernet", state=DOWN))
        node.tree.port("mlx5_1", FakePort("Ethernet", state=DOWN))
        await told(notes, FindingKind.RDMA_PORT_DOWN, TWO)
    assert notes.held(ONE) == {}


async def test_errors_that_grow_are_told(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    counted = FakePort(counters={"local_link_integrity_errors": 4, "link_downed": 0})
    node.tree.rdma(ONE, "mlx5_0", counted)
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_SLOW)  # then the counters were read, too
        node.tree.port("mlx5_0", FakePort(counters={"local_link_integrity_errors": 5, "link_downed": 0}))
        assert (await told(notes, FindingKind.RDMA_ERRORS)).startswith("mlx5_0/1: local_link_integrity_errors grew")


async def test_an_infiniband_port_that_was_lost_between_two_looks_is_flapping(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0", FakePort(counters={"link_downed": 4}))
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_SLOW)  # then the counters were read, too
        node.tree.port("mlx5_0", FakePort(counters={"link_downed": 7}))
        assert (await told(notes, FindingKind.LINK_FLAPPING)).startswith("mlx5_0/1 was lost 3 times")


async def test_a_nic_below_its_peers_is_slow(node: NicNode, notes: Notes) -> None:
    for number in range(3):
        node.nic(f"0000:2{number}:00.0", f"eth2{number}")
    node.tree.function(ONE)
    node.tree.netdev(ONE, "eth1", speed=200_000)
    node.links.add("eth1")
    async with node.running(notes):
        assert await told(notes, FindingKind.LINK_SLOW) == "eth1 runs at 200000 Mb/s, its peers at 400000"
        node.tree.speed("eth1", 400_000)
        await is_over(notes, FindingKind.LINK_SLOW)


async def test_speeds_are_read_as_soon_as_links_are_up(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, periods=SELDOM):
        await is_over(notes, FindingKind.LINK_SLOW)
        kernel.carrier("eth1", up=False)
        node.tree.speed("eth1", 100_000)
        kernel.carrier("eth1", up=True)
        assert await told(notes, FindingKind.LINK_SLOW) == "eth1 runs at 100000 Mb/s; it had 400000 on this boot"


async def test_a_node_without_nics_is_idle_and_listens_to_no_links(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    async with node.running(notes) as source:
        await notes.until(lambda: notes.state is PartState.IDLE)
        assert source.inventory.complete
        assert kernel.link_listeners == []


async def test_a_nic_that_is_ignored_is_none(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1", up=False)
    async with node.running(notes):
        await ready(notes)
    async with node.running(notes, ignored=frozenset({ONE})) as source:
        await notes.until(lambda: notes.state is PartState.IDLE)
        assert source.inventory.nics == ()


async def test_what_is_known_of_the_boot_is_given_out_to_be_kept(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await notes.until(lambda: bool(notes.memory.nics and notes.memory.nics[PciAddress.parse(ONE)].links))
    assert notes.memory == NicMemory(BOOT, notes.memory.nics)
    assert notes.memory.nics[PciAddress.parse(ONE)].driver == "mlx5_core"


async def test_while_sysfs_cannot_be_read_no_nic_is_lost_but_links_are_followed(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    devices = node.tree.root / "bus/pci/devices"
    async with node.running(notes) as source:
        await ready(notes)
        await is_over(notes, FindingKind.LINK_DOWN)
        devices.rename(devices.with_name("away"))
        await notes.until(lambda: notes.state is PartState.DEGRADED)
        assert "bus/pci/devices" in notes.statuses[-1].message
        assert not source.inventory.complete
        kernel.carrier("eth1", up=False)
        await told(notes, FindingKind.LINK_DOWN)
        assert FindingKind.NIC_LOST not in notes.held(ONE)
        devices.with_name("away").rename(devices)
        await ready(notes)


async def test_a_look_that_hangs_hides_no_lost_carrier(
    node: NicNode, notes: Notes, kernel: FakeKernel, hanging: Path
) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0")
    impatient = Periods(ports=0.05, details=0.05, scan=0.2, deadline=0.5, retry=0.05)
    async with node.running(notes, periods=impatient):
        await ready(notes)
        await is_over(notes, FindingKind.LINK_DOWN)
        state = put(hanging, node.tree.port_directory("mlx5_0") / "state")
        await notes.until(lambda: notes.state is PartState.DEGRADED)
        assert notes.statuses[-1].message.startswith(f"{state} cannot be read: no answer in time")
        kernel.carrier("eth1", up=False)
        await told(notes, FindingKind.LINK_DOWN)
        assert FindingKind.RDMA_PORT_DOWN not in notes.held(ONE)
        release(state)
        node.tree.port("mlx5_0", FakePort())
        await ready(notes)


async def test_links_are_followed_also_where_a_device_hangs_from_the_start(
    node: NicNode, notes: Notes, kernel: FakeKernel, hanging: Path
) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0")
    state = put(hanging, node.tree.port_directory("mlx5_0") / "state")
    async with node.running(notes, periods=dataclasses.replace(SELDOM, deadline=0.5)):
        await is_over(notes, FindingKind.LINK_DOWN)
        kernel.carrier("eth1", up=False)
        await told(notes, FindingKind.LINK_DOWN)
        await notes.until(lambda: notes.state is PartState.DEGRADED)
        release(state)


async def test_without_netlink_the_part_is_degraded_and_comes_back(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    kernel.refusal = OSError(errno.EPERM, "Operation not permitted")
    async with node.running(notes) as source:
        await notes.until(lambda: notes.state is PartState.DEGRADED)
        assert "hostNetwork" in notes.statuses[-1].mend
        assert not source.inventory.complete  # of a NIC whose links nobody tells of it is not said that it is well
        kernel.refusal = None
        await ready(notes)
        assert source.inventory.complete


async def test_a_socket_that_breaks_is_replaced_and_what_was_missed_is_told(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_DOWN)
        (listener,) = kernel.link_listeners
        listener.hear(OSError(errno.EBADF, "it broke"))
        await notes.until(lambda: notes.state is PartState.DEGRADED)
        kernel.carrier("eth1", up=False)
        await told(notes, FindingKind.LINK_DOWN)
    assert listener.closed


async def test_lost_uevents_are_counted_and_the_bus_is_scanned(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, periods=SELDOM):
        await is_over(notes, FindingKind.NIC_LOST)
        node.tree.unplug(ONE)
        kernel.uevent_listeners[0].hear(None)
        await told(notes, FindingKind.NIC_LOST)
    assert notes.overflows == ["uevents"]
