"""A swap keeps resized resources, termination messages and image volumes, on the real containerd.

In each the successor's OCI spec is the old container's but for what must differ, or the swap takes it back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hack.devnode.containerd import Containerd
from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.actuator.hold.exec_hold import ExecHolds
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerState, PodUid
from kubemend.agent.restart import intents, steps
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc
from tests import eventually
from tests.devnode import kinds
from tests.devnode.pods import Pods, RunningPod, container
from tests.environments.swaps import Swaps

pytestmark = pytest.mark.containerd

MIB = 1 << 20
PROC = Path("/proc")
LOOP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
LAST_WORDS = "illegal memory access at step 4711"


class Swapper:
    """Swap the container ``main`` of pods."""

    def __init__(self, swaps: Swaps) -> None:
        self.cri = swaps.cri
        self._swaps = swaps

    async def swap(self, running: RunningPod) -> ContainerStatus:
        """Return the successor, once it runs. It is compared with the old container even if its config is a copy."""
        intent, successor_spec = await self._swaps.prepared(running, order=intents.SwapOrder.STOP_FIRST)
        successor_spec = replace(successor_spec, successor=replace(successor_spec.successor, is_copy=False))
        outcome = await SwapActuator(self._swaps.tools()).carry_out(intent, successor_spec=successor_spec)
        assert outcome.result is Result.SWAPPED, outcome
        return await self.cri.container_status(outcome.current["main"])

    async def copies(self, running: RunningPod) -> bool:
        """Return whether the successor's config would be a plain copy."""
        _, successor_spec = await self._swaps.prepared(running, order=intents.SwapOrder.STOP_FIRST)
        return successor_spec.successor.is_copy

    async def swap_with_loss(
        self, running: RunningPod, *, lose: Callable[[api_pb2.ContainerConfig], None], order: intents.SwapOrder
    ) -> str:
        """Swap with a successor whose config has lost something; return why it is taken back, with nothing stopped."""
        intent, successor_spec = await self._swaps.prepared(running, order=order)
        lose(successor_spec.successor.config)
        holds = ExecHolds(socket_path=self.cri.endpoint, proc=PROC)
        standbys = Standbys(holds=holds, proc=PROC, cgroup_root=Path("/sys/fs/cgroup"))
        outcome = await SwapActuator(self._swaps.tools(standbys=standbys)).carry_out(
            intent, successor_spec=successor_spec
        )
        assert outcome.result is Result.NOT_ALIKE, outcome
        assert (steps.StepKind.START.value in outcome.phases) is order.starts_first
        (left,) = await self.cri.list_containers(pod_uid=PodUid(running.pod.uid), name="main")
        assert (left.id, left.state) == (intent.old, ContainerState.RUNNING)
        status = await self.cri.container_status(left.id)
        assert status.pid is not None
        cgroup = Cgroup.of_process(status.pid, proc=PROC, mounted_at=Path("/sys/fs/cgroup"))
        assert cgroup is not None
        assert not cgroup.wait_frozen(timeout=0)
        return outcome.detail


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
    running = await run_with_image_and_device(pods, cri, swapper)
    new = await swapper.swap(running)
    assert new.attempt == 1
    assert new.runtime_type == "io.containerd.runc.v2"
    assert new.config is not None
    (mount,) = new.config["mounts"]
    assert (mount["container_path"], mount["image"]["image"], mount["readonly"]) == (
        "/model",
        new.config["image"]["image"],
        True,
    )


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kinds.TRAINER, id="trainer"),
        pytest.param({"securityContext": {"privileged": True}}, id="privileged"),
        *(pytest.param(kind, id=name, marks=pytest.mark.long) for name, kind in kinds.ONE_BY_ONE.items()),
    ],
)
async def test_a_successor_is_as_the_old_container(pods: Pods, swapper: Swapper, kind: dict[str, Any]) -> None:
    running = await pods.run(name="alike", **kinds.pod(container("main", LOOP, **kind)))
    assert (await swapper.swap(running)).attempt == 1


