"""A swap on the real CRI-O: the config is rebuilt, and the successor is compared before anything is stopped."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from hack.devnode import crio, images
from kubemend.agent.clients.podresources import convert
from kubemend.agent.health import cgroup_paths
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerState, PodUid
from kubemend.agent.restart import clone, reservations
from kubemend.common import kernel_files
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc
from tests import eventually
from tests.crio.conftest import Swapper
from tests.devnode import kinds
from tests.devnode.pods import Pods, RunningPod, container
from tests.fakes import outside, podresources_server

pytestmark = [pytest.mark.crio, pytest.mark.long]

MIB = 1 << 20
_STALLED = 20.0  # seconds; a creation takes one on a busy machine
LOOP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"


@pytest.fixture
async def cri(runtime: crio.Crio) -> "AsyncIterator[api_pb2_grpc.RuntimeServiceAsyncStub]":
    async with runtime.runtime() as stub:
        yield stub


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kinds.TRAINER, id="trainer"),
        *(pytest.param(kind, id=name, marks=pytest.mark.long) for name, kind in kinds.ONE_BY_ONE.items()),
    ],
)
async def test_a_successor_is_as_the_old_container(pods: Pods, swapper: Swapper, kind: dict[str, Any]) -> None:
    running = await pods.run(name="alike", **kinds.pod(container("main", LOOP, **kind)))
    outcome = await swapper.swap(running)
    assert outcome.result is Result.SWAPPED, outcome
    new = await swapper.cri.container_status(outcome.current["main"])
    assert (new.state, new.attempt) == (ContainerState.RUNNING, 1)
    assert Path(new.log_path).parts[-2:] == ("main", "1.log")
    assert f"{clone.RESTART_COUNT_ENV}=1" in (new.runtime_env or ())
    old = await swapper.cri.container_status(ContainerId(running.containers["main"]))
    assert old.state is ContainerState.EXITED


@pytest.mark.parametrize("grace", [0.0, 5.0])
async def test_a_program_that_handles_sigterm_is_killed_without_grace_period(
    pods: Pods, swapper: Swapper, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", grace: float
) -> None:
    """CRI-O itself would send SIGTERM first, and kubelet would take exit code 0 for the program's completion."""
    running = await pods.run(name="deaf", containers=[container("main", f"trap 'exit 0' TERM; echo up; {LOOP}")])
    target = running.containers["main"]
    log = Path((await _status(cri, target)).log_path)
    await eventually.true(lambda: log.exists() and "up" in log.read_text())
    await swapper.cri.stop_container(ContainerId(target), grace=grace)
    await eventually.true(lambda: _has_ended(cri, target))
    assert (await _status(cri, target)).exit_code == (0 if grace else 137)


LEAVES_ONE = f"[ -n \"$KUBEMEND_RESTART_COUNT\" ] || {{ sleep 1000000 & }}; trap 'exit 1' USR1; {LOOP}"


def _processes(container_id: str) -> list[Path]:
    found = (each / "cgroup" for each in Path("/proc").iterdir() if each.name.isdecimal())
    return [each for each in found if cgroup_paths.container_id(kernel_files.read(each) or "") == container_id]


