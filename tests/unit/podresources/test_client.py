"""The pod-resources client: kubelets old and new, absent, overloaded, and another program at the socket."""

import asyncio
import pathlib
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from kubemend.agent.clients.podresources.client import AllocationCache, PodResourcesClient
from kubemend.agent.model.workloads import Allocations, PodRef, PodUid
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from tests.fakes.podresources_server import PodResourcesServer, pod

P = PodRef(namespace="default", name="p", uid=PodUid("u"))
UNKNOWN = Allocations(known=False)


@pytest.fixture
async def kubelet(tmp_path: pathlib.Path) -> AsyncIterator[PodResourcesServer]:
    """A kubelet with two pods; ``p`` holds GPU-a."""
    async with PodResourcesServer(str(tmp_path / "kubelet.sock")) as server:
        server.pods = [pod("p", devices=[("nvidia.com/gpu", "GPU-a")]), pod("idle")]
        yield server


@pytest.fixture
def reports() -> list[ComponentStatus]:
    """The statuses that the client reported."""
    return []


@pytest.fixture
async def client(kubelet: PodResourcesServer, reports: list[ComponentStatus]) -> AsyncIterator[PodResourcesClient]:
    """A client of it."""
    async with PodResourcesClient(kubelet.endpoint, report=reports.append) as made:
        yield made


async def test_list_returns_the_allocations(client: PodResourcesClient, reports: list[ComponentStatus]) -> None:
    held = await client.list()
    await client.list()

    assert held.known
    assert [(item.pod_name, item.devices) for item in held.items] == [("p", frozenset({"GPU-a"}))]
    assert [status.state for status in reports] == [ComponentState.READY]


async def test_get_reads_one_pod(client: PodResourcesClient, kubelet: PodResourcesServer) -> None:
    held = await client.get(P)

    assert [item.devices for item in held.items] == [{"GPU-a"}]
    assert kubelet.calls == ["Get"]


@pytest.mark.parametrize(
    "refusal",
    [
        (grpc.StatusCode.UNIMPLEMENTED, "unknown method Get"),
        (grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled"),
    ],
)
async def test_kubelet_without_get_is_listed_from_then_on(
    client: PodResourcesClient, kubelet: PodResourcesServer, refusal: tuple[grpc.StatusCode, str]
) -> None:
    kubelet.get_refusal = refusal

    first, second = await client.get(P), await client.get(P)

    assert first == second
    assert [item.devices for item in first.items] == [{"GPU-a"}]
    assert kubelet.calls == ["Get", "List", "List"]


async def test_pod_without_devices_is_known_to_hold_none(
    client: PodResourcesClient, kubelet: PodResourcesServer
) -> None:
    idle = PodRef(namespace="default", name="idle", uid=PodUid("i"))

    by_get = await client.get(idle)
    kubelet.get_refusal = (grpc.StatusCode.UNIMPLEMENTED, "")
    by_list = await client.get(idle)

    assert by_get == by_list == Allocations(items=(), known=True)


async def test_pod_unknown_to_kubelet_is_unknown(
    client: PodResourcesClient, kubelet: PodResourcesServer, reports: list[ComponentStatus]
) -> None:
    missing = PodRef(namespace="default", name="missing", uid=PodUid("m"))

    by_get = await client.get(missing)
    kubelet.get_refusal = (grpc.StatusCode.UNIMPLEMENTED, "")
    by_list = await client.get(missing)

    assert by_get == by_list == UNKNOWN
    assert [status.state for status in reports] == [ComponentState.READY]


async def test_healthy_devices_are_those_that_kubelet_would_allocate(
    client: PodResourcesClient, kubelet: PodResourcesServer, reports: list[ComponentStatus]
) -> None:
    kubelet.healthy = [("nvidia.com/gpu", "GPU-a::1"), ("rdma/hca", "0000:5e:00.0")]
    assert await client.allocatable() == {"GPU-a::1", "0000:5e:00.0"}
    kubelet.refusal = (grpc.StatusCode.UNKNOWN, "GetAllocatableResources is disabled")
    assert await client.allocatable() == frozenset()
    assert reports == []  # what is allocated is known without it


async def test_missing_socket_is_unknown_and_degraded_until_kubelet_starts(
    tmp_path: pathlib.Path, reports: list[ComponentStatus]
) -> None:
    kubelet = PodResourcesServer(str(tmp_path / "kubelet.sock"))
    async with PodResourcesClient(kubelet.endpoint, report=reports.append) as client:
        assert await client.list() == UNKNOWN
        assert await client.get(P) == UNKNOWN
        [status] = reports
        async with kubelet, asyncio.timeout(60):
            async for _ in aio.ticks(period=0.05):  # gRPC reconnects after a backoff of its own
                if (await client.list()).known:
                    break

    assert status.state is ComponentState.DEGRADED
    assert "No such file or directory" in status.message
    assert str(tmp_path) in status.hint
    assert reports[-1].state is ComponentState.READY


async def test_refused_call_is_unknown(
    client: PodResourcesClient, kubelet: PodResourcesServer, reports: list[ComponentStatus]
) -> None:
    kubelet.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    assert await client.list() == UNKNOWN
    assert "rate limit" in reports[-1].message


async def test_other_grpc_service_is_reported_as_not_kubelet(
    tmp_path: pathlib.Path, reports: list[ComponentStatus]
) -> None:
    server = grpc.aio.server()
    server.add_insecure_port(f"unix://{tmp_path}/x.sock")
    await server.start()
    try:
        async with PodResourcesClient(f"{tmp_path}/x.sock", report=reports.append) as client:
            assert await client.get(P) == UNKNOWN
    finally:
        await server.stop(grace=None)

    assert "is not kubelet" in reports[-1].message


async def test_cache_fetches_once_for_concurrent_callers() -> None:
    asked = 0

    async def fetch() -> Allocations:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return Allocations(known=True)

    cache = AllocationCache(fetch, floor=3600)
    answers = await asyncio.gather(*(cache.current(max_age=0) for _ in range(50)))

    assert asked == 1
    assert all(answer.known for answer in answers)


async def test_cache_fetches_again_after_max_age() -> None:
    held = [Allocations(known=False), Allocations(known=True)]

    async def fetch() -> Allocations:
        return held.pop(0)

    cache = AllocationCache(fetch, floor=0.0)
    first = await cache.current(max_age=3600)
    same = await cache.current(max_age=3600)
    await asyncio.sleep(0.001)  # the loop's clock must advance
    newer = await cache.current(max_age=0)

    assert (first.known, same.known, newer.known) == (False, False, True)
