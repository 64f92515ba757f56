"""The dev node's containerd: it starts, runs containers, survives faults, and leaves nothing behind."""

import pathlib
from typing import TypeAlias

import grpc
import pytest

from hack.devnode import cgroups, claims, images, leftovers, packages, processes
from hack.devnode.containerd import Containerd, ContainerdError
from hack.devnode.layout import NodeLayout
from kubemend.common import grpcio
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc
from tests import eventually
from tests.devnode.pods import Pods, RunningPod, container

Cri: TypeAlias = "api_pb2_grpc.RuntimeServiceAsyncStub"

pytestmark = pytest.mark.containerd

SLEEP = "exec sleep 1000"
SECONDS = 60


async def test_a_container_runs_and_writes_its_log(containerd: Containerd, pods: Pods, cri: Cri) -> None:
    events = cri.GetContainerEvents(api_pb2.GetEventsRequest(), timeout=SECONDS)
    pod = await pods.run(name="writer", containers=[container("main", "echo hello; echo done > /dev/termination-log")])
    async for event in events:
        stopped = event.container_event_type == api_pb2.CONTAINER_STOPPED_EVENT
        if stopped and event.container_id == pod.containers["main"]:
            break
    events.cancel()
    written = containerd.node.pod_log_dir(namespace="default", name="writer", uid=pod.pod.uid) / "main" / "0.log"
    await eventually.true(lambda: written.read_text().endswith("stdout F hello\n"))  # another task of containerd writes
    [message] = (containerd.node.pod_dir(pod.pod.uid) / "containers" / "main").iterdir()
    assert message.read_text() == "done\n"
    [link] = containerd.node.container_log_links.glob("writer_*")
    assert link.resolve() == written


async def test_exec_answers_from_within_the_container(pods: Pods, cri: Cri) -> None:
    pod = await pods.run(name="exec", containers=[container("main", SLEEP, env=[{"name": "WHO", "value": "me"}])])
    request = api_pb2.ExecSyncRequest(
        container_id=pod.containers["main"], cmd=["sh", "-c", "echo $WHO on $(hostname)"], timeout=SECONDS
    )
    answer = await cri.ExecSync(request, timeout=SECONDS)
    assert (answer.exit_code, answer.stdout) == (0, b"me on exec\n")


async def test_containers_have_the_form_of_kubelets(pods: Pods, cri: Cri) -> None:
    pod = await pods.run(
        name="kubelike",
        containers=[container("main", SLEEP)],
        uid="0a1b2c3d-0000-4000-8000-000000000001",
        annotations={"kubemend.io/restart": "InPlace"},
        cpus={"main": "0"},
    )
    request = api_pb2.ContainerStatusRequest(container_id=pod.containers["main"], verbose=True)
    shown = await cri.ContainerStatus(request, timeout=SECONDS)
    assert shown.status.labels["io.kubernetes.pod.uid"] == "0a1b2c3d-0000-4000-8000-000000000001"
    assert shown.status.annotations["io.kubernetes.container.restartCount"] == "0"
    assert shown.status.annotations["io.kubernetes.container.terminationMessagePath"] == "/dev/termination-log"
    assert '"cpuset_cpus":"0"' in shown.info["info"]
    [sandbox] = (await cri.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=SECONDS)).items
    assert sandbox.annotations["kubemend.io/restart"] == "InPlace"


async def test_pods_reach_this_machine_and_each_other_only(containerd: Containerd, pods: Pods, cri: Cri) -> None:
    forwarding = _forwarding()
    one = await pods.run(name="one", containers=[container("main", SLEEP)])
    two = await pods.run(name="two", containers=[container("main", SLEEP)])
    assert await _pings(cri, one, containerd.node.gateway)
    assert await _pings(cri, one, two.ip)
    routes = await cri.ExecSync(
        api_pb2.ExecSyncRequest(container_id=one.containers["main"], cmd=["ip", "route"], timeout=SECONDS),
        timeout=SECONDS,
    )
    assert b"default" not in routes.stdout
    assert _forwarding() == forwarding


async def test_containers_survive_a_restart_and_a_kill_of_containerd(
    node: NodeLayout, binaries: packages.Binaries
) -> None:
    async with Containerd(node, binaries) as runtime, Pods.on(node) as pods, runtime.runtime() as cri:
        pod = await pods.run(name="survivor", containers=[container("main", SLEEP)])
        first = await _running_since(cri, pod)
        await runtime.restart()
        assert await _running_since(cri, pod) == first
        await runtime.kill()
        await runtime.restart()
        assert await _running_since(cri, pod) == first


async def test_paused_containerd_does_not_answer_until_resumed(node: NodeLayout, binaries: packages.Binaries) -> None:
    async with Containerd(node, binaries) as runtime, runtime.runtime() as cri:
        await cri.Version(api_pb2.VersionRequest(), timeout=SECONDS)
        runtime.pause()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await cri.Version(api_pb2.VersionRequest(), timeout=0.2)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        runtime.resume()
        await cri.Version(api_pb2.VersionRequest(), timeout=SECONDS)