async def _ends_and_leaves_one(swapper: Swapper, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", old: str) -> None:
    os.kill((await swapper.cri.container_status(ContainerId(old))).pid or 0, signal.SIGUSR1)
    await eventually.true(lambda: _has_ended(cri, old))
    assert _processes(old), "CRI-O ends them itself"


@pytest.mark.parametrize("by_itself", [False, True])
async def test_all_processes_end_that_share_the_pods_pid_namespace(
    pods: Pods, swapper: Swapper, cri: "api_pb2_grpc.RuntimeServiceAsyncStub", *, by_itself: bool
) -> None:
    """The kernel ends only those of a namespace that ends, and CRI-O the others when it removes the container."""
    running = await pods.run(name="shared", containers=[container("main", LEAVES_ONE)], shareProcessNamespace=True)
    old = running.containers["main"]
    await eventually.true(lambda: len(_processes(old)) >= 2)
    if by_itself:
        await _ends_and_leaves_one(swapper, cri, old)
    outcome = await swapper.swap(running)
    assert outcome.result is Result.SWAPPED, outcome
    assert _processes(old) == []


async def test_what_a_container_leaves_ends_also_if_kubelet_replaces_it(
    pods: Pods, swapper: Swapper, cri: "api_pb2_grpc.RuntimeServiceAsyncStub"
) -> None:
    both = [container("other", LOOP), container("main", LEAVES_ONE)]
    running = await pods.run(name="left", containers=both, shareProcessNamespace=True)
    old = running.containers["main"]
    await eventually.true(lambda: len(_processes(old)) >= 2)
    await _ends_and_leaves_one(swapper, cri, old)
    swapping = asyncio.create_task(swapper.swap(running, kubelet_creates=lambda _: True))
    await eventually.true(lambda: _processes(old) == [])
    theirs = await _run_main(cri, running, attempt=1)
    outcome = await swapping
    assert (outcome.result, outcome.current["main"]) == (Result.ADOPTED, theirs)


async def test_a_resize_in_place_and_a_termination_message_are_kept(
    pods: Pods, swapper: Swapper, cri: "api_pb2_grpc.RuntimeServiceAsyncStub"
) -> None:
    says = f"echo 'last words' > /dev/termination-log; {LOOP}"
    running = await pods.run(name="resized", containers=[container("main", says, resources=kinds.SOME_CPU)])
    old = running.containers["main"]
    (view,) = await swapper.cri.list_containers(pod_uid=PodUid(running.pod.uid), name="main")
    await swapper.cri.cached_status(view)  # the agent's cached status is from before the resize
    resize = api_pb2.LinuxContainerResources(
        memory_limit_in_bytes=256 * MIB, cpu_quota=200000, cpu_period=100000, cpu_shares=2048
    )
    await cri.UpdateContainerResources(api_pb2.UpdateContainerResourcesRequest(container_id=old, linux=resize))
    before = (await _status(cri, old)).resources
    assert before.linux.memory_limit_in_bytes == 256 * MIB
    outcome = await swapper.swap(running)
    assert outcome.result is Result.SWAPPED, outcome
    new = await _status(cri, outcome.current["main"])
    assert new.resources == before
    assert _message(await _status(cri, old)) == "last words\n"
    assert _message(new) in ("", "last words\n"), "written by the new program, if by any"


async def test_a_successor_that_would_differ_is_taken_back(
    pods: Pods, swapper: Swapper, cri: "api_pb2_grpc.RuntimeServiceAsyncStub"
) -> None:
    running = await pods.run(name="device", containers=[container("other", LOOP)])
    # The spec does not have the device's path on the node.
    device = api_pb2.Device(host_path="/dev/zero", container_path="/dev/full", permissions="rw")
    old = await _run_main(cri, running, devices=[device])
    outcome = await swapper.swap(running)
    assert outcome.result is Result.NOT_ALIKE
    assert "linux.devices./dev/full.minor" in outcome.detail
    (left,) = await swapper.cri.list_containers(pod_uid=PodUid(running.pod.uid), name="main")
    assert (left.id, left.state) == (old, ContainerState.RUNNING)


_CDI = {
    "cdiVersion": "0.6.0",
    "kind": "example.com/gpu",
    "devices": [
        {
            "name": "claim-0",
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/zero"}],
                "env": ["GPU=0"],
                "mounts": [{"hostPath": "/etc/hostname", "containerPath": "/etc/gpu", "options": ["ro", "bind"]}],
                "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["true", "gpu0"]}],
            },
        },
        {"name": "other", "containerEdits": {"env": ["OTHER=1"]}},
    ],
}


@pytest.mark.parametrize(
    ("claimed", "result", "unlike"),
    [
        (("claim-0",), Result.SWAPPED, ""),
        ((), Result.NOT_ALIKE, "hooks.createContainer has 0 items instead of 1"),
        (("claim-0", "other"), Result.NOT_ALIKE, "process.env.OTHER is new"),
    ],
)
async def test_a_claims_cdi_devices_are_requested_again(
    runtime: crio.Crio,
    pods: Pods,
    swapper: Swapper,
    cri: "api_pb2_grpc.RuntimeServiceAsyncStub",
    claimed: tuple[str, ...],
    result: Result,
    unlike: str,
) -> None:
    """Kubelet names them in CRI alone, and in its list of pods' devices."""
    (runtime.node.cdi_dir / "gpu.json").write_text(json.dumps(_CDI), encoding="utf-8")
    running = await pods.run(name="claims", containers=[container("other", LOOP)])
    old = await _run_main(cri, running, CDI_devices=[api_pb2.CDIDevice(name="example.com/gpu=claim-0")])
    item = podresources_server.pod(
        "claims",
        container="main",
        claims=[("gpu.example.com", "node", "gpu-0")],
        cdi=[f"example.com/gpu={name}" for name in claimed],
    )
    outcome = await swapper.swap(running, holders=outside.Holders(convert.allocations([item])))
    assert outcome.result is result, outcome
    if result is Result.NOT_ALIKE:
        assert unlike in outcome.detail
        (left,) = await swapper.cri.list_containers(pod_uid=PodUid(running.pod.uid), name="main")
        assert (left.id, left.state) == (old, ContainerState.RUNNING)
        return
    new = await swapper.cri.container_status(outcome.current["main"])
    assert new.spec is not None
    assert new.spec["hooks"]["createContainer"][0]["args"] == ["true", "gpu0"]


