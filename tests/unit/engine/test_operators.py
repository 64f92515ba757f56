"""What a person may say of devices, and what even a person's word does not make undone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.engine.operators import NoSuchDeviceError, StillHeldError
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator
from agent.model.findings import FindingKind
from agent.model.verdicts import Health
from tests.fakes import outside
from tests.unit.engine.operators_rig import GPU, NIC, Node, node_in


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with node_in(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", [outside.GPU.uuid, str(outside.GPU.pci), "0", str(outside.GPU.pci).upper()])
async def test_a_word_clears_the_device_by_any_of_its_names(node: Node, name: str) -> None:
    node.found(FindingKind.XID, ActionClass.REPLACE, device=GPU, code="64")
    done = node.operators.clear(name, who="uid 0")
    assert (done.device, done.over, done.still_seen) == (outside.GPU.uuid, ("Xid 64",), ())
    assert node.health(outside.GPU.uuid) is Health.HEALTHY
    assert node.forgotten == [outside.GPU.uuid]


async def test_what_is_still_seen_is_no_matter_of_words(node: Node) -> None:
    nic = DeviceLocator(pci=NIC)
    node.found(FindingKind.LINK_DOWN, ActionClass.REPLACE, device=nic)
    node.found(FindingKind.NIC_FATAL, ActionClass.RESET_DEVICE, device=nic)
    done = node.operators.clear(str(NIC), who="uid 0")
    assert (done.over, done.still_seen) == (("NicFatal",), ("LinkDown",))
    assert node.health(str(NIC)) is Health.UNHEALTHY


async def test_a_device_that_nobody_knows_is_named_with_those_there_are(node: Node) -> None:
    with pytest.raises(NoSuchDeviceError, match=f"no device GPU-7 on this node; there are {outside.GPU.uuid}"):
        node.operators.clear("GPU-7", who="uid 0")


async def test_every_device_that_is_there_or_faulty_is_listed(node: Node) -> None:
    node.nics.append("0000:c2:00.0")  # nothing is held against it
    node.found(FindingKind.NIC_FATAL, ActionClass.RESET_DEVICE, device=DeviceLocator(pci=NIC))
    listed = {verdict.device: verdict.health for verdict in node.operators.verdicts()}
    assert listed == {
        outside.GPU.uuid: Health.HEALTHY,
        str(NIC): Health.UNHEALTHY,
        "0000:c2:00.0": Health.UNKNOWN,  # here nobody says that it is there
    }


async def test_the_driver_is_taken_up_again_when_the_time_is_up(node: Node) -> None:
    await node.operators.release(seconds=0.01, timeout=1.0, who="uid 0")
    assert not node.handles.held
    async with asyncio.timeout(60):
        await node.handles.resumed.wait()
    assert node.handles.held


async def test_the_driver_is_taken_up_again_at_a_word(node: Node) -> None:
    await node.operators.release(seconds=3600.0, timeout=1.0, who="uid 0")
    node.operators.resume()
    assert node.handles.held


async def test_a_driver_that_hangs_is_not_said_to_be_let_go_of(node: Node) -> None:
    node.handles.hangs = True
    with pytest.raises(StillHeldError, match="reboot the node"):
        await node.operators.release(seconds=1.0, timeout=0.01, who="uid 0")
    assert node.handles.resumed.is_set()


async def test_the_driver_is_taken_up_again_when_who_asked_goes_away_meanwhile(node: Node) -> None:
    asking = asyncio.current_task()
    assert asking is not None
    node.handles.on_release = asking.cancel  # what the server does when the connection is gone
    node.handles.slow = True
    with pytest.raises(asyncio.CancelledError):
        await node.operators.release(seconds=3600.0, timeout=60.0, who="uid 0")
    asking.uncancel()
    assert node.handles.held


@pytest.mark.parametrize("kind", [FindingKind.NVML_ERROR, FindingKind.REPORTED_UNHEALTHY])
async def test_what_its_source_tells_once_and_still_sees_is_not_cleared(node: Node, kind: FindingKind) -> None:
    node.found(kind, ActionClass.OBSERVE, device=GPU)
    assert node.operators.clear(outside.GPU.uuid, who="uid 0").over == ()
    assert node.health(outside.GPU.uuid) is Health.DEGRADED
