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
from tests.environments.runtime import POD, CriEnv
from tests.fakes import outside
from tests.unit.hub import builders


def member(*, labels: bool = True, opted_in: bool = True) -> outside.Pods:
    """The pods in the API: a member of a gang, or a pod outside gangs; opted in or not."""
    view = builders.member(0)
    gang = view.labels if labels else {}
    return outside.Pods(replace(view, ref=POD, labels=gang, annotations=view.annotations if opted_in else {}))


@contextlib.asynccontextmanager
async def running(cri_env: CriEnv, pods: outside.Pods) -> AsyncIterator[None]:
    work = asyncio.create_task(
        StatusPrefetcher(runtime=cri_env.cri, events=cri_env.watch, pods=pods, settled=0.0).run()
    )
    yield
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def listed(cri_env: CriEnv) -> ContainerSummary:
    """Return the newest container from a new listing."""
    return (await cri_env.containers())[-1]


def asked(cri_env: CriEnv) -> int:
    return cri_env.server.called().count("ContainerStatus")


async def test_round_need_not_query_known_running_containers(cri_env: CriEnv) -> None:
    async with running(cri_env, member()):
        await eventually.true(lambda: cri_env.server.called().count("PodSandboxStatus") == 1)
        before = asked(cri_env)
        info = await cri_env.cri.cached_status(await listed(cri_env))
        assert (info.id, info.state) == (cri_env.old, ContainerState.RUNNING)
        await cri_env.cri.sandbox_config(cri_env.sandbox_id)
    assert asked(cri_env) == before
    assert cri_env.server.called().count("PodSandboxStatus") == 1


async def test_container_started_later_is_queried_then(cri_env: CriEnv) -> None:
    async with running(cri_env, member()):
        await eventually.true(lambda: cri_env.server.called().count("PodSandboxStatus") == 1)
        before = asked(cri_env)
        await cri_env.kubelet_creates(attempt=1)
        await eventually.true(lambda: asked(cri_env) == before + 1)


async def test_ended_container_is_queried_again(cri_env: CriEnv) -> None:
    await cri_env.cri.cached_status(await listed(cri_env))
    cri_env.server.runtime.exit(cri_env.old, exit_code=3)
    info = await cri_env.cri.cached_status(await listed(cri_env))
    assert (info.state, info.exit_code) == (ContainerState.EXITED, 3)


async def test_container_is_forgotten_when_it_ends(cri_env: CriEnv) -> None:
    async with running(cri_env, member()):
        await eventually.true(lambda: cri_env.server.called().count("PodSandboxStatus") == 1)
        view, before = await listed(cri_env), asked(cri_env)
        cri_env.server.runtime.exit(cri_env.old, exit_code=3)

        async def is_forgotten() -> bool:
            await cri_env.cri.cached_status(view)
            return asked(cri_env) > before

        await eventually.true(is_forgotten)


async def test_end_of_known_container_costs_no_full_status(cri_env: CriEnv) -> None:
    resized = api_pb2.LinuxContainerResources(cpu_quota=200000, memory_limit_in_bytes=256)
    async with running(cri_env, member(labels=False)):
        await eventually.true(lambda: cri_env.server.called().count("PodSandboxStatus") == 1)
        await cri_env.cri.cached_status(await listed(cri_env))
        cri_env.server.runtime.containers[cri_env.old].resized = resized
        cri_env.server.runtime.exit(cri_env.old, exit_code=3)
        info = await cri_env.cri.cached_status(await listed(cri_env))
    fresh = await cri_env.cri.container_status(cri_env.old)
    assert replace(info, weight=fresh.weight) == replace(fresh, spec=None)
    assert (info.state, info.exit_code, info.resources) == (ContainerState.EXITED, 3, resized)
    answers = [call.request for call in cri_env.server.calls if call.method == "ContainerStatus"]
    assert [request.verbose for request in answers] == [True, False, True]  # type: ignore[attr-defined]


async def test_removed_container_is_forgotten(cri_env: CriEnv) -> None:
    async with running(cri_env, member(labels=False)):
        await eventually.true(lambda: cri_env.server.called().count("PodSandboxStatus") == 1)
        assert cri_env.cri.remembered(cri_env.old) is not None
        await cri_env.cri.remove_container(cri_env.old)
        await eventually.true(lambda: cri_env.cri.remembered(cri_env.old) is None)


async def test_container_that_has_not_opted_in_is_not_queried(cri_env: CriEnv) -> None:
    looks: list[str] = []

    class Pods(outside.Pods):
        def pods(self) -> Mapping[PodUid, PodView]:
            looks.append("which gang it is in")
            return super().pods()

    async with running(cri_env, Pods(*member(labels=False, opted_in=False).pods().values())):
        await eventually.true(lambda: bool(looks))
        await cri_env.kubelet_creates(attempt=1)
        await eventually.true(lambda: len(looks) > 1)
    assert asked(cri_env) == 0


async def test_failed_prefetch_is_repeated_when_needed(cri_env: CriEnv) -> None:
    cri_env.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE)
    async with running(cri_env, member()):
        await eventually.true(lambda: asked(cri_env) == 1)
        assert (await cri_env.cri.cached_status(await listed(cri_env))).id == cri_env.old