async def test_a_container_that_kubelet_has_created_is_not_taken_for_a_successor(
    pods: Pods, swapper: Swapper, cri: "api_pb2_grpc.RuntimeServiceAsyncStub"
) -> None:
    """CRI-O answers the second CreateContainer of a name with the id of the container that has it."""
    running = await pods.run(name="faster", containers=[container("other", LOOP)])
    await _run_main(cri, running)
    # Listed before kubelet's was created.
    (seen,) = await swapper.cri.list_containers(pod_uid=PodUid(running.pod.uid), name="main")
    theirs = await _run_main(cri, running, attempt=1)
    outcome = await swapper.swap(running, seen=[seen])
    assert (outcome.result, outcome.current["main"]) == (Result.ADOPTED, theirs)


async def test_the_second_of_two_calls_for_one_name_stalls(
    pods: Pods, cri: "api_pb2_grpc.RuntimeServiceAsyncStub"
) -> None:
    """The reason to leave the successor of an ended container to kubelet. Remove that when this fails."""
    running = await pods.run(name="stalls", containers=[container("other", LOOP)])
    request = await _main(cri, running, attempt=1)
    results = await asyncio.gather(
        *(cri.CreateContainer(request, timeout=_STALLED) for _ in range(2)), return_exceptions=True
    )
    errors = [each for each in results if isinstance(each, grpc.aio.AioRpcError)]
    assert [error.code() for error in errors] == [grpc.StatusCode.DEADLINE_EXCEEDED]


async def test_kubelets_call_for_the_successor_of_an_ended_container_does_not_stall(
    pods: Pods, swapper: Swapper, cri: "api_pb2_grpc.RuntimeServiceAsyncStub"
) -> None:
    running = await pods.run(name="ended", containers=[container("other", LOOP)])
    old = await _run_main(cri, running)
    asked = asyncio.Event()

    def kubelet_creates(_: ContainerRef) -> bool:
        asked.set()
        return True

    await swapper.cri.stop_container(ContainerId(old), grace=0)
    await eventually.true(lambda: _has_ended(cri, old))
    swapping = asyncio.create_task(swapper.swap(running, kubelet_creates=kubelet_creates))
    await asyncio.wait_for(asked.wait(), 60)
    theirs = await _run_main(cri, running, attempt=1)
    outcome = await swapping
    assert (outcome.result, outcome.current["main"]) == (Result.ADOPTED, theirs)


async def _run_main(
    cri: "api_pb2_grpc.RuntimeServiceAsyncStub", running: RunningPod, *, attempt: int = 0, **fields: Any
) -> str:
    """Run a container ``main`` in a pod, as kubelet does, and return its id."""
    request = await _main(cri, running, attempt=attempt, **fields)
    created = (await cri.CreateContainer(request, timeout=_STALLED)).container_id
    await cri.StartContainer(api_pb2.StartContainerRequest(container_id=created))
    return created


async def _main(
    cri: "api_pb2_grpc.RuntimeServiceAsyncStub", running: RunningPod, *, attempt: int, **fields: Any
) -> api_pb2.CreateContainerRequest:
    other = (await _status(cri, running.containers["other"])).labels
    config = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name="main", attempt=attempt),
        image=api_pb2.ImageSpec(image=images.BUSYBOX, user_specified_image=images.BUSYBOX),
        command=["/bin/sh", "-c", LOOP],
        labels={**other, reservations.NAME_LABEL: "main"},
        annotations={clone.RESTART_COUNT_ANNOTATION: str(attempt)},
        log_path=f"main/{attempt}.log",
        linux=api_pb2.LinuxContainerConfig(
            resources=api_pb2.LinuxContainerResources(cpu_period=100000, cpu_shares=2),
            security_context=api_pb2.LinuxContainerSecurityContext(
                namespace_options=api_pb2.NamespaceOption(pid=api_pb2.CONTAINER)
            ),
        ),
        **fields,
    )
    await asyncio.to_thread(Path(running.sandbox.log_directory, "main").mkdir, exist_ok=True)
    return api_pb2.CreateContainerRequest(
        pod_sandbox_id=running.sandbox_id, config=config, sandbox_config=running.sandbox
    )


async def _has_ended(cri: "api_pb2_grpc.RuntimeServiceAsyncStub", container_id: str) -> bool:
    return (await _status(cri, container_id)).state == api_pb2.CONTAINER_EXITED


async def _status(cri: "api_pb2_grpc.RuntimeServiceAsyncStub", container_id: str) -> api_pb2.ContainerStatus:
    return (await cri.ContainerStatus(api_pb2.ContainerStatusRequest(container_id=container_id))).status


def _message(shown: api_pb2.ContainerStatus) -> str:
    """Return what kubelet reads as a container's termination message."""
    return next(
        Path(mount.host_path).read_text() for mount in shown.mounts if mount.container_path == "/dev/termination-log"
    )
