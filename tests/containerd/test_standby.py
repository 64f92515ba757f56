"""Successors on standby, on the real containerd: held at the first instruction, until the old container is dead."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest

from agent.actuator.cgroups import Cgroup
from agent.actuator.exec_hold import ExecHolds, HoldError, Patience
from agent.actuator.roots import Roots
from agent.actuator.standby import Standbys
from agent.cri.client import CriClient
from agent.model.workloads import ContainerId, ContainerState, SandboxId
from common import unix_sockets
from common.pb.runtime.v1 import api_pb2
from hack.devnode import containerd as containerd_part
from hack.devnode import packages
from hack.devnode.containerd import Containerd
from hack.devnode.layout import NodeLayout
from hack.devnode.pods import Pods, RunningPod, container

pytestmark = pytest.mark.containerd

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
VOLUME = [{"name": "data", "mountPath": "/data"}]
DEADLINE = 30.0
SCRIPT = "echo $RUN >> /data/runs; trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture
async def runtime(containerd: Containerd) -> AsyncIterator[CriClient]:
    async with CriClient(str(containerd.node.containerd_socket)) as opened:
        yield opened


@pytest.fixture
async def pod(pods: Pods) -> RunningPod:
    old = container("main", SCRIPT, volumeMounts=VOLUME, env=[{"name": "RUN", "value": "old"}])
    return await pods.run(name="standby", containers=[old], volumes=[{"name": "data", "emptyDir": {}}])


class Bench:
    """One pod with a running container, and what makes successors of it."""

    def __init__(self, containerd: Containerd, runtime: CriClient, pod: RunningPod) -> None:
        self.runtime = runtime
        self.pod = pod
        self.old = ContainerId(pod.containers["main"])
        self.socket = str(containerd.node.containerd_socket)
        self.runs_file = containerd.node.pod_dir(pod.pod.uid) / "volumes" / "kubernetes.io~empty-dir" / "data" / "runs"

    def standbys(self, *, proc: Path = PROC, patience: Patience | None = None) -> Standbys:
        holds = ExecHolds(socket_path=self.socket, proc=proc, patience=patience)
        return Standbys(holds=holds, proc=proc, cgroup_root=CGROUPS)

    def runs(self) -> list[str]:
        return self.runs_file.read_text().split() if self.runs_file.exists() else []

    async def has_run(self, *names: str) -> None:
        async with asyncio.timeout(DEADLINE):
            while True:
                if self.runs() == list(names):
                    return
                await asyncio.sleep(0.01)

    async def has_exited(self, container_id: ContainerId) -> None:
        async with asyncio.timeout(DEADLINE):
            while True:
                if await self.state(container_id) is ContainerState.EXITED:
                    return
                await asyncio.sleep(0.01)

    async def create_next(self, name: str, *, script: str = SCRIPT) -> ContainerId:
        info = await self.runtime.container_info(self.old)
        assert info.config is not None
        config = api_pb2.ContainerConfig(
            metadata=api_pb2.ContainerMetadata(name="main", attempt=info.attempt + 1),
            image=api_pb2.ImageSpec(image=info.config["image"]["image"]),
            command=["sh", "-c", script],
            envs=[api_pb2.KeyValue(key="RUN", value=name.encode())],
            labels=info.config["labels"],
            annotations=info.config["annotations"],
            log_path=f"main/{info.attempt + 1}.log",
            linux=api_pb2.LinuxContainerConfig(
                security_context=api_pb2.LinuxContainerSecurityContext(
                    namespace_options=api_pb2.NamespaceOption(pid=api_pb2.CONTAINER)  # as kubelet's are by default
                )
            ),
            mounts=[
                api_pb2.Mount(container_path=mount["container_path"], host_path=mount["host_path"])
                for mount in info.config["mounts"]
                if mount["container_path"] == "/data"
            ],
        )
        return await self.runtime.create_container(
            sandbox_id=SandboxId(self.pod.sandbox_id), config=config, sandbox_config=self.pod.sandbox
        )

    async def pid(self, container_id: ContainerId) -> int:
        pid = (await self.runtime.container_info(container_id)).pid
        assert pid
        return pid

    async def state(self, container_id: ContainerId) -> ContainerState:
        return (await self.runtime.container_info(container_id)).state


@pytest.fixture
def bench(containerd: Containerd, runtime: CriClient, pod: RunningPod) -> Bench:
    return Bench(containerd, runtime, pod)


async def test_a_held_container_is_running_and_has_not_run(bench: Bench) -> None:
    await bench.has_run("old")
    successor = await bench.create_next("new")
    standby = await bench.standbys().prepare(successor, old_pid=await bench.pid(bench.old))
    await bench.runtime.start_container(successor)
    assert await standby.hold.engaged()
    assert await bench.state(successor) is ContainerState.RUNNING
    assert (PROC / str(await bench.pid(successor)) / "comm").read_text() == "runc:[2:INIT]\n"
    assert bench.runs() == ["old"]
    await bench.runtime.stop_container(bench.old, grace=0)
    standby.let_run(old_is_dead=True)
    await bench.has_run("old", "new")


async def test_a_thread_that_looks_at_the_mounts_late_holds_a_container_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The OCI runtime is not executed before it has looked."""
    look = Roots._look

    def late(roots: Roots, mounts: BinaryIO, wake: int) -> bool:
        time.sleep(0.3)  # far more than a container needs from its root's mount to its first instruction
        return look(roots, mounts, wake)

    monkeypatch.setattr(Roots, "_look", late)
    await bench.has_run("old")
    successor = await bench.create_next("new")
    standby = await bench.standbys().prepare(successor, old_pid=await bench.pid(bench.old))
    await bench.runtime.start_container(successor)
    assert await standby.hold.engaged()
    assert bench.runs() == ["old"]
    await bench.runtime.stop_container(bench.old, grace=0)
    standby.let_run(old_is_dead=True)
    await bench.has_run("old", "new")