async def test_a_config_is_a_plain_copy_until_it_is_resized(
    pods: Pods, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", swapper: Swapper
) -> None:
    """The runtime shows the same resources that it was asked for, so that most swaps need no comparison."""
    main = container("main", LOOP, resources=kinds.SOME_CPU)
    running = await pods.run(name="copy", containers=[main])
    assert await swapper.copies(running)
    resize = api_pb2.LinuxContainerResources(memory_limit_in_bytes=256 * MIB)
    request = api_pb2.UpdateContainerResourcesRequest(container_id=running.containers["main"], linux=resize)
    await cri.UpdateContainerResources(request)
    assert not await swapper.copies(running)


def lose_volume(config: api_pb2.ContainerConfig) -> None:
    del config.mounts[:]


def lose_device(config: api_pb2.ContainerConfig) -> None:
    del config.devices[:]


def lose_resize(config: api_pb2.ContainerConfig) -> None:
    config.linux.resources.memory_limit_in_bytes = config.linux.resources.memory_swap_limit_in_bytes = 64 * MIB


@pytest.mark.parametrize("order", [intents.SwapOrder.CREATE_FIRST, intents.SwapOrder.START_FIRST])
@pytest.mark.parametrize(
    ("lose", "named"),
    [
        (lose_volume, "mounts./model."),
        (lose_device, "linux.devices./dev/full."),
        (lose_resize, "linux.resources.memory.limit differs"),
    ],
)
async def test_a_successor_that_lost_something_is_taken_back(
    pods: Pods,
    cri: "api_pb2_grpc.RuntimeServiceAsyncStub",
    swapper: Swapper,
    order: intents.SwapOrder,
    lose: Callable[[api_pb2.ContainerConfig], None],
    named: str,
) -> None:
    running = await run_with_image_and_device(pods, cri, swapper)
    resize = api_pb2.LinuxContainerResources(memory_limit_in_bytes=256 * MIB)
    request = api_pb2.UpdateContainerResourcesRequest(container_id=running.containers["main"], linux=resize)
    await cri.UpdateContainerResources(request)
    detail = await swapper.swap_with_loss(running, lose=lose, order=order)
    assert detail.startswith(f"the successor would differ: {named}")


async def run_with_image_and_device(
    pods: Pods, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", swapper: Swapper
) -> RunningPod:
    """Run ``main`` with an image as a volume, a device of the node and a memory limit, beside ``other``."""
    running = await pods.run(name="imagevolume", containers=[container("other", LOOP)])
    beside = await swapper.cri.container_status(ContainerId(running.containers["other"]))
    assert beside.config is not None
    image = api_pb2.ImageSpec(image=beside.config["image"]["image"])
    config = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name="main"),
        image=image,
        command=["/bin/sh", "-c", LOOP],
        mounts=[api_pb2.Mount(container_path="/model", image=image, readonly=True)],
        devices=[api_pb2.Device(host_path="/dev/full", container_path="/dev/full", permissions="rw")],
        labels=beside.config["labels"] | {"io.kubernetes.container.name": "main"},
        annotations=beside.config["annotations"],
        log_path="main/0.log",
        linux=api_pb2.LinuxContainerConfig(
            resources=api_pb2.LinuxContainerResources(cpu_shares=2, memory_limit_in_bytes=64 * MIB),
            security_context=api_pb2.LinuxContainerSecurityContext(
                namespace_options=api_pb2.NamespaceOption(pid=api_pb2.CONTAINER)
            ),
        ),
    )
    await asyncio.to_thread((Path(running.sandbox.log_directory) / "main").mkdir)
    created = await cri.CreateContainer(
        api_pb2.CreateContainerRequest(pod_sandbox_id=running.sandbox_id, config=config, sandbox_config=running.sandbox)
    )
    await cri.StartContainer(api_pb2.StartContainerRequest(container_id=created.container_id))
    running.containers["main"] = created.container_id
    return running
