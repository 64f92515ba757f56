"""The CRI proxy: it changes nothing by default, and holds, refuses and loses calls on request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from hack.devnode.criproxy import CriProxy, Fault, Gate, Slow, When
from kubemend.agent.clients.cri import client, errors
from kubemend.agent.model.workloads import ContainerId, SandboxId
from kubemend.common import aio
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.fakes.cri_server import CriServer


@dataclass
class Node:
    """A runtime with one sandbox, and our client, which uses only the proxy."""

    server: CriServer
    proxy: CriProxy
    cri: client.CriClient
    sandbox: SandboxId

    async def create(self, *, attempt: int = 0) -> ContainerId:
        labels = {f"io.kubernetes.pod.{key}": key for key in ("name", "namespace", "uid")}
        config = api_pb2.ContainerConfig(
            metadata=api_pb2.ContainerMetadata(name="c", attempt=attempt),
            image=api_pb2.ImageSpec(image="busybox"),
            labels={**labels, "io.kubernetes.container.name": "c"},
        )
        return await self.cri.create_container(
            sandbox_id=self.sandbox, config=config, sandbox_config=api_pb2.PodSandboxConfig()
        )

    def states(self) -> list[int]:
        return [container.state for container in self.server.runtime.containers.values()]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with (
        CriServer(str(tmp_path / "cri.sock")) as server,
        CriProxy(upstream=tmp_path / "cri.sock", socket=tmp_path / "proxy.sock") as proxy,
        client.CriClient(str(proxy.socket), deadlines=client.Deadlines(read=5.0, change=5.0)) as cri,
    ):
        metadata = api_pb2.PodSandboxMetadata(name="p", uid="uid", namespace="default")
        answer = server.runtime.run_pod_sandbox(
            api_pb2.RunPodSandboxRequest(config=api_pb2.PodSandboxConfig(metadata=metadata))
        )
        yield Node(server, proxy, cri, SandboxId(answer.pod_sandbox_id))


async def test_calls_answers_and_refusals_go_through(node: Node) -> None:
    made = await node.create()
    assert [view.id for view in await node.cri.list_containers()] == [made]
    with pytest.raises(errors.NameReserved) as refusal:
        await node.create()
    assert refusal.value.holder == made
    with pytest.raises(errors.NotFound):
        await node.cri.start_container(ContainerId("none"))


async def test_events_go_through(node: Node) -> None:
    made = await node.create()
    async with contextlib.aclosing(node.cri.events()) as events:
        while (await anext(events)).container_id != made:
            pass


async def test_call_is_held_before_it_reaches_the_runtime(node: Node) -> None:
    made = await node.create()
    gate = Gate(lambda call: call.method == "StartContainer" and call.request.container_id == made)
    node.proxy.hooks.append(gate)
    starting = asyncio.create_task(node.cri.start_container(made))
    await gate.reached.wait()
    assert node.states() == [api_pb2.CONTAINER_CREATED]
    gate.open()
    await starting
    assert node.states() == [api_pb2.CONTAINER_RUNNING]


async def test_a_call_is_held_after_it_was_carried_out(node: Node) -> None:
    gate = Gate(lambda call: call.method == "CreateContainer", When.AFTER)
    node.proxy.hooks.append(gate)
    creating = asyncio.create_task(node.create())
    await gate.reached.wait()
    assert node.states() == [api_pb2.CONTAINER_CREATED]
    assert not creating.done()
    gate.open()
    assert await creating in node.server.runtime.containers


async def test_a_gate_holds_one_call_only(node: Node) -> None:
    gate = Gate(lambda call: call.method == "ListContainers")
    node.proxy.hooks.append(gate)
    listing = asyncio.create_task(node.cri.list_containers())
    await gate.reached.wait()
    assert await node.cri.list_containers() == ()
    gate.open()
    await listing


async def test_a_refused_call_does_not_reach_the_runtime(node: Node) -> None:
    node.proxy.hooks.append(Fault("CreateContainer", grpc.StatusCode.INTERNAL))
    with pytest.raises(errors.CallFailed, match="INTERNAL"):
        await node.create()
    assert node.states() == []
    assert await node.create()


async def test_a_lost_answer_is_of_a_call_that_was_carried_out(node: Node) -> None:
    node.proxy.hooks.append(Fault("CreateContainer", grpc.StatusCode.UNAVAILABLE, When.AFTER))
    with pytest.raises(errors.RuntimeUnavailable):
        await node.create()
    assert node.states() == [api_pb2.CONTAINER_CREATED]


async def test_a_slow_call_runs_into_the_callers_deadline(node: Node) -> None:
    node.proxy.hooks.append(Slow(frozenset({"Version"}), 60.0))
    with pytest.raises(errors.DeadlineExceeded):
        async with client.CriClient(str(node.proxy.socket), deadlines=client.Deadlines(read=0.05)) as cri:
            await cri.version()


async def test_missing_runtime_is_reported_as_unavailable(node: Node) -> None:
    await node.server.stop()
    with pytest.raises(errors.RuntimeUnavailable):
        await node.cri.version()
    await node.server.start()
    backoff = aio.Backoff(first=0.02)
    async with asyncio.timeout(60):
        while not await _answers(node):
            await backoff.wait()


async def _answers(node: Node) -> bool:
    with contextlib.suppress(errors.RuntimeUnavailable):
        return bool((await node.cri.version()).name)
    return False