async def test_the_old_container_stands_still_meanwhile_and_goes_on_when_the_successor_is_given_up(
    bench: Bench,
) -> None:
    await bench.has_run("old")
    pid = await bench.pid(bench.old)
    successor = await bench.create_next("new")
    standby = await bench.standbys().prepare(successor, old_pid=pid)
    cgroup = Cgroup.of_process(pid, proc=PROC, mounted_at=CGROUPS)
    assert cgroup is not None
    assert (cgroup.path / "cgroup.freeze").read_text().strip() == "1"
    await bench.runtime.remove_container(successor)
    standby.give_up()
    assert (cgroup.path / "cgroup.freeze").read_text().strip() == "0"
    assert await bench.state(bench.old) is ContainerState.RUNNING


async def test_a_frozen_old_container_can_be_ended_without_the_runtime(bench: Bench) -> None:
    await bench.has_run("old")
    successor = await bench.create_next("new")
    standby = await bench.standbys().prepare(successor, old_pid=await bench.pid(bench.old))
    await bench.runtime.start_container(successor)
    assert await standby.hold.engaged()
    standby.let_run(old_is_dead=False)
    await bench.has_run("old", "new")
    await bench.has_exited(bench.old)
    assert (await bench.runtime.container_info(bench.old)).exit_code == 137


async def test_a_frozen_old_container_can_be_ended_by_a_kernel_without_cgroup_kill(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cgroup, "kill", lambda group: group._kill_each())  # as on Linux before 5.14
    await bench.has_run("old")
    successor = await bench.create_next("new")
    standby = await bench.standbys().prepare(successor, old_pid=await bench.pid(bench.old))
    await bench.runtime.start_container(successor)
    assert await standby.hold.engaged()
    standby.let_run(old_is_dead=False)
    await bench.has_run("old", "new")
    await bench.has_exited(bench.old)


