"""The NVML source on a healthy node: it reads, answers, reports no fault, and closes NVML. Reads only."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.sources.nvml.protocol import Condition, DevicesAnswer
from kubemend.agent.sources.nvml.source import NvmlSource
from kubemend.common.components import ComponentState, ComponentStatus

PATIENCE = 45.0  # seconds; nvmlInit without persistence mode takes several per GPU


@dataclass
class Node:
    """A running source, and its findings."""

    source: NvmlSource
    findings: list[Finding] = field(default_factory=list)
    statuses: asyncio.Queue[ComponentStatus] = field(default_factory=asyncio.Queue)

    async def ready(self) -> None:
        """Wait until NVML answers for every GPU."""
        async with asyncio.timeout(PATIENCE):
            while (await self.statuses.get()).state is not ComponentState.READY:
                pass


@pytest.fixture
async def node(nvml_env: dict[str, str]) -> AsyncIterator[Node]:
    """A source on the NVML under test, once it is ready."""
    findings: list[Finding] = []
    statuses: asyncio.Queue[ComponentStatus] = asyncio.Queue()
    source = NvmlSource(
        emit=findings.append, classify=lambda kind, code: ActionClass.NONE, report=statuses.put_nowait, env=nvml_env
    )
    task = asyncio.create_task(source.run())
    node = Node(source=source, findings=findings, statuses=statuses)
    await node.ready()
    yield node
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_inventory_is_complete_and_its_gpus_answer(node: Node) -> None:
    uuids = [gpu.uuid for gpu in node.source.inventory.gpus]

    answer = await node.source.query(uuids, timeout=PATIENCE)

    assert uuids
    assert node.source.inventory.complete
    assert isinstance(answer, DevicesAnswer)
    assert all(device.condition is Condition.ANSWERS for device in answer.devices)
    assert [device.uuid for device in answer.devices] == uuids


async def test_a_healthy_node_gives_no_findings(node: Node) -> None:
    assert [finding for finding in node.findings if finding.kind is not FindingKind.FAULT_OVER] == []


async def test_missing_gpu_does_not_answer(node: Node) -> None:
    answer = await node.source.query([DeviceId("GPU-00000000-0000-0000-0000-000000000000")], timeout=PATIENCE)

    assert isinstance(answer, DevicesAnswer)
    assert answer.devices[0].condition is Condition.UNREADABLE


async def test_nvml_is_released_and_reacquired(node: Node) -> None:
    before = node.source.inventory.gpus

    assert await node.source.release(timeout=PATIENCE)
    assert node.source.worker_pid is None
    node.source.resume()
    await node.ready()

    assert node.source.inventory.gpus == before
