"""The facts queried from the runtime before a restart needs them, and their validity."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import grpc

from kubemend.agent.model.workloads import ContainerState, ContainerSummary, PodUid, PodView
from kubemend.agent.sources.status_prefetch import StatusPrefetcher
from kubemend.common.pb.runtime.v1 import api_pb2
from tests import eventually
from tests.environments.runtime import POD, Rig
from tests.fakes import outside
from tests.unit.hub import builders


def member(*, labels: bool = True, opted_in: bool = True) -> outside.Pods:
    """The pods in the API: a member of a gang, or a pod outside gangs; opted in or not."""
    view = builders.member(0)
    gang = view.labels if labels else {}
    return outside.Pods(replace(view, ref=POD, labels=gang, annotations=view.annotations if opted_in else {}))


@contextlib.asynccontextmanager
async def running(rig: Rig, pods: outside.Pods) -> AsyncIterator[None]:
    work = asyncio.create_task(StatusPrefetcher(runtime=rig.cri, events=rig.watch, pods=pods, settled=0.0).run())
    yield
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def listed(rig: Rig) -> ContainerSummary:
    """Return the newest container from a new listing."""
    return (await rig.containers())[-1]


def asked(rig: Rig) -> int:
    return rig.server.called().count("ContainerStatus")


async def test_round_need_not_query_known_running_containers(rig: Rig) -> None:
    async with running(rig, member()):
        await eventually.true(lambda: rig.server.called().count("PodSandboxStatus") == 1)
        before = asked(rig)
        info = await rig.cri.cached_status(await listed(rig))
        assert (info.id, info.state) == (rig.old, ContainerState.RUNNING)
        await rig.cri.sandbox_config(rig.sandbox_id)
    assert asked(rig) == before
    assert rig.server.called().count("PodSandboxStatus") == 1


async def test_container_started_later_is_queried_then(rig: Rig) -> None:
    async with running(rig, member()):
        await eventually.true(lambda: rig.server.called().count("PodSandboxStatus") == 1)
        before = asked(rig)
        await rig.kubelet_creates(attempt=1)
        await eventually.true(lambda: asked(rig) == before + 1)


async def test_ended_container_is_queried_again(rig: Rig) -> None:
    await rig.cri.cached_status(await listed(rig))
    rig.server.runtime.exit(rig.old, exit_code=3)
    info = await rig.cri.cached_status(await listed(rig))
    assert (info.state, info.exit_code) == (ContainerState.EXITED, 3)


async def test_container_is_forgotten_when_it_ends(rig: Rig) -> None:
    async with running(rig, member()):
        await eventually.true(lambda: rig.server.called().count("PodSandboxStatus") == 1)
        view, before = await listed(rig), asked(rig)
        rig.server.runtime.exit(rig.old, exit_code=3)

        async def is_forgotten() -> bool:
            await rig.cri.cached_status(view)
            return asked(rig) > before

        await eventually.true(is_forgotten)


async def test_end_of_known_container_costs_no_full_status(rig: Rig) -> None:
    resized = api_pb2.LinuxContainerResources(cpu_quota=200000, memory_limit_in_bytes=256)
    async with running(rig, member(labels=False)):
        await eventually.true(lambda: rig.server.called().count("PodSandboxStatus") == 1)
        await rig.cri.cached_status(await listed(rig))
        rig.server.runtime.containers[rig.old].resized = resized
        rig.server.runtime.exit(rig.old, exit_code=3)
        info = await rig.cri.cached_status(await listed(rig))
    fresh = await rig.cri.container_status(rig.old)
    assert replace(info, weight=fresh.weight) == fresh
    assert (info.state, info.exit_code, info.resources) == (ContainerState.EXITED, 3, resized)
    answers = [call.request for call in rig.server.calls if call.method == "ContainerStatus"]
    assert [request.verbose for request in answers] == [True, False, True]  # type: ignore[attr-defined]


async def test_removed_container_is_forgotten(rig: Rig) -> None:
    async with running(rig, member(labels=False)):
        await eventually.true(lambda: rig.server.called().count("PodSandboxStatus") == 1)
        assert rig.cri.remembered(rig.old) is not None
        await rig.cri.remove_container(rig.old)
        await eventually.true(lambda: rig.cri.remembered(rig.old) is None)


async def test_container_that_has_not_opted_in_is_not_queried(rig: Rig) -> None:
    looks: list[str] = []

    class Pods(outside.Pods):
        def pods(self) -> Mapping[PodUid, PodView]:
            looks.append("which gang it is in")
            return super().pods()

    async with running(rig, Pods(*member(labels=False, opted_in=False).pods().values())):
        await eventually.true(lambda: bool(looks))
        await rig.kubelet_creates(attempt=1)
        await eventually.true(lambda: len(looks) > 1)
    assert asked(rig) == 0


async def test_failed_prefetch_is_repeated_when_needed(rig: Rig) -> None:
    rig.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE)
    async with running(rig, member()):
        await eventually.true(lambda: asked(rig) == 1)
        assert (await rig.cri.cached_status(await listed(rig))).id == rig.old
