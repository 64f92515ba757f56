"""The network source on a node of files: the effects of uevents, ports and counters, also of unreadable ones."""

import dataclasses
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubemend.agent.health.nic.hysteresis import FaultState
from kubemend.agent.health.nic.nic_inventory_state import NicMemory
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import FindingKind, Source
from kubemend.agent.sources.network.source import Periods
from kubemend.common.components import ComponentState
from tests import eventually
from tests.fakes.netlink import FakeKernel
from tests.fakes.nic_node import BOOT, ONE, QUICK, TWO, NicNode, Notes
from tests.fakes.sysfs_tree import DOWN, FakePort, SysfsTree

SELDOM = Periods(ports=3600.0, details=3600.0, scan=3600.0, deadline=60.0, retry=0.05)
"""Periods so long that only events cause checks."""


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
    """Replace a file by the hanging file."""
    return hanging.rename(path)


def release(path: Path) -> None:
    """Let the reader of the hanging file read an empty file, and remove the file."""
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    path.unlink()
    os.close(writer)


async def ready(notes: Notes) -> None:
    await notes.until(lambda: notes.state is ComponentState.READY)


async def emitted(notes: Notes, kind: FindingKind, pci: str = ONE) -> str:
    await notes.until(lambda: kind in notes.held(pci))
    return notes.held(pci)[kind]


async def is_over(notes: Notes, kind: FindingKind, pci: str = ONE) -> None:
    await notes.until(lambda: notes.over(pci, kind))


async def test_finding_has_the_nic_and_the_catalogs_class(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_DOWN)
        kernel.carrier("eth1", up=False)
        await emitted(notes, FindingKind.LINK_DOWN)
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


async def test_defect_9_nic_off_the_bus_is_lost_immediately(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, periods=SELDOM):
        await ready(notes)
        await is_over(notes, FindingKind.NIC_LOST)
        node.tree.unplug(ONE)
        kernel.uevent("remove", f"/devices/pci0000:00/{ONE}", "pci")
        assert "no longer on the PCI bus" in await emitted(notes, FindingKind.NIC_LOST)


async def test_unbound_nic_is_lost_until_bound_again(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, periods=SELDOM) as source:
        await is_over(notes, FindingKind.LINK_DOWN)
        node.tree.unbind(ONE)
        kernel.remove("eth1")
        kernel.uevent("unbind", f"/devices/pci0000:00/{ONE}", "pci")
        assert await emitted(notes, FindingKind.NIC_LOST) == "its driver mlx5_core was unbound from it"
        assert [nic.pci for nic in source.inventory.nics] == [PciAddress.parse(ONE)]
        node.tree.bind(ONE, "mlx5_core")
        node.tree.netdev(ONE, "eth1")
        kernel.add("eth1")
        kernel.uevent("bind", f"/devices/pci0000:00/{ONE}", "pci")
        await is_over(notes, FindingKind.NIC_LOST)
    assert FindingKind.LINK_DOWN not in notes.held(ONE)


