"""Kubelet's relists, placed: played by a client that lists as kubelet does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hack.devnode.criproxy import CriProxy
from kubemend.common import grpcio
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc
from tests.devnode.looks import Looks
from tests.fakes.cri_server import CriServer

ALL_SANDBOXES = api_pb2.ListPodSandboxRequest(filter=api_pb2.PodSandboxFilter())
ALL_CONTAINERS = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter())


@dataclass
class Kubelet:
    """Relists repeatedly; ``acts`` are the relists after which it changes something."""

    cri: "api_pb2_grpc.RuntimeServiceAsyncStub"
    looks: int = 0
    acts: set[int] = field(default_factory=set)
    looked: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        while True:
            await self.cri.ListPodSandbox(ALL_SANDBOXES)
            await self.cri.ListContainers(ALL_CONTAINERS)
            async with self.looked:
                self.looks += 1
                self.looked.notify_all()
            if self.looks in self.acts:
                await self.cri.StopContainer(api_pb2.StopContainerRequest(container_id="gone"))
            await asyncio.sleep(0)

    async def has_looked(self, times: int) -> None:
        async with asyncio.timeout(60), self.looked:
            await self.looked.wait_for(lambda: self.looks >= times)


@pytest.fixture
async def kubelet_and_looks(tmp_path: Path) -> AsyncIterator[tuple[Kubelet, Looks]]:
    async with (
        CriServer(str(tmp_path / "cri.sock")),
        CriProxy(upstream=tmp_path / "cri.sock", socket=tmp_path / "proxy.sock") as proxy,
        grpcio.unix_channel(str(proxy.socket)) as channel,
    ):
        looks = Looks(proxy)
        proxy.hooks.append(looks)
        kubelet = Kubelet(api_pb2_grpc.RuntimeServiceStub(channel))
        running = asyncio.create_task(kubelet.run())
        yield kubelet, looks
        running.cancel()
        await asyncio.wait({running})


async def test_held_relists_wait_until_they_are_released(kubelet_and_looks: tuple[Kubelet, Looks]) -> None:
    kubelet, looks = kubelet_and_looks
    await kubelet.has_looked(3)
    await looks.hold()
    before = kubelet.looks
    await looks.look()
    await looks.look()
    assert kubelet.looks == before + 2
    await looks.release()
    await kubelet.has_looked(before + 5)


async def test_relist_continues_until_kubelet_changes_nothing(kubelet_and_looks: tuple[Kubelet, Looks]) -> None:
    kubelet, looks = kubelet_and_looks
    await looks.hold()
    before = kubelet.looks
    kubelet.acts = {before + 1, before + 2}
    await looks.relist()
    assert kubelet.looks == before + 3


async def test_garbage_collection_is_not_a_relist(kubelet_and_looks: tuple[Kubelet, Looks]) -> None:
    kubelet, looks = kubelet_and_looks
    await looks.hold()
    before = kubelet.looks
    await kubelet.cri.ListContainers(ALL_CONTAINERS)
    collecting = asyncio.ensure_future(kubelet.cri.ListPodSandbox(ALL_SANDBOXES))
    await looks.look()
    await collecting
    assert kubelet.looks == before + 1


async def test_housekeeping_is_not_held(kubelet_and_looks: tuple[Kubelet, Looks]) -> None:
    kubelet, looks = kubelet_and_looks
    await looks.hold()
    before = kubelet.looks
    ready = api_pb2.PodSandboxFilter(state=api_pb2.PodSandboxStateValue(state=api_pb2.SANDBOX_READY))
    await kubelet.cri.ListPodSandbox(api_pb2.ListPodSandboxRequest(filter=ready), timeout=60)
    assert kubelet.looks == before
