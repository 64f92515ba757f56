"""Successors on standby, on the real containerd: held at the first instruction, until the old container is dead."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest

from hack.devnode import packages, patience
from hack.devnode.containerd import Containerd
from hack.devnode.layout import NodeLayout
from hack.devnode.runtime_config import CRUN, RUNC, RuntimeOptions
from kubemend.agent.actuator.hold import fanotify, oci_runtimes
from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.actuator.hold.exec_hold import ExecHolds, HoldError, Timeouts
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.actuator.hold.rootfs_mount_watch import RootfsMountWatcher
from kubemend.agent.actuator.hold.standby import EndedError, Standbys
from kubemend.agent.actuator.stop_requests import StopRequests
from kubemend.agent.app.oci_programs import OciPrograms
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.workloads import ContainerId, ContainerState, SandboxId
from kubemend.agent.restart import headroom
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import aio, unix_sockets
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.devnode.pods import Pods, RunningPod, container

pytestmark = pytest.mark.containerd

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
VOLUME = [{"name": "data", "mountPath": "/data"}]
DEADLINE = 60.0
STOPS, STOP_SECONDS = 6, 10.0
NOT_BEGUN = {RUNC: "runc:[2:INIT]\n", CRUN: "crun\n"}
SCRIPT = "echo $RUN >> /data/runs; trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture
async def runtime(containerd: Containerd) -> AsyncIterator[CriClient]:
    async with CriClient(str(containerd.node.containerd_socket), deadlines=patience.RUNTIME) as opened:
        yield opened


@pytest.fixture
async def pod(pods: Pods) -> RunningPod:
    return await run_old(pods)


async def run_old(pods: Pods) -> RunningPod:
    old = container("main", SCRIPT, volumeMounts=VOLUME, env=[{"name": "RUN", "value": "old"}])
    return await pods.run(name="standby", containers=[old], volumes=[{"name": "data", "emptyDir": {}}])


async def see_a_stop(pods: Pods, runtime: CriClient, stopped: asyncio.Queue[ContainerId]) -> None:
    """Stop containers until a stop is seen: on a busy machine the OCI runtime may end before its command is read."""
    for _ in range(STOPS):
        old = ContainerId((await run_old(pods)).containers["main"])
        await runtime.stop_container(old, grace=0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while await stopped.get() != old:
                    pass  # of another node of this machine
                return
    pytest.fail(f"none of {STOPS} stops was seen")


class Env:
    """Hold one pod with a running container, and the tools that create its successors."""

    def __init__(self, containerd: Containerd, runtime: CriClient, pod: RunningPod) -> None:
        self.runtime = runtime
        self.pod = pod
        self.old = ContainerId(pod.containers["main"])
        self.socket = str(containerd.node.containerd_socket)
        self.runs_file = containerd.node.pod_dir(pod.pod.uid) / "volumes" / "kubernetes.io~empty-dir" / "data" / "runs"

    def standbys(self, *, proc: Path = PROC, timeouts: Timeouts | None = None) -> Standbys:
        patient = Timeouts(engaged=DEADLINE)  # on a busy machine the first exec comes long after the start's answer
        holds = ExecHolds(socket_path=self.socket, proc=proc, timeouts=timeouts if timeouts is not None else patient)
        return Standbys(holds=holds, proc=proc, cgroup_root=CGROUPS)

    def freezer(self) -> Freezer:
        processes = ProcFs()
        return Freezer(
            runtime=self.runtime, holds=None, processes=processes, proc=PROC, cgroup_root=CGROUPS, owner="tests"
        )

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
        info = await self.runtime.container_status(self.old)
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
        pid = (await self.runtime.container_status(container_id)).pid
        assert pid
        return pid

    async def state(self, container_id: ContainerId) -> ContainerState:
        return (await self.runtime.container_status(container_id)).state


@pytest.fixture
def env(containerd: Containerd, runtime: CriClient, pod: RunningPod) -> Env:
    return Env(containerd, runtime, pod)


async def test_a_held_container_is_running_and_has_not_run(env: Env) -> None:
    await env.has_run("old")
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    assert await env.state(successor) is ContainerState.RUNNING
    assert (PROC / str(await env.pid(successor)) / "comm").read_text() == NOT_BEGUN[RuntimeOptions().oci_runtime]
    assert env.runs() == ["old"]
    await env.runtime.stop_container(env.old, grace=0)
    standby.release_successor(old_is_dead=True)
    await env.has_run("old", "new")


async def test_frozen_container_is_frozen_until_it_is_killed(env: Env) -> None:
    await env.has_run("old")
    standbys, pid = env.standbys(), await env.pid(env.old)
    assert not await standbys.is_frozen(pid)
    standbys.freeze(pid, of=env.old)
    assert await standbys.is_frozen(pid)
    await env.runtime.stop_container(env.old, grace=0)
    assert not await standbys.is_frozen(pid)


async def test_container_that_has_another_ones_pid_is_not_frozen(env: Env) -> None:
    """The pid may have been read before the container ended."""
    pid = await env.pid(env.old)
    with pytest.raises(EndedError, match="ended by itself"):
        env.standbys().freeze(pid, of=ContainerId("x" * 64))
    group = Cgroup.of_process(pid, proc=PROC, mounted_at=CGROUPS)
    assert group is not None
    assert not group.frozen


async def test_late_read_of_the_mounts_still_holds_the_container(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """The OCI runtime is not executed before the thread has read the mounts."""
    read_mounts = RootfsMountWatcher._read_mounts

    def late(roots: RootfsMountWatcher, mounts: BinaryIO, wake: int) -> bool:
        time.sleep(0.3)  # far more than a container needs from its root's mount to its first instruction
        return read_mounts(roots, mounts, wake)

    monkeypatch.setattr(RootfsMountWatcher, "_read_mounts", late)
    await env.has_run("old")
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    assert env.runs() == ["old"]
    await env.runtime.stop_container(env.old, grace=0)
    standby.release_successor(old_is_dead=True)
    await env.has_run("old", "new")


async def test_old_container_is_frozen_and_thawed_when_the_successor_is_abandoned(
    env: Env,
) -> None:
    await env.has_run("old")
    pid = await env.pid(env.old)
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=pid)
    cgroup = Cgroup.of_process(pid, proc=PROC, mounted_at=CGROUPS)
    assert cgroup is not None
    assert (cgroup.path / "cgroup.freeze").read_text().strip() == "1"
    await env.runtime.remove_container(successor)
    standby.give_up()
    assert (cgroup.path / "cgroup.freeze").read_text().strip() == "0"
    assert await env.state(env.old) is ContainerState.RUNNING


async def test_a_frozen_old_container_can_be_ended_without_the_runtime(env: Env) -> None:
    await env.has_run("old")
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    standby.release_successor(old_is_dead=False)
    await env.has_run("old", "new")
    await env.has_exited(env.old)
    assert (await env.runtime.container_status(env.old)).exit_code == 137


async def test_frozen_old_container_can_be_ended_without_cgroup_kill(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cgroup, "kill", lambda group: group._kill_each())  # as on Linux before 5.14
    await env.has_run("old")
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    standby.release_successor(old_is_dead=False)
    await env.has_run("old", "new")
    await env.has_exited(env.old)


async def test_slow_start_answer_does_not_hold_the_container_as_a_hook(env: Env) -> None:
    await env.has_run("old")
    successor = await env.create_next("new")
    impatient = env.standbys(timeouts=Timeouts(hook=0.0, engaged=DEADLINE))
    standby = await impatient.prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    assert env.runs() == ["old"]
    await env.runtime.stop_container(env.old, grace=0)
    standby.release_successor(old_is_dead=True)
    await env.has_run("old", "new")


async def test_a_held_container_can_be_removed(env: Env) -> None:
    await env.has_run("old")
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    await env.runtime.remove_container(successor)
    standby.give_up()
    assert env.runs() == ["old"]


async def test_probe_in_a_held_container_does_not_stand_for_its_first_process(env: Env) -> None:
    """Kubelet ends a probe that times out; the paths to keep are copied through the process that is held."""
    await env.has_run("old")
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    first = await env.pid(successor)
    assert standby.hold.asker == first
    with pytest.raises(CriError):
        await env.runtime.exec_sync(successor, ("true",), timeout=1.0)
    assert standby.hold.asker == first
    await env.runtime.stop_container(env.old, grace=0)
    standby.release_successor(old_is_dead=True)
    await env.has_run("old", "new")


async def test_every_hold_ends(env: Env) -> None:
    await env.has_run("old")
    successor = await env.create_next("new")
    standbys = env.standbys(timeouts=Timeouts(at_most=0.5))
    standby = await standbys.prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    await env.has_run("old", "new")
    assert not await standby.hold.engaged()
    standby.release_successor(old_is_dead=False)


async def test_other_containers_on_the_same_image_are_not_held(env: Env, pods: Pods) -> None:
    await env.has_run("old")
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    other = await pods.run(name="other", containers=[container("main", "sleep 1000")])
    answer = await env.runtime.exec_sync(ContainerId(other.containers["main"]), ("echo", "hello"), timeout=DEADLINE)
    assert answer.stdout == b"hello\n"
    standby.release_successor(old_is_dead=False)


async def test_this_node_can_hold_whatever_runs_on_it_now(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent may start while the only container is one of another runtime or snapshotter."""
    monkeypatch.setattr(RootfsMountWatcher, "kinds", lambda _: frozenset({"ext4"}))
    await env.standbys().check()


