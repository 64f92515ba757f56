"""Run an agent in a process of its own that carries out one order, so that it can be killed: ``python -m`` this module.

Arguments: the node's name, the directory of its state, the pod's name, UID, restart policy and container, the seconds
after which a dead man's switch releases what it has frozen (empty: there is no switch), and ``before-start`` if it
waits before its first StartContainer.
"""

import asyncio
import contextlib
import sys
from pathlib import Path
from unittest import mock

from hack.devnode.layout import NodeLayout
from kubemend.agent.app.dead_man_switch import DeadManSwitch
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerId, PodUid, RestartPolicy
from kubemend.common.coordination import StepPhase
from tests.containerd.round_node import agent, order, pod_view
from tests.environments.swaps import mark_owner
from tests.fakes import outside


async def main(
    node: str, directory: str, name: str, uid: str, policy: str, container: str, switch: str, waits: str
) -> None:
    """Carry the order out, report, and wait for the end."""
    async with contextlib.AsyncExitStack() as stack:
        if waits:
            stack.enter_context(mock.patch.object(CriClient, "start_container", _wait_forever))
        if switch:
            dead_man = made_for(NodeLayout.named(node), Path(directory), seconds=float(switch))
            await stack.enter_async_context(dead_man.at_work())
        await carry_out(node, directory, name, uid, policy, container)


def made_for(node: NodeLayout, directory: Path, *, seconds: float) -> DeadManSwitch:
    """Return the switch of an agent of that node."""
    return DeadManSwitch(
        state_dir=directory,
        socket=str(node.containerd_socket),
        owner=mark_owner(node, directory=directory),
        cgroup_root=Path("/sys/fs/cgroup"),
        proc=Path("/proc"),
        seconds=seconds,
    )


async def carry_out(node: str, directory: str, name: str, uid: str, policy: str, container: str) -> None:
    """Carry the order out, report, and wait indefinitely."""
    pod = pod_view(name, uid=PodUid(uid), policy=RestartPolicy(policy), containers={"main": ContainerId(container)})
    async with agent(NodeLayout.named(node), directory=Path(directory), views=outside.Pods(pod)) as made:
        await made.order(order(pod)).until(StepPhase.STOPPED)
        sys.stdout.write(f"{StepPhase.STOPPED.value}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


async def _wait_forever(*_: object) -> None:
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
