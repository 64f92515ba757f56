"""The last resort releases an agent's frozen containers when no agent follows, with real containerd and freezer."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack.devnode import patience
from hack.devnode.containerd import Containerd
from kubemend.agent.actuator.hold import cgroups
from kubemend.agent.actuator.hold.exec_hold import ExecHolds
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.app import agent as agent_app
from kubemend.agent.app import last_resort, node_lock
from kubemend.agent.app.last_resort import LastResort
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.model.workloads import ContainerSummary, PodView, RestartPolicy
from kubemend.agent.settings import Settings
from kubemend.agent.sources.processes import ProcFs
from kubemend.common.coordination import StepPhase
from tests import eventually
from tests.containerd.round_node import CGROUPS, RoundNode, order
from tests.devnode.pods import Pods
from tests.environments.swaps import mark_owner

pytestmark = pytest.mark.containerd

DEADLINE = 60.0
PROC = Path("/proc")


@pytest.fixture
async def node(containerd: Containerd, pods: Pods, tmp_path: Path) -> AsyncIterator[RoundNode]:
    yield RoundNode(containerd=containerd, made=pods, directory=tmp_path)
    left = [group for _, group, mark in cgroups.marked(CGROUPS) if f" {containerd.node.name}" in mark]
    assert [group for group in left if group.frozen and group.populated] == [], "something stays frozen"


def resort(node: RoundNode, *, swaps_only_seconds: float = 0.0) -> LastResort:
    here = node.containerd.node
    socket = str(here.containerd_socket)
    return LastResort(
        state_dir=node.directory,
        socket=socket,
        owner=mark_owner(here, directory=node.directory),
        cgroup_root=CGROUPS,
        proc=PROC,
        swaps_only_seconds=swaps_only_seconds,
    )


async def has_stopped(process: asyncio.subprocess.Process) -> None:
    """Wait until an agent in a process of its own holds its member."""
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE):
        while await process.stdout.readline() != b"Stopped\n":
            assert process.returncode is None


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def test_held_container_of_a_killed_agent_is_released_without_another(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.mortal_agent(pod, switch=0.5) as process:
        await has_stopped(process)
        (held,) = await node.running_in(pod)
        await node.comes_to_stand(held.id)
        await kill(process)
    await node.has_run(pod, times=2)
    assert [view.id for view in await node.running_in(pod)] == [held.id]


async def test_nothing_is_released_while_another_agent_is_in_charge(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod)).until(StepPhase.STOPPED)
    (held,) = await node.running_in(pod)
    with node_lock.acquire(node.directory) as mine:
        assert mine
        await resort(node).run()
        await node.comes_to_stand(held.id)
    await resort(node).run()
    await node.has_run(pod, times=2)


async def test_only_kubelets_container_runs_if_there_is_one(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod)).until(StepPhase.STOPPED)
    theirs = await node.kubelet_starts(pod, attempt=3)  # 2 is reserved if the old one could not be frozen
    await resort(node).run()
    await node.only_runs(pod, theirs)
    assert len(await node.has_run(pod, times=2)) == 2, "kubemend's has run, too"


@pytest.mark.parametrize("policy", [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER])
@pytest.mark.parametrize("moment", ["created", "started"])
async def test_interrupted_swap_leaves_one_running_container(
    node: RoundNode, moment: str, policy: RestartPolicy
) -> None:
    pod = await node.pod("member", policy=policy)
    (old,) = await node.running_in(pod)
    async with node.watching(pod) as events, node.mortal_agent(pod, starts=moment != "created") as process:
        await node.until_event(events, moment, old=old.id)
        await kill(process)
    await resort(node).run()
    await eventually.true(lambda: runs_alone(node, pod))


@pytest.mark.parametrize("moment", ["created", "started"])
async def test_interrupted_swap_ends_before_held_containers_are_released(node: RoundNode, moment: str) -> None:
    """Both hold the pod's devices, and the kernel has let the successor run when the agent died."""
    pod = await node.pod("member")
    (old,) = await node.running_in(pod)
    starts = moment != "created"
    async with node.watching(pod) as events, node.mortal_agent(pod, switch=3600.0, starts=starts) as process:
        await node.until_event(events, moment, old=old.id)
        await kill(process)
        await eventually.true(lambda: not node.is_frozen(old.id))

    async def ends() -> bool:
        await resort(node).run()  # its successor may be held for the round by now
        return await runs_alone(node, pod)

    await eventually.true(ends)  # the agent's helper process may have the node lock


async def test_held_member_waits_for_an_agent_while_swaps_end(node: RoundNode) -> None:
    pod = await node.pod("member")
    async with node.agent() as agent:
        await agent.order(order(pod)).until(StepPhase.STOPPED)
    (held,) = await node.running_in(pod)
    work = asyncio.create_task(resort(node, swaps_only_seconds=3600.0).run())
    other = await node.pod("other")
    (old,) = await node.running_in(other)
    await frozen_for_a_swap(node, old)
    await eventually.true(lambda: node.can_run(old.id))  # it has no successor: it is thawed
    await node.comes_to_stand(held.id)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await resort(node).run()
    await node.has_run(pod, times=2)


async def frozen_for_a_swap(node: RoundNode, view: ContainerSummary) -> None:
    """Freeze a container as a swap does before it creates the successor."""
    here = node.containerd.node
    holds = ExecHolds(socket_path=str(here.containerd_socket), proc=PROC)
    standbys = Standbys(holds=holds, proc=PROC, cgroup_root=CGROUPS, owner=mark_owner(here, directory=node.directory))
    async with CriClient(str(here.containerd_socket), deadlines=patience.RUNTIME) as cri:
        standbys.freeze((await cri.container_status(view.id)).pid, of=view.id)


async def runs_alone(node: RoundNode, pod: PodView) -> bool:
    running = await node.running_in(pod)
    return len(running) <= 1 and all(node.can_run(view.id) for view in running)


async def test_agent_without_readable_state_releases_frozen_containers(node: RoundNode) -> None:
    pod = await node.pod("member")
    (running,) = await node.running_in(pod)
    socket = str(node.containerd.node.containerd_socket)
    settings = Settings(node_name="left-alone", cri_endpoint=socket, state_dir=node.directory / "state")
    (settings.state_dir / "state.db").mkdir(parents=True)  # not writable, as on a full disk
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
    with pytest.raises(JournalError):
        await agent_app.run(settings)
    assert node.can_run(running.id)
