"""A swap keeps resized resources, termination messages and image volumes, on the real containerd.

After each the successor's OCI spec is the old container's but for what must differ.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hack.devnode.containerd import Containerd
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerState, PodUid
from kubemend.agent.restart import intents, likeness
from kubemend.common import grpcio
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc
from tests import eventually
from tests.devnode.pods import Pods, RunningPod, container
from tests.environments.swaps import Swaps

pytestmark = pytest.mark.containerd

MIB = 1 << 20
LOOP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
LAST_WORDS = "illegal memory access at step 4711"


class Swapper:
    """Swap the container ``main`` of pods."""

    def __init__(self, swaps: Swaps) -> None:
        self.cri = swaps.cri
        self._swaps = swaps

    async def swap(self, running: RunningPod) -> ContainerStatus:
        """Return the successor, once it runs."""
        intent, successor_spec = await self._swaps.prepared(running, order=intents.SwapOrder.STOP_FIRST)
        outcome = await SwapActuator(self._swaps.tools()).carry_out(intent, successor_spec=successor_spec)
        assert outcome.result is Result.SWAPPED, outcome
        ids = (intent.old, outcome.current["main"])
        old, new = [likeness.Original(each, await self._spec(each)) for each in ids]
        made = successor_spec.successor
        assert likeness.difference(old, new, config=made.config, termination_path=made.termination_path) is None
        return await self.cri.container_status(outcome.current["main"])

    async def _spec(self, container_id: str) -> dict[str, Any]:
        async with grpcio.unix_channel(self.cri.endpoint) as channel:
            stub: api_pb2_grpc.RuntimeServiceAsyncStub = api_pb2_grpc.RuntimeServiceStub(channel)
            request = api_pb2.ContainerStatusRequest(container_id=container_id, verbose=True)
            spec: dict[str, Any] = json.loads((await stub.ContainerStatus(request)).info["info"])["runtimeSpec"]
        return spec


@pytest.fixture
async def swapper(containerd: Containerd) -> AsyncIterator[Swapper]:
    async with Swaps.on(str(containerd.node.containerd_socket)) as swaps:
        yield Swapper(swaps)


async def status(cri: "api_pb2_grpc.RuntimeServiceAsyncStub", container_id: str) -> api_pb2.ContainerStatus:
    return (await cri.ContainerStatus(api_pb2.ContainerStatusRequest(container_id=container_id))).status


def message_of(shown: api_pb2.ContainerStatus) -> Path:
    """Return the file from which kubelet reads a container's termination message."""
    return Path(next(mount.host_path for mount in shown.mounts if mount.container_path == "/dev/termination-log"))


async def test_a_resize_in_place_is_kept(
    pods: Pods, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", swapper: Swapper
) -> None:
    limits = {"limits": {"memory": "64Mi", "cpu": "1"}}
    running = await pods.run(name="resized", containers=[container("main", LOOP, resources=limits)])
    old = running.containers["main"]
    (view,) = await swapper.cri.list_containers(pod_uid=PodUid(running.pod.uid), name="main")
    await swapper.cri.cached_status(view)  # the agent's cached status is from before the resize
    resize = api_pb2.LinuxContainerResources(
        memory_limit_in_bytes=256 * MIB, cpu_quota=200000, cpu_period=100000, cpu_shares=2048
    )
    await cri.UpdateContainerResources(api_pb2.UpdateContainerResourcesRequest(container_id=old, linux=resize))
    resized = (await status(cri, old)).resources
    assert resized.linux.memory_limit_in_bytes == 256 * MIB
    new = await swapper.swap(running)
    assert (await status(cri, new.id)).resources == resized


async def test_termination_message_is_kept_and_not_the_successors(
    pods: Pods, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", swapper: Swapper
) -> None:
    dies_once = (
        f"[ -n \"$KUBEMEND_RESTART_COUNT\" ] || {{ echo '{LAST_WORDS}' > /dev/termination-log; exit 3; }}; {LOOP}"
    )
    running = await pods.run(name="lastwords", containers=[container("main", dies_once)])
    old = ContainerId(running.containers["main"])

    async def has_died() -> bool:
        return (await swapper.cri.container_status(old)).state is ContainerState.EXITED

    await eventually.true(has_died)
    new = await swapper.swap(running)
    before, after = message_of(await status(cri, old)), message_of(await status(cri, new.id))
    assert before.read_text() == f"{LAST_WORDS}\n"
    assert after.read_text() == ""
    assert before.parent == after.parent
    assert before.stat().st_mode == after.stat().st_mode


async def test_a_file_of_the_node_mounted_at_the_termination_path_is_not_written(
    pods: Pods, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", swapper: Swapper, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("of the node")
    mounted = [{"name": "theirs", "mountPath": "/dev/termination-log", "readOnly": True}]
    running = await pods.run(
        name="covered",
        containers=[container("main", LOOP, volumeMounts=mounted)],
        volumes=[{"name": "theirs", "hostPath": {"path": str(precious), "type": "File"}}],
    )
    new = await swapper.swap(running)
    assert precious.read_text() == "of the node"
    assert message_of(await status(cri, new.id)) == precious, "kubelet takes the first"


async def test_a_volume_of_an_image_is_mounted_again(
    pods: Pods, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", swapper: Swapper
) -> None:
    running = await pods.run(name="imagevolume", containers=[container("other", LOOP)])
    other = await swapper.cri.container_status(ContainerId(running.containers["other"]))
    image = await start_with_image_volume(running, cri, beside=other)
    new = await swapper.swap(running)
    assert new.attempt == 1
    assert new.runtime_type == "io.containerd.runc.v2"
    assert new.config is not None
    (mount,) = new.config["mounts"]
    assert (mount["container_path"], mount["image"]["image"], mount["readonly"]) == ("/model", image.image, True)


async def start_with_image_volume(
    running: RunningPod, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", *, beside: ContainerStatus
) -> api_pb2.ImageSpec:
    """Start ``main`` in the pod, with the other container's image as a volume, which is returned."""
    assert beside.config is not None
    image = api_pb2.ImageSpec(image=beside.config["image"]["image"])
    config = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name="main"),
        image=image,
        command=["/bin/sh", "-c", LOOP],
        mounts=[api_pb2.Mount(container_path="/model", image=image, readonly=True)],
        labels=beside.config["labels"] | {"io.kubernetes.container.name": "main"},
        annotations=beside.config["annotations"],
        log_path="main/0.log",
        linux=api_pb2.LinuxContainerConfig(
            resources=api_pb2.LinuxContainerResources(cpu_shares=2),
            security_context=api_pb2.LinuxContainerSecurityContext(
                namespace_options=api_pb2.NamespaceOption(pid=api_pb2.CONTAINER)
            ),
        ),
    )
    (Path(running.sandbox.log_directory) / "main").mkdir()
    created = await cri.CreateContainer(
        api_pb2.CreateContainerRequest(pod_sandbox_id=running.sandbox_id, config=config, sandbox_config=running.sandbox)
    )
    await cri.StartContainer(api_pb2.StartContainerRequest(container_id=created.container_id))
    return image