async def test_without_overlay_roots_no_successor_starts_next_to_the_old_one(
    binaries: packages.Binaries, worker: str
) -> None:
    """The native snapshotter's roots are directories of the node: no mark can be put on one alone."""
    options = RuntimeOptions(snapshotter="native")
    runtime = Containerd(NodeLayout.named(f"native-{worker}-{os.getpid()}"), binaries, options=options)
    await runtime.start()
    try:
        async with (
            Pods.on(runtime.node) as made,
            CriClient(str(runtime.node.containerd_socket), deadlines=patience.RUNTIME) as cri,
        ):
            pod = await made.run(name="native", containers=[container("main", "sleep 3600")])
            pid = (await cri.container_status(ContainerId(pod.containers["main"]))).pid
            standbys = Env(runtime, cri, pod).standbys()
            with pytest.raises(HoldError, match="would run next to it"):
                await standbys.prepare(ContainerId("x" * 64), old_pid=pid)
            group = Cgroup.of_process(pid or 0, proc=PROC, mounted_at=CGROUPS)
            assert group is not None
            assert not group.frozen
            kinds = RootfsMountWatcher(
                PROC / str(unix_sockets.listener(str(runtime.node.containerd_socket))),
                oci_runtimes=oci_runtimes.OciRuntimes(),
            ).kinds()
            assert kinds - {"overlay"}, "of other nodes of this machine there may be overlays"
    finally:
        await runtime.stop()


