"""containerd finishes a call although its caller is killed in the middle of it."""

import asyncio
import subprocess
import sys

import pytest

from hack.devnode import patience
from hack.devnode.containerd import Containerd
from hack.devnode.layout import NodeLayout
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerState, PodRef, PodUid, SandboxId
from kubemend.agent.restart import clone, intents
from tests.devnode.pods import Pods, RunningPod, container

pytestmark = pytest.mark.containerd

DEADLINE = 60.0

CALLER = """
import asyncio, sys
from pathlib import Path
from kubemend.agent.clients.cri.connection_drain import ConnectionDrain
from kubemend.agent.clients.cri.client import CriClient

async def main():
    async with CriClient(sys.argv[1]) as cri:
        await cri.version()
        async for _ in cri.connections():
            ConnectionDrain(cgroup_root=Path("/sys/fs/cgroup")).hold()
            break
        await cri.start_container(sys.argv[2])

asyncio.run(main())
"""


async def create_successor(cri: CriClient, pod: RunningPod) -> ContainerId:
    """Create the next attempt of the pod's container, from its own config."""
    old = ContainerId(pod.containers["main"])
    info = await cri.container_status(old)
    intent = intents.Intent(
        id="afterlife",
        target=ContainerRef(PodRef(pod.pod.namespace, pod.pod.name, PodUid(pod.pod.uid)), "main"),
        sandbox_id=SandboxId(pod.sandbox_id),
        old=old,
        old_attempt=0,
        order=intents.SwapOrder.STOP_FIRST,
        reason="Test",
        created_at=0.0,
    )
    made = clone.successor(info.config, intent=intent, runtime_env=info.runtime_env)
    return await cri.create_container(
        sandbox_id=intent.sandbox_id,
        config=made.config,
        sandbox_config=await cri.sandbox_config(intent.sandbox_id),
    )


def call_start(node: NodeLayout, container_id: ContainerId) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", CALLER, str(node.containerd_socket), container_id])


async def test_start_of_a_killed_caller_is_carried_out(containerd: Containerd, pods: Pods) -> None:
    node = containerd.node
    pod = await pods.run(name="afterlife", containers=[container("main", "sleep 3600")])
    async with CriClient(str(node.containerd_socket), deadlines=patience.RUNTIME) as cri:
        successor = await create_successor(cri, pod)
        task = node.containerd_state / "io.containerd.runtime.v2.task" / "k8s.io" / successor
        caller = call_start(node, successor)
        try:
            async with asyncio.timeout(DEADLINE):
                while not task.exists():  # noqa: ASYNC110 - containerd has no event for its beginning
                    await asyncio.sleep(0.001)
        finally:
            caller.kill()
            caller.wait(timeout=DEADLINE)
        async with asyncio.timeout(DEADLINE):
            while (info := await cri.container_status(successor)).state is ContainerState.CREATED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # containerd has no event for a start that fails
    assert info.state is ContainerState.RUNNING, "without the connection it is given up and has exited with 128"