async def test_a_runtime_that_is_slow_to_say_started_does_not_make_a_hook_of_the_container(bench: Bench) -> None:
    await bench.has_run("old")
    successor = await bench.create_next("new")
    impatient = bench.standbys(patience=Patience(hook=0.0))
    standby = await impatient.prepare(successor, old_pid=await bench.pid(bench.old))
    await bench.runtime.start_container(successor)
    assert await standby.hold.engaged()
    assert bench.runs() == ["old"]
    await bench.runtime.stop_container(bench.old, grace=0)
    standby.let_run(old_is_dead=True)
    await bench.has_run("old", "new")


async def test_a_held_container_can_be_removed(bench: Bench) -> None:
    await bench.has_run("old")
    successor = await bench.create_next("new")
    standby = await bench.standbys().prepare(successor, old_pid=await bench.pid(bench.old))
    await bench.runtime.start_container(successor)
    assert await standby.hold.engaged()
    await bench.runtime.remove_container(successor)
    standby.give_up()
    assert bench.runs() == ["old"]


async def test_no_hold_lasts_for_ever(bench: Bench) -> None:
    await bench.has_run("old")
    successor = await bench.create_next("new")
    standbys = bench.standbys(patience=Patience(at_most=0.5))
    standby = await standbys.prepare(successor, old_pid=await bench.pid(bench.old))
    await bench.runtime.start_container(successor)
    await bench.has_run("old", "new")
    assert not await standby.hold.engaged()
    standby.let_run(old_is_dead=False)


async def test_other_containers_on_the_same_image_are_not_held(bench: Bench, pods: Pods) -> None:
    await bench.has_run("old")
    successor = await bench.create_next("new")
    standby = await bench.standbys().prepare(successor, old_pid=await bench.pid(bench.old))
    await bench.runtime.start_container(successor)
    assert await standby.hold.engaged()
    other = await pods.run(name="other", containers=[container("main", "sleep 1000")])
    answer = await bench.runtime.exec_sync(ContainerId(other.containers["main"]), ("echo", "hello"), timeout=20)
    assert answer.stdout == b"hello\n"
    standby.let_run(old_is_dead=False)


async def test_this_node_can_hold(bench: Bench) -> None:
    await bench.standbys().check()


async def test_where_roots_are_no_overlays_nothing_is_started_beside_the_old_one(
    binaries: packages.Binaries, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The native snapshotter's roots are directories of the node: no mark can be put on one alone."""
    monkeypatch.setattr(containerd_part, "_snapshotter", lambda _: "native")
    runtime = Containerd(NodeLayout.named(f"native-{worker}-{os.getpid()}"), binaries)
    await runtime.start()
    try:
        async with Pods.on(runtime.node) as made, CriClient(str(runtime.node.containerd_socket)) as cri:
            pod = await made.run(name="native", containers=[container("main", "sleep 3600")])
            pid = (await cri.container_info(ContainerId(pod.containers["main"]))).pid
            standbys = Bench(runtime, cri, pod).standbys()
            with pytest.raises(HoldError, match="would run beside it"):
                await standbys.prepare(ContainerId("x" * 64), old_pid=pid)
            group = Cgroup.of_process(pid or 0, proc=PROC, mounted_at=CGROUPS)
            assert group is not None
            assert not group.frozen
            kinds = Roots(PROC / str(unix_sockets.listener(str(runtime.node.containerd_socket)))).kinds()
            assert kinds - {"overlay"}, "of other nodes of this machine there may be overlays"
    finally:
        await runtime.stop()


async def test_a_runtime_whose_mounts_cannot_be_seen_is_told(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(HoldError, match="PID namespace"):
        await bench.standbys(proc=tmp_path).check()


async def test_a_container_that_is_gone_has_nothing_to_freeze(bench: Bench) -> None:
    with pytest.raises(HoldError, match="cannot be found"):
        await bench.standbys().prepare(ContainerId("x" * 64), old_pid=None)