async def test_a_container_of_crun_is_held_and_frozen_before_it_runs_and_its_stop_is_seen(
    binaries: packages.Binaries, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RuntimeOptions(oci_runtime=CRUN)
    followed, report = asyncio.Event(), fanotify.report_file

    def reported(group: int, file: Path) -> None:
        report(group, file)
        followed.set()

    monkeypatch.setattr(fanotify, "report_file", reported)
    async with (
        Containerd(NodeLayout.named(f"crun-{worker}-{os.getpid()}"), binaries, options=options) as containerd,
        Pods.on(containerd.node) as made,
        CriClient(str(containerd.node.containerd_socket), deadlines=patience.RUNTIME) as cri,
        asyncio.TaskGroup() as tasks,
    ):
        env = Env(containerd, cri, await run_old(made))
        stopped: asyncio.Queue[ContainerId] = asyncio.Queue()
        requests = StopRequests(socket_path=env.socket, proc=PROC, stopped=stopped.put_nowait)
        following = aio.spawn_eternal(tasks, requests.run(), name="stop requests")
        await env.has_run("old")
        successor = await env.create_next("new")
        standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
        await env.runtime.start_container(successor)
        assert await standby.hold.engaged()
        assert (PROC / str(await env.pid(successor)) / "comm").read_text() == NOT_BEGUN[CRUN]
        freezer = env.freezer()
        assert await freezer.freeze(successor, mark="round") == 0.0, "it is said to have run"
        standby.hold.release()
        await env.runtime.stop_container(env.old, grace=0)
        assert env.runs() == ["old"]
        assert freezer.thaw(successor)
        await env.has_run("old", "new")
        async with asyncio.timeout(DEADLINE):
            await followed.wait()
        await see_a_stop(made, cri, stopped)
        following.cancel()
    containerd.node.root.with_name(f".{containerd.node.root.name}.lock").unlink(missing_ok=True)


async def test_stops_by_an_oci_runtime_outside_the_search_path_are_seen_as_containerd_names_it(
    binaries: packages.Binaries, worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "opt" / "runc"
    program.parent.mkdir()
    shutil.copy(binaries.runc, program)
    marked = asyncio.Event()
    report = fanotify.report_file

    def reported(group: int, file: Path) -> None:
        report(group, file)
        if file.samefile(program):
            marked.set()

    monkeypatch.setattr(fanotify, "report_file", reported)
    async with (
        Containerd(
            NodeLayout.named(f"opt-{worker}-{os.getpid()}"), binaries, options=RuntimeOptions(runc=program)
        ) as containerd,
        Pods.on(containerd.node) as made,
        CriClient(str(containerd.node.containerd_socket), deadlines=patience.RUNTIME) as cri,
        asyncio.timeout(2 * DEADLINE),
        asyncio.TaskGroup() as tasks,
    ):
        env = Env(containerd, cri, await run_old(made))
        runtime = PROC / str(unix_sockets.listener(env.socket))
        assert not any(each.samefile(program) for each in oci_runtimes.find(runtime, named=())), (
            "it is in the search path"
        )
        named = oci_runtimes.OciRuntimes()
        programs = OciPrograms(cri, named)
        reading = aio.spawn_eternal(tasks, programs.run(), name="OCI programs")
        await env.pid(env.old)  # connects
        await programs.asked()
        stopped: asyncio.Queue[ContainerId] = asyncio.Queue()
        requests = StopRequests(socket_path=env.socket, proc=PROC, stopped=stopped.put_nowait, runtimes=named)
        following = aio.spawn_eternal(tasks, requests.run(), name="stop requests")
        await marked.wait()
        await see_a_stop(made, cri, stopped)
        for task in (reading, following):
            task.cancel()
    containerd.node.root.with_name(f".{containerd.node.root.name}.lock").unlink(missing_ok=True)


def memory_group(pid: int) -> Path:
    """Return the cgroup of a container that counts its memory, in either version."""
    lines = (line.split(":", 2) for line in (PROC / str(pid) / "cgroup").read_text().splitlines())
    paths = {controllers: path.lstrip("/") for _, controllers, path in lines}
    return CGROUPS / "memory" / paths["memory"] if "memory" in paths else CGROUPS / paths[""]


def most_used(group: Path) -> int:
    """Return the most memory that a cgroup has used."""
    names = ("memory.max_usage_in_bytes", "memory.peak")
    (found,) = [(group / name).read_text() for name in names if (group / name).exists()]
    return int(found)


async def test_a_held_successor_takes_no_more_memory_than_the_rule_allows_for(env: Env) -> None:
    successor = await env.create_next("new")
    standby = await env.standbys().prepare(successor, old_pid=await env.pid(env.old))
    await env.runtime.start_container(successor)
    assert await standby.hold.engaged()
    assert 0 < most_used(memory_group(await env.pid(successor))) <= headroom.HELD_SUCCESSOR_BYTES // 2
    standby.release_successor(old_is_dead=False)
    await env.has_run("old", "new")


async def test_near_the_pods_memory_limit_nothing_is_started_next_to_the_old_container(env: Env) -> None:
    old = await env.pid(env.old)
    pod = memory_group(old).parent
    (limit,) = [pod / name for name in ("memory.limit_in_bytes", "memory.max") if (pod / name).exists()]
    limit.write_text(str(headroom.HELD_SUCCESSOR_BYTES - 1))
    with pytest.raises(HoldError, match="below its memory limit of 15 MiB"):
        await env.standbys().prepare(ContainerId("x" * 64), old_pid=old)
    group = Cgroup.of_process(old, proc=PROC, mounted_at=CGROUPS)
    assert group is not None
    assert not group.frozen
    limit.write_text(str(4 * headroom.HELD_SUCCESSOR_BYTES))
    successor = await env.create_next("new")
    (await env.standbys().prepare(successor, old_pid=old)).give_up()


async def test_runtime_with_invisible_mounts_is_reported(env: Env, tmp_path: Path) -> None:
    with pytest.raises(HoldError, match="PID namespace"):
        await env.standbys(proc=tmp_path).check()


async def test_a_container_that_is_gone_has_nothing_to_freeze(env: Env) -> None:
    with pytest.raises(EndedError, match="ended by itself"):
        await env.standbys().prepare(ContainerId("x" * 64), old_pid=None)
