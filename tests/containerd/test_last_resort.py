"""What an agent has frozen is let go although none comes after it, on the real containerd and the kernel's freezer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.actuator import cgroups
from agent.actuator.freezer import Freezer
from agent.app import agent as agent_app
from agent.app import charge, last_resort
from agent.app.last_resort import LastResort
from agent.history.store import HistoryError
from agent.model.rounds import Phase
from agent.model.workloads import PodView, RestartPolicy
from agent.settings import Settings
from agent.sources.processes import ProcFs
from hack.devnode.containerd import Containerd
from hack.devnode.pods import Pods
from tests import eventually
from tests.containerd.round_node import CGROUPS, RoundNode, order

pytestmark = pytest.mark.containerd

DEADLINE = 60.0
PROC = Path("/proc")


@pytest.fixture
async def node(containerd: Containerd, pods: Pods, tmp_path: Path) -> AsyncIterator[RoundNode]:
    yield RoundNode(containerd=containerd, made=pods, directory=tmp_path)
    left = [group for _, group, mark in cgroups.marked(CGROUPS) if f" {containerd.node.name}" in mark]
    assert [group for group in left if group.frozen and group.populated] == [], "something stays frozen"


def resort(node: RoundNode) -> LastResort:
    here = node.containerd.node
    socket = str(here.containerd_socket)
    return LastResort(state_dir=node.directory, socket=socket, owner=here.name, cgroup_root=CGROUPS, proc=PROC)


async def has_stopped(process: asyncio.subprocess.Process) -> None:
    """Wait until an agent in a process of its own holds its member."""
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE):
        while await process.stdout.readline() != b"Stopped\n":
            assert process.returncode is None


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def test_what_a_killed_agent_holds_runs_some_time_later_though_none_comes_after_it(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.mortal_agent(pod, switch=0.5) as process:
        await has_stopped(process)
        (held,) = await node.running_in(pod)
        await node.comes_to_stand(held.id)
        await kill(process)
    await node.has_run(pod, times=2)
    assert [view.id for view in await node.running_in(pod)] == [held.id]


async def test_nothing_is_let_go_while_another_agent_is_in_charge(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod)).until(Phase.STOPPED)
    (held,) = await node.running_in(pod)
    with charge.taken(node.directory) as mine:
        assert mine
        await resort(node).run()
        await node.comes_to_stand(held.id)
    await resort(node).run()
    await node.has_run(pod, times=2)


async def test_where_kubelet_has_started_its_own_meanwhile_only_that_one_ever_runs(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod)).until(Phase.STOPPED)
    theirs = await node.kubelet_starts(pod, attempt=2)
    await resort(node).run()
    await node.only_runs(pod, theirs)
    assert len(await node.has_run(pod, times=2)) == 2, "ours has run, too"


@pytest.mark.parametrize("policy", [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER])
@pytest.mark.parametrize("moment", ["created", "started"])
async def test_of_an_interrupted_swap_one_container_goes_on_and_no_other(
    node: RoundNode, moment: str, policy: RestartPolicy
) -> None:
    pod = await node.pod("member", policy=policy)
    (old,) = await node.running_in(pod)
    async with node.watching(pod) as events, node.mortal_agent(pod) as process:
        await node.until_event(events, moment, old=old.id)
        await kill(process)
    await resort(node).run()
    await eventually.true(lambda: runs_alone(node, pod))


async def runs_alone(node: RoundNode, pod: PodView) -> bool:
    running = await node.running_in(pod)
    return len(running) <= 1 and all(node.can_run(view.id) for view in running)


async def test_an_agent_that_cannot_open_its_memory_lets_go_what_stands_still_before_it_ends(node: RoundNode) -> None:
    pod = await node.pod("member")
    (running,) = await node.running_in(pod)
    socket = str(node.containerd.node.containerd_socket)
    settings = Settings(node_name="left-alone", cri_endpoint=socket, state_dir=node.directory / "state")
    (settings.state_dir / "state.db").mkdir(parents=True)  # nothing can be written there, as on a full disk
    async with node.agent() as agent:
        freezer = Freezer(
            runtime=agent.runtime,
            holds=None,
            processes=ProcFs(),
            proc=PROC,
            cgroup_root=CGROUPS,
            owner=last_resort.owner("left-alone", socket_path=socket),
        )
        await freezer.freeze(running.id, mark=pod.ref.uid)
    await node.comes_to_stand(running.id)
    with pytest.raises(HistoryError):
        await agent_app.run(settings)
    assert node.can_run(running.id)
