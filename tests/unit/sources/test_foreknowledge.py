"""What is asked of the runtime before a round needs it, and what of that a round may rest on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import grpc

from agent.model.workloads import ContainerState, ContainerView, PodUid, PodView
from agent.sources.foreknowledge import Foreknowledge
from tests import eventually
from tests.fakes import outside
from tests.unit.actuator.conftest import POD, Rig, rig
from tests.unit.coordination import builders

__all__ = ["rig"]


def member(*, labels: bool = True) -> outside.Pods:
    """The API tells of the pod: a member of a gang, or of none."""
    view = builders.member(0)
    return outside.Pods(replace(view, ref=POD, labels=view.labels if labels else {}))


@contextlib.asynccontextmanager
async def running(rig: Rig, pods: outside.Pods) -> AsyncIterator[None]:
    work = asyncio.create_task(Foreknowledge(runtime=rig.cri, events=rig.watch, pods=pods, settled=0.0).run())
    yield
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def listed(rig: Rig) -> ContainerView:
    """Return the newest container as a listing of now has it."""
    return (await rig.containers())[-1]


def asked(rig: Rig) -> int:
    return rig.server.called().count("ContainerStatus")


async def test_a_round_need_not_ask_what_runs_and_is_known(rig: Rig) -> None:
    async with running(rig, member()):
        await eventually.true(lambda: rig.server.called().count("PodSandboxStatus") == 1)
        before = asked(rig)
        info = await rig.cri.info_of(await listed(rig))
        assert (info.id, info.state) == (rig.old, ContainerState.RUNNING)
        await rig.cri.sandbox_config(rig.sandbox_id)
    assert asked(rig) == before
    assert rig.server.called().count("PodSandboxStatus") == 1


async def test_what_is_started_later_is_asked_about_then(rig: Rig) -> None:
    async with running(rig, member()):
        await eventually.true(lambda: rig.server.called().count("PodSandboxStatus") == 1)
        before = asked(rig)
        await rig.kubelet_creates(attempt=1)
        await eventually.true(lambda: asked(rig) == before + 1)


async def test_what_runs_no_more_is_asked_about_anew(rig: Rig) -> None:
    await rig.cri.info_of(await listed(rig))
    rig.server.runtime.exit(rig.old, exit_code=3)
    info = await rig.cri.info_of(await listed(rig))
    assert (info.state, info.exit_code) == (ContainerState.EXITED, 3)


async def test_it_is_forgotten_when_it_ends(rig: Rig) -> None:
    async with running(rig, member()):
        await eventually.true(lambda: rig.server.called().count("PodSandboxStatus") == 1)
        view, before = await listed(rig), asked(rig)
        rig.server.runtime.exit(rig.old, exit_code=3)

        async def is_forgotten() -> bool:
            await rig.cri.info_of(view)
            return asked(rig) > before

        await eventually.true(is_forgotten)


async def test_who_is_in_no_gang_is_not_asked_about(rig: Rig) -> None:
    looks: list[str] = []

    class Pods(outside.Pods):
        def pods(self) -> Mapping[PodUid, PodView]:
            looks.append("which gang it is in")
            return super().pods()

    async with running(rig, Pods(*member(labels=False).pods().values())):
        await eventually.true(lambda: bool(looks))
        await rig.kubelet_creates(attempt=1)
        await eventually.true(lambda: len(looks) > 1)
    assert asked(rig) == 0


async def test_a_runtime_that_does_not_answer_is_asked_when_it_matters(rig: Rig) -> None:
    rig.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE)
    async with running(rig, member()):
        await eventually.true(lambda: asked(rig) == 1)
        assert (await rig.cri.info_of(await listed(rig))).id == rig.old
