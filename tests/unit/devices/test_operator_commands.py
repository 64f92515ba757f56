"""Carry out operator commands on devices, within the limits of a clear."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubemend.agent.devices.operator_commands import NoSuchDeviceError, StillHeldError
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DeviceLocator
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.verdicts import Health
from tests.fakes import outside
from tests.unit.devices.operators_rig import GPU, NIC, Node, node_in


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with node_in(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", [outside.GPU.uuid, str(outside.GPU.pci), "0", f"0000{outside.GPU.pci}"])
async def test_clear_accepts_any_name_of_device(node: Node, name: str) -> None:
    node.found(FindingKind.XID, ActionClass.REPLACE, device=GPU, code="64")
    done = node.operators.clear(name, operator="uid 0")
    assert (done.device, done.over, done.still_seen) == (outside.GPU.uuid, ("Xid 64",), ())
    assert node.health(outside.GPU.uuid) is Health.HEALTHY
    assert node.forgotten == [outside.GPU.uuid]


async def test_clear_keeps_faults_that_source_still_sees(node: Node) -> None:
    node.found(FindingKind.ROW_REMAP_FAILED, ActionClass.REPLACE, device=GPU)
    node.found(FindingKind.XID, ActionClass.REPLACE, device=GPU, code="64")
    done = node.operators.clear(outside.GPU.uuid, operator="uid 0")
    assert (done.over, done.still_seen) == (("Xid 64",), ("RowRemapFailed",))
    assert node.health(outside.GPU.uuid) is Health.UNHEALTHY


async def test_clear_reports_a_fault_as_over_that_its_source_cannot_see_any_more(node: Node) -> None:
    node.found(FindingKind.ROW_REMAP_FAILED, ActionClass.REPLACE, device=GPU)
    node.found(FindingKind.ECC_UNCORRECTED, ActionClass.OBSERVE, device=GPU)
    node.unobserved.add(FindingKind.ECC_UNCORRECTED)
    done = node.operators.clear(outside.GPU.uuid, operator="uid 0")
    assert (done.over, done.still_seen) == (("EccUncorrected",), ("RowRemapFailed",))


async def test_clear_ends_every_fault_of_a_nic(node: Node) -> None:
    nic = DeviceLocator(pci=NIC)
    node.found(FindingKind.LINK_DOWN, ActionClass.REPLACE, device=nic)
    node.found(FindingKind.NIC_FATAL, ActionClass.RESET_DEVICE, device=nic)
    done = node.operators.clear(str(NIC), operator="uid 0")
    assert (done.over, done.still_seen) == (("LinkDown", "NicFatal"), ())
    assert str(NIC) not in {verdict.device for verdict in node.operators.verdicts()}


@pytest.mark.parametrize("complete", [True, False])
async def test_clear_ends_every_fault_of_a_gpu_that_was_exchanged(node: Node, *, complete: bool) -> None:
    """While the driver does not answer, its absence from the list proves nothing."""
    old = DeviceLocator(uuid=DeviceId("GPU-exchanged"))
    node.found(FindingKind.ROW_REMAP_FAILED, ActionClass.REPLACE, device=old)
    node.devices.inventory = DeviceInventory(gpus=(outside.GPU,), complete=complete)
    done = node.operators.clear("GPU-exchanged", operator="uid 0")
    assert bool(done.over) is complete
    assert bool(done.still_seen) is not complete
    assert ("GPU-exchanged" in {verdict.device for verdict in node.operators.verdicts()}) is not complete


async def test_clear_of_unknown_device_lists_known_ones(node: Node) -> None:
    with pytest.raises(NoSuchDeviceError, match=f"GPU-7 not found on this node. Its devices: {outside.GPU.uuid}"):
        node.operators.clear("GPU-7", operator="uid 0")


async def test_verdicts_list_present_and_faulty_devices(node: Node) -> None:
    node.nics.append("0000:c2:00.0")  # it has no active fault
    node.found(FindingKind.NIC_FATAL, ActionClass.RESET_DEVICE, device=DeviceLocator(pci=NIC))
    listed = {verdict.device: verdict.health for verdict in node.operators.verdicts()}
    assert listed == {
        outside.GPU.uuid: Health.HEALTHY,
        str(NIC): Health.UNHEALTHY,
        "0000:c2:00.0": Health.UNKNOWN,  # no source reports its presence here
    }


async def test_release_resumes_driver_after_timeout(node: Node) -> None:
    await node.operators.release(seconds=0.01, timeout=1.0, operator="uid 0")
    assert not node.handles.held
    async with asyncio.timeout(60):
        await node.handles.resumed.wait()
    assert node.handles.held


async def test_release_resumes_driver_on_command(node: Node) -> None:
    await node.operators.release(seconds=3600.0, timeout=1.0, operator="uid 0")
    node.operators.resume()
    assert node.handles.held


async def test_second_release_is_not_ended_by_the_timeout_of_the_first(node: Node) -> None:
    await node.operators.release(seconds=0.0, timeout=1.0, operator="uid 0")
    await node.operators.release(seconds=3600.0, timeout=1.0, operator="uid 0")
    for _ in range(2):
        await asyncio.sleep(0)  # the loop would handle the first timeout
    assert not node.handles.held


async def test_release_of_hanging_driver_fails(node: Node) -> None:
    node.handles.hangs = True
    with pytest.raises(StillHeldError, match="Reboot the node"):
        await node.operators.release(seconds=1.0, timeout=0.01, operator="uid 0")
    assert node.handles.resumed.is_set()


async def test_release_resumes_driver_if_caller_disconnects(node: Node) -> None:
    asking = asyncio.current_task()
    assert asking is not None
    node.handles.on_release = asking.cancel  # as the server does when the connection is gone
    node.handles.slow = True
    with pytest.raises(asyncio.CancelledError):
        await node.operators.release(seconds=3600.0, timeout=60.0, operator="uid 0")
    asking.uncancel()
    assert node.handles.held


async def test_clear_keeps_fault_reported_once_and_still_seen(node: Node) -> None:
    node.found(FindingKind.NVML_ERROR, ActionClass.OBSERVE, device=GPU)
    assert node.operators.clear(outside.GPU.uuid, operator="uid 0").over == ()
    assert node.health(outside.GPU.uuid) is Health.DEGRADED


async def test_clear_ends_the_report_of_a_plugin_and_its_source_begins_again(node: Node) -> None:
    """No pod may show the device any more, and a DRA driver can be asked about none: without a clear it never ends."""
    node.found(FindingKind.REPORTED_UNHEALTHY, ActionClass.OBSERVE, device=GPU)
    assert node.operators.clear(outside.GPU.uuid, operator="uid 0").over == ("ReportedUnhealthy",)
    assert node.health(outside.GPU.uuid) is Health.HEALTHY
    assert node.forgotten == [outside.GPU.uuid]
