"""Members of rounds on the real containerd: no successor runs before its release, even if the agent dies."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from hack.devnode.containerd import Containerd
from kubemend.agent.actuator.hold import cgroups
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.model.rounds import AGENT_AWAY_SECONDS
from kubemend.agent.model.workloads import PodView, RestartPolicy
from kubemend.agent.rounds.round_records import since_boot
from kubemend.agent.sources.processes import ProcFs
from kubemend.common.coordination import OrderKind, StepPhase
from tests.containerd.round_node import CGROUPS, TICK, RoundNode, order
from tests.devnode.pods import Pods

pytestmark = pytest.mark.containerd

LONG_ENOUGH = 0.3
"""Seconds in which a container that is not held records that it runs."""
MEMBERS = 20


@pytest.fixture
async def node(containerd: Containerd, pods: Pods, tmp_path: Path) -> AsyncIterator[RoundNode]:
    yield RoundNode(containerd=containerd, made=pods, directory=tmp_path)
    left = [group for _, group, mark in cgroups.marked(CGROUPS) if f" {containerd.node.name}" in mark]
    assert [group for group in left if group.frozen and group.populated] == [], "something stays frozen"


async def none_has_run(node: RoundNode, *pods: PodView, times: int = 1) -> None:
    await asyncio.sleep(LONG_ENOUGH)
    assert [len(node.runs(pod)) for pod in pods] == [times] * len(pods)


@pytest.mark.parametrize("policy", list(RestartPolicy))
async def test_a_successor_executes_nothing_before_its_release(node: RoundNode, policy: RestartPolicy) -> None:
    pod = await node.pod("member", policy=policy)
    async with node.agent() as agent:
        reported = agent.order(order(pod))
        stopped = await reported.until(StepPhase.STOPPED)
        assert stopped.unheld_seconds == 0.0
        (running,) = await node.running_in(pod)
        assert agent.rounds.held() == {running.id}
        await none_has_run(node, pod)
        released = since_boot()
        agent.rounds.release("default/gang-1", [pod.ref.uid])
        await reported.until(StepPhase.RUNNING)
        _, second = await node.has_run(pod, times=2)
        assert second >= released - TICK
        assert agent.rounds.held() == frozenset()


async def test_without_exec_hold_the_freezer_stops_the_successor_soon(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent(can_hold=False) as agent:
        reported = agent.order(order(pod))
        await reported.until(StepPhase.STOPPED)
        (running,) = await node.running_in(pod)
        await node.comes_to_stand(running.id)
        lines = len(node.runs(pod))
        await none_has_run(node, pod, times=lines)
        agent.rounds.release("default/gang-1", [])
        await reported.until(StepPhase.RUNNING)
        await node.has_run(pod, times=2)


async def test_all_main_containers_of_a_member_are_restarted_and_held(node: RoundNode) -> None:
    pod = await node.pod("member", mains=("main", "second"))
    before = {view.id for view in await node.running_in(pod)}
    async with node.agent() as agent:
        reported = agent.order(order(pod))
        await reported.until(StepPhase.STOPPED)
        after = {view.id for view in await node.running_in(pod)}
        assert len(after) == 2
        assert not after & before
        await none_has_run(node, pod, times=2)
        agent.rounds.release("default/gang-1", [pod.ref.uid])
        await reported.until(StepPhase.RUNNING)
        await node.has_run(pod, times=4)


async def test_twenty_members_of_one_node_are_held_together(node: RoundNode) -> None:
    pods = [await node.pod(f"member-{number}") for number in range(MEMBERS)]
    async with node.agent() as agent:
        for number in (1, 2):
            reported = [agent.order(order(pod, number=number)) for pod in pods]
            stopped = [await each.until(StepPhase.STOPPED) for each in reported]
            await none_has_run(node, *pods, times=number)
            assert [step_result.unheld_seconds for step_result in stopped] == [0.0] * MEMBERS
            released = since_boot()
            agent.rounds.release(f"default/gang-{number}", [])
            for each in reported:
                await each.until(StepPhase.RUNNING)
            for pod in pods:
                assert (await node.has_run(pod, times=number + 1))[-1] >= released - TICK


async def test_kubelets_container_is_frozen_and_survives(
    node: RoundNode,
) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        reported = agent.order(order(pod))
        await reported.until(StepPhase.STOPPED)
        theirs = await node.kubelet_starts(pod, attempt=3)  # 2 is reserved if the old one could not be frozen
        await node.only_runs(pod, theirs)
        assert agent.rounds.held() >= {theirs}
        await node.comes_to_stand(theirs)
        lines = node.runs(pod)
        assert len(lines) <= 2, "kubelet's may have run for some milliseconds, kubemend's not at all"
        agent.rounds.release("default/gang-1", [pod.ref.uid])
        await reported.until(StepPhase.RUNNING)
        await node.has_run(pod, times=2)
        assert [view.id for view in await node.running_in(pod)] == [theirs]


async def test_replacement_is_held_as_it_appears_and_not_ended(node: RoundNode) -> None:
    pod = await node.pod("member")
    (running,) = await node.running_in(pod)
    async with node.agent() as agent:
        reported = agent.order(order(pod, kind=OrderKind.HOLD))
        await reported.until(StepPhase.STOPPED)
        await node.comes_to_stand(running.id)
        agent.rounds.release("default/gang-1", [])
        await reported.until(StepPhase.RUNNING)
        assert node.can_run(running.id)
    assert [view.id for view in await node.running_in(pod)] == [running.id]


async def test_hold_of_a_dead_agent_lasts_until_the_next_gets_the_release(
    node: RoundNode,
) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod)).until(StepPhase.STOPPED)
    await none_has_run(node, pod)
    async with node.agent() as agent:
        assert [step_result.phase for step_result in agent.rounds.step_results()] == [StepPhase.STOPPED]
        await none_has_run(node, pod)
        reported = agent.order(order(pod))  # the hub repeats it
        await reported.until(StepPhase.STOPPED)
        agent.rounds.release("default/gang-1", [pod.ref.uid])
        await reported.until(StepPhase.RUNNING)
        await node.has_run(pod, times=2)
        await agent.nothing_is_open()


async def test_next_agent_releases_by_itself_at_the_hold_timeout(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod, hold_seconds=600.0)).until(StepPhase.STOPPED)
    async with node.agent(later=597.0 + AGENT_AWAY_SECONDS) as agent:
        await agent.stands(StepPhase.SELF_RELEASED)
        await node.has_run(pod, times=2)
        await agent.nothing_is_open()


async def test_agent_that_returns_too_late_releases_at_once(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod, hold_seconds=60.0)).until(StepPhase.STOPPED)
    assert len(node.runs(pod)) == 1
    async with node.agent(later=60.0 + AGENT_AWAY_SECONDS) as agent:
        await agent.stands(StepPhase.SELF_RELEASED)
        await node.has_run(pod, times=2)


@pytest.mark.parametrize("policy", [RestartPolicy.ALWAYS, RestartPolicy.NEVER])
@pytest.mark.parametrize("moment", ["old stopped", "created", "started", "reported"])
async def test_next_agent_finishes_the_order_of_a_killed_one_held(
    node: RoundNode, moment: str, policy: RestartPolicy
) -> None:
    pod = await node.pod("member", policy=policy)
    (old,) = await node.running_in(pod)
    async with node.watching(pod) as events, node.mortal_agent(pod, starts=moment != "created") as process:
        if moment == "reported":
            assert process.stdout is not None
            while await process.stdout.readline() != b"Stopped\n":
                assert process.returncode is None
        else:
            await node.until_event(events, moment, old=old.id)
        process.kill()
        await process.wait()
    assert len([view for view in await node.running_in(pod) if node.can_run(view.id)]) <= 1, "two run"
    async with node.agent() as agent:
        reported = agent.order(order(pod))
        stopped = await reported.until(StepPhase.STOPPED)
        (successor,) = await node.running_in(pod)
        assert successor.id != old.id
        await node.comes_to_stand(successor.id)
        assert len(node.runs(pod)) == 1 or stopped.unheld_seconds > 0.0, "a container that has run unheld was reported"
        lines = len(node.runs(pod))
        await none_has_run(node, pod, times=lines)
        agent.rounds.release("default/gang-1", [])
        await reported.until(StepPhase.RUNNING)
        await node.has_run(pod, times=2)
        assert [view.id for view in await node.running_in(pod)] == [successor.id]
        await agent.nothing_is_open()


async def test_frozen_container_without_a_record_is_released_at_the_start(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod)).until(StepPhase.STOPPED)
    node.forget_everything()
    async with node.agent() as agent:
        await node.has_run(pod, times=2)
        assert agent.rounds.step_results() == ()


async def test_frozen_container_of_another_nodes_agent_is_left_alone(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        reported = agent.order(order(pod))
        await reported.until(StepPhase.STOPPED)
        another = Freezer(
            runtime=agent.runtime,
            holds=None,
            processes=ProcFs(),
            proc=Path("/proc"),
            cgroup_root=CGROUPS,
            owner=f"not-{node.containerd.node.name}",
        )
        assert pod.ref.uid not in await another.take_over(keep={})
        await none_has_run(node, pod)
        agent.rounds.release("default/gang-1", [])
        await reported.until(StepPhase.RUNNING)


async def test_silent_round_is_released_and_reported(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod)).until(StepPhase.STOPPED)
        reported = agent.order(order(pod, hold_seconds=1.5))  # not earlier: it could be over before the member is held
        await reported.until(StepPhase.SELF_RELEASED)
        await node.has_run(pod, times=2)


async def test_next_round_takes_over_held_containers_which_never_run(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        first = agent.order(order(pod))
        await first.until(StepPhase.STOPPED)
        (held,) = await node.running_in(pod)
        second = agent.order(order(pod, number=2))
        await second.until(StepPhase.STOPPED)
        (newer,) = await node.running_in(pod)
        assert newer.id != held.id
        agent.rounds.release("default/gang-1", [])
        await none_has_run(node, pod)
        agent.rounds.release("default/gang-2", [])
        await second.until(StepPhase.RUNNING)
        await node.has_run(pod, times=2)
        assert first.phases == [StepPhase.STOPPED]


async def test_a_held_member_that_is_deleted_ends_at_once(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        reported = agent.order(order(pod))
        await reported.until(StepPhase.STOPPED)
        await node.views.put(replace(node.views.pods()[pod.ref.uid], deleting=True))
        await node.only_runs(pod, None)
        assert len(node.runs(pod)) == 1
        await node.views.gone(pod.ref.uid)
        await reported.until(StepPhase.GONE)


async def test_kubelets_successor_is_held_until_the_gang_is_decided_on(
    node: RoundNode,
) -> None:
    pod = await node.pod("member")
    (old,) = await node.running_in(pod)
    async with node.agent() as agent:
        await agent.runtime.stop_container(old.id, grace=0)
        async with agent.rounds.guarding(old):
            theirs = await node.kubelet_starts(pod, attempt=1)
            await node.comes_to_stand(theirs)
            await none_has_run(node, pod)
        await node.has_run(pod, times=2)


async def test_kubelets_successor_is_replaced_by_the_round_and_never_runs(
    node: RoundNode,
) -> None:
    pod = await node.pod("member")
    (old,) = await node.running_in(pod)
    async with node.agent() as agent:
        await agent.runtime.stop_container(old.id, grace=0)
        async with agent.rounds.guarding(old):
            theirs = await node.kubelet_starts(pod, attempt=1)
            await node.comes_to_stand(theirs)
            reported = agent.order(order(pod))
            assert (await reported.until(StepPhase.STOPPED)).unheld_seconds == 0.0
        (successor,) = await node.running_in(pod)
        assert successor.id != theirs
        await none_has_run(node, pod)
        agent.rounds.release("default/gang-1", [])
        await reported.until(StepPhase.RUNNING)
        await node.has_run(pod, times=2)