async def test_two_nodes_one_after_the_other_leave_nothing_behind(
    node: NodeLayout, binaries: packages.Binaries
) -> None:
    for _ in range(2):
        async with Containerd(node, binaries) as runtime:
            await _start_unattended_pod(node)
            daemon = processes.ProcessId.of(runtime.pid)
            assert leftovers.find(node)
        assert leftovers.find(node) == []
        assert daemon is not None
        assert not daemon.alive()


async def test_a_crashed_node_is_reaped_completely(node: NodeLayout, binaries: packages.Binaries) -> None:
    runtime = Containerd(node, binaries)
    await runtime.start()
    await _start_unattended_pod(node)
    await runtime.kill()
    found = leftovers.find(node)
    for what in ("containerd-shim", "container process", "mount", "cgroup", "bridge", "CNI result", "directory"):
        assert any(what in line for line in found), what
    await leftovers.reap(node)
    assert leftovers.find(node) == []
    await runtime.stop()


async def test_a_node_is_reaped_by_the_next_start_once_its_owner_has_died(
    node: NodeLayout, binaries: packages.Binaries
) -> None:
    runtime = Containerd(node, binaries)
    await runtime.start()
    await _start_unattended_pod(node)
    await runtime.kill()
    await leftovers.reap_abandoned()
    assert leftovers.find(node), "its owner lives"
    runtime._claim.give_back()  # as the kernel does at the owner's end
    await leftovers.reap_abandoned()
    await eventually.true(lambda: leftovers.find(node) == [])  # another program that starts may be at it
    await runtime.stop()


async def test_frozen_containers_are_reaped_as_well(node: NodeLayout, binaries: packages.Binaries) -> None:
    runtime = Containerd(node, binaries)
    await runtime.start()
    await _start_unattended_pod(node)
    _freeze(node)
    await runtime.kill()
    await leftovers.reap(node)
    assert leftovers.find(node) == []
    await runtime.stop()


async def test_node_in_use_is_not_treated_as_a_crashed_one(containerd: Containerd, binaries: packages.Binaries) -> None:
    with pytest.raises(claims.NodeInUseError, match="in use"):
        await Containerd(containerd.node, binaries).start()
    assert containerd.node.containerd_socket.is_socket()


async def test_failed_start_shows_the_log(
    node: NodeLayout, binaries: packages.Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hack.devnode.runtime_config.containerd_config", lambda *_, **__: "version = 'no number'")
    with pytest.raises(ContainerdError, match=r"(?s)ended with status 1.*toml"):
        await Containerd(node, binaries).start()
    assert leftovers.find(node) == []


async def test_legacy_containerd_runs_containers_but_has_no_event_stream(
    node: NodeLayout, legacy_binaries: packages.Binaries
) -> None:
    assert legacy_binaries.version[:2] == (1, 6)
    async with Containerd(node, legacy_binaries) as runtime, Pods.on(node) as pods, runtime.runtime() as cri:
        pod = await pods.run(name="legacy", containers=[container("main", SLEEP)])
        assert await _running_since(cri, pod) > 0
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await cri.GetContainerEvents(api_pb2.GetEventsRequest(), timeout=SECONDS).read()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert leftovers.find(node) == []


def test_images_are_the_same_bytes_every_time(node: NodeLayout, binaries: packages.Binaries) -> None:
    archives = [node.root / "one.tar", node.root / "two.tar"]
    node.root.mkdir(parents=True)
    for archive in archives:
        images.build(binaries, archive)
    assert archives[0].read_bytes() == archives[1].read_bytes()


def test_packages_are_not_fetched_twice(binaries: packages.Binaries, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("went to the network")

    monkeypatch.setattr("hack.devnode.apt.unpack", refuse)
    assert packages.ensure_packages() == binaries


async def _start_unattended_pod(node: NodeLayout) -> None:
    """Start a pod that only the end of the node removes."""
    async with grpcio.unix_channel(str(node.containerd_socket)) as channel:
        await Pods(node, channel).run(name="unattended", containers=[container("main", SLEEP)])


async def _running_since(cri: Cri, pod: RunningPod) -> int:
    """Return when the container ``main`` was started (ns); it must be running."""
    request = api_pb2.ContainerStatusRequest(container_id=pod.containers["main"])
    shown = await cri.ContainerStatus(request, timeout=SECONDS, wait_for_ready=True)
    assert shown.status.state == api_pb2.CONTAINER_RUNNING
    return shown.status.started_at


async def _pings(cri: Cri, pod: RunningPod, address: str) -> bool:
    command = ["ping", "-c", "1", "-W", "2", address]
    request = api_pb2.ExecSyncRequest(container_id=pod.containers["main"], cmd=command, timeout=SECONDS)
    return (await cri.ExecSync(request, timeout=SECONDS)).exit_code == 0


def _forwarding() -> str:
    return pathlib.Path("/proc/sys/net/ipv4/ip_forward").read_text(encoding="ascii")


def _freeze(node: NodeLayout) -> None:
    """Freeze all containers of a node: by cgroup v1's freezer, whose frozen processes even SIGKILL does not end."""
    mounted_at, name = pathlib.Path("/sys/fs/cgroup"), cgroups.path(node.cgroup_parent).removeprefix("/")
    old, new = mounted_at / "freezer" / name / "freezer.state", mounted_at / name / "cgroup.freeze"
    if old.exists():
        old.write_text("FROZEN", encoding="ascii")
    else:
        new.write_text("1", encoding="ascii")