async def test_nic_lost_while_no_agent_ran_is_reported(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    async with node.running(notes):
        await is_over(notes, FindingKind.NIC_LOST)
    node.tree.unplug(ONE)
    async with node.running(notes):
        await emitted(notes, FindingKind.NIC_LOST)


async def test_cleared_lost_nic_is_not_reported_again(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    async with node.running(notes) as source:
        await is_over(notes, FindingKind.NIC_LOST)
        node.tree.unplug(ONE)
        await emitted(notes, FindingKind.NIC_LOST)
        source.forget("GPU-fa4e0000-0000-4000-8000-000000000000")
        source.forget(ONE)
        assert [nic.pci for nic in source.inventory.nics] == [PciAddress.parse(TWO)]
        assert PciAddress.parse(ONE) not in notes.memory.nics
    before = len(notes.findings)
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_DOWN, TWO)
    assert PciAddress.parse(ONE) not in {finding.device.pci for finding in notes.findings[before:]}


async def test_cleared_down_link_counts_as_never_cabled(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes) as source:
        await is_over(notes, FindingKind.LINK_DOWN)
        kernel.carrier("eth1", up=False)
        await emitted(notes, FindingKind.LINK_DOWN)
        source.forget(ONE)
        before = len(notes.findings)
        await notes.until(lambda: PciAddress.parse(ONE) in {finding.device.pci for finding in notes.findings[before:]})
        assert FindingKind.LINK_DOWN not in {finding.kind for finding in notes.findings[before:]}
        kernel.carrier("eth1", up=True)
        await notes.until(lambda: bool(notes.memory.nics[PciAddress.parse(ONE)].links))
        kernel.carrier("eth1", up=False)
        await notes.until(lambda: FindingKind.LINK_DOWN in {finding.kind for finding in notes.findings[before:]})


async def test_uevents_of_other_devices_are_ignored(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
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
        await emitted(notes, FindingKind.LINK_DOWN, TWO)
        assert FindingKind.NIC_LOST not in notes.held(ONE)


@pytest.mark.parametrize("link_layer", ["InfiniBand", "Ethernet"])
async def test_port_that_becomes_inactive_is_down(link_layer: str, node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0", FakePort(link_layer))
    async with node.running(notes):
        await is_over(notes, FindingKind.RDMA_PORT_DOWN)
        node.tree.port("mlx5_0", FakePort(link_layer, state=DOWN, phys_state="2: Polling"))
        assert await emitted(notes, FindingKind.RDMA_PORT_DOWN) == "mlx5_0/1 is DOWN; it was active on this boot"
        node.tree.port("mlx5_0", FakePort(link_layer))
        await is_over(notes, FindingKind.RDMA_PORT_DOWN)


async def test_roce_port_is_checked_when_its_netdev_changes(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0", FakePort("Ethernet"))
    async with node.running(notes, periods=SELDOM):
        await is_over(notes, FindingKind.RDMA_PORT_DOWN)
        node.tree.port("mlx5_0", FakePort("Ethernet", state=DOWN))
        kernel.carrier("eth1", up=False)
        await emitted(notes, FindingKind.RDMA_PORT_DOWN)


@pytest.mark.parametrize(("stays", "kinds"), [(False, set()), (True, {FindingKind.RDMA_PORT_DOWN})])
async def test_agent_that_was_stopped_reads_a_port_again_before_it_is_down(
    node: NicNode, notes: Notes, monkeypatch: pytest.MonkeyPatch, stays: bool, kinds: set[FindingKind]
) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0", FakePort("Ethernet"))
    limits = dataclasses.replace(QUICK, roce_down_delay=5.0)
    async with node.running(notes, limits=limits) as source:

        def fault() -> FaultState:
            return source._state[PciAddress.parse(ONE)].fault_states[FindingKind.RDMA_PORT_DOWN, "mlx5_0/1"]

        await is_over(notes, FindingKind.RDMA_PORT_DOWN)
        node.tree.port("mlx5_0", FakePort("Ethernet", state=DOWN))
        await eventually.true(lambda: fault().begins_at is not None)
        if not stays:
            node.tree.port("mlx5_0", FakePort("Ethernet"))
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 20.0)
        await eventually.true(lambda: fault().emitted is True if stays else fault().begins_at is None)
    assert {finding.kind for finding in notes.findings} - {FindingKind.FAULT_OVER} == kinds


async def test_roce_port_of_disabled_netdev_is_not_a_fault(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    node.nic(TWO, "eth2")
    for pci, device in {ONE: "mlx5_0", TWO: "mlx5_1"}.items():
        node.tree.rdma(pci, device, FakePort("Ethernet"))
    async with node.running(notes):
        await is_over(notes, FindingKind.RDMA_PORT_DOWN)
        await is_over(notes, FindingKind.RDMA_PORT_DOWN, TWO)
        kernel.admin("eth1", up=False)
        kernel.carrier("eth2", up=False)
        await emitted(notes, FindingKind.LINK_DOWN, TWO)
        node.tree.port("mlx5_0", FakePort("Ethernet", state=DOWN))
        node.tree.port("mlx5_1", FakePort("Ethernet", state=DOWN))
        await emitted(notes, FindingKind.RDMA_PORT_DOWN, TWO)
    assert notes.held(ONE) == {}


async def test_growing_errors_are_reported(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    counted = FakePort(counters={"local_link_integrity_errors": 4, "link_downed": 0})
    node.tree.rdma(ONE, "mlx5_0", counted)
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_SLOW)  # then the counters were read, too
        node.tree.port("mlx5_0", FakePort(counters={"local_link_integrity_errors": 5, "link_downed": 0}))
        assert (await emitted(notes, FindingKind.RDMA_ERRORS)).startswith("mlx5_0/1: local_link_integrity_errors grew")


async def test_infiniband_drops_between_two_checks_are_flapping(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0", FakePort(counters={"link_downed": 4}))
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_SLOW)  # then the counters were read, too
        node.tree.port("mlx5_0", FakePort(counters={"link_downed": 7}))
        assert (await emitted(notes, FindingKind.LINK_FLAPPING)).startswith("mlx5_0/1 was lost 3 times")


async def test_nic_below_its_peers_is_slow(node: NicNode, notes: Notes) -> None:
    for number in range(3):
        node.nic(f"0000:2{number}:00.0", f"eth2{number}")
    node.tree.function(ONE)
    node.tree.netdev(ONE, "eth1", speed=200_000)
    node.links.add("eth1")
    async with node.running(notes):
        assert await emitted(notes, FindingKind.LINK_SLOW) == "eth1 runs at 200000 Mb/s, its peers at 400000"
        node.tree.speed("eth1", 400_000)
        await is_over(notes, FindingKind.LINK_SLOW)


async def test_speeds_are_read_as_soon_as_links_are_up(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, periods=SELDOM):
        await is_over(notes, FindingKind.LINK_SLOW)
        kernel.carrier("eth1", up=False)
        node.tree.speed("eth1", 100_000)
        kernel.carrier("eth1", up=True)
        assert await emitted(notes, FindingKind.LINK_SLOW) == "eth1 runs at 100000 Mb/s; it had 400000 on this boot"


async def test_node_without_nics_is_idle_and_opens_no_link_socket(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    async with node.running(notes) as source:
        await notes.until(lambda: notes.state is ComponentState.IDLE)
        assert source.inventory.complete
        assert kernel.link_listeners == []


async def test_ignored_nic_is_excluded(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1", up=False)
    async with node.running(notes):
        await ready(notes)
    async with node.running(notes, ignored=frozenset({ONE})) as source:
        await notes.until(lambda: notes.state is ComponentState.IDLE)
        assert source.inventory.nics == ()


async def test_memory_of_the_boot_is_passed_on(node: NicNode, notes: Notes) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await notes.until(lambda: bool(notes.memory.nics and notes.memory.nics[PciAddress.parse(ONE)].links))
    assert notes.memory == NicMemory(BOOT, notes.memory.nics)
    assert notes.memory.nics[PciAddress.parse(ONE)].driver == "mlx5_core"


async def test_unreadable_sysfs_loses_no_nic_and_links_are_followed(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    devices = node.tree.root / "bus/pci/devices"
    async with node.running(notes) as source:
        await ready(notes)
        await is_over(notes, FindingKind.LINK_DOWN)
        devices.rename(devices.with_name("away"))
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)
        assert "bus/pci/devices" in notes.statuses[-1].message
        assert not source.inventory.complete
        kernel.carrier("eth1", up=False)
        await emitted(notes, FindingKind.LINK_DOWN)
        assert FindingKind.NIC_LOST not in notes.held(ONE)
        devices.with_name("away").rename(devices)
        await ready(notes)


async def test_hanging_check_hides_no_lost_carrier(
    node: NicNode, notes: Notes, kernel: FakeKernel, hanging: Path
) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0")
    impatient = Periods(ports=0.05, details=0.05, scan=0.2, deadline=0.5, retry=0.05)
    async with node.running(notes, periods=impatient):
        await ready(notes)
        await is_over(notes, FindingKind.LINK_DOWN)
        state = put(hanging, node.tree.port_directory("mlx5_0") / "state")
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)
        assert notes.statuses[-1].message.startswith(f"{state} cannot be read: no answer in time")
        kernel.carrier("eth1", up=False)
        await emitted(notes, FindingKind.LINK_DOWN)
        assert FindingKind.RDMA_PORT_DOWN not in notes.held(ONE)
        release(state)
        node.tree.port("mlx5_0", FakePort())
        await ready(notes)


async def test_links_are_followed_while_a_device_hangs(
    node: NicNode, notes: Notes, kernel: FakeKernel, hanging: Path
) -> None:
    node.nic(ONE, "eth1")
    node.tree.rdma(ONE, "mlx5_0")
    state = put(hanging, node.tree.port_directory("mlx5_0") / "state")
    async with node.running(notes, periods=dataclasses.replace(SELDOM, deadline=0.5)):
        await is_over(notes, FindingKind.LINK_DOWN)
        kernel.carrier("eth1", up=False)
        await emitted(notes, FindingKind.LINK_DOWN)
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)
        release(state)


async def test_component_without_netlink_is_degraded_and_recovers(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    kernel.refusal = OSError(errno.EPERM, "Operation not permitted")
    async with node.running(notes) as source:
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)
        assert "hostNetwork" in notes.statuses[-1].hint
        assert not source.inventory.complete  # a NIC without link information is not known to be healthy
        kernel.refusal = None
        await ready(notes)
        assert source.inventory.complete


async def test_broken_socket_is_replaced_and_missed_changes_are_reported(
    node: NicNode, notes: Notes, kernel: FakeKernel
) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes):
        await is_over(notes, FindingKind.LINK_DOWN)
        (listener,) = kernel.link_listeners
        listener.hear(OSError(errno.EBADF, "it broke"))
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)
        kernel.carrier("eth1", up=False)
        await emitted(notes, FindingKind.LINK_DOWN)
    assert listener.closed


async def test_lost_uevents_are_counted_and_bus_is_scanned(node: NicNode, notes: Notes, kernel: FakeKernel) -> None:
    node.nic(ONE, "eth1")
    async with node.running(notes, periods=SELDOM):
        await is_over(notes, FindingKind.NIC_LOST)
        node.tree.unplug(ONE)
        kernel.uevent_listeners[0].hear(None)
        await emitted(notes, FindingKind.NIC_LOST)
    assert notes.overflows == ["uevents"]
