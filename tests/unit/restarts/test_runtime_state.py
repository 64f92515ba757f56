"""Find a restart's target with few calls, and correct start times that the runtime records by a settable clock."""

from dataclasses import replace

import grpc
import pytest

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.podresources import convert
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.agent.restart import clone
from kubemend.agent.restarts import runtime_state
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.environments.runtime import TARGET, CriEnv
from tests.fakes import outside, podresources_server
from tests.unit.restart import builders

BOOTED_AT = 1_000_000.0
STARTED = 500.0  # seconds since boot
PID = 4242
NOW = 900.0  # seconds since boot


def target_started_at(*, noted: float) -> runtime_state.RuntimeState:
    """Return a target whose start the runtime recorded at that Unix time."""
    view = builders.view("old")
    info = ContainerStatus(
        id=view.id,
        ref=view.ref,
        attempt=view.attempt,
        state=view.state,
        created_at=view.created_at,
        started_at=int(noted * 1_000_000_000),
        finished_at=0,
        exit_code=0,
        reason="",
        message="",
        log_path="",
        annotations={},
        pid=PID,
    )
    return runtime_state.RuntimeState(info=info, siblings=(view,), view=view, sandbox_ready=True)


def started_at(target: runtime_state.RuntimeState, *, wall_now: float, process_of: ContainerId | None = None) -> float:
    processes = outside.Processes()
    processes.add(PID, container=process_of, started=STARTED)
    step = runtime_state.clock_step(target.info, processes=processes, now=wall_now, since_boot=NOW)
    found = target.facts(now=0.0, stepped=step).started_at
    assert found is not None
    return found


@pytest.mark.parametrize("step", [-3600.0, -5.0, 0.0, 5.0, 86_400.0])
def test_clock_step_corrects_start_time(step: float) -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED)
    assert started_at(target, wall_now=BOOTED_AT + NOW + step, process_of=target.view.id) == pytest.approx(
        BOOTED_AT + STARTED + step
    )


def test_clock_step_ignores_slow_process_start() -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED + 1.5)
    assert started_at(target, wall_now=BOOTED_AT + NOW, process_of=target.view.id) == pytest.approx(
        BOOTED_AT + STARTED + 1.5
    )


@pytest.mark.parametrize("process_of", [None, ContainerId("another")], ids=["no-containers", "another-containers"])
def test_process_that_has_the_pid_of_one_that_has_ended_shows_no_clock_step(process_of: ContainerId | None) -> None:
    target = target_started_at(noted=BOOTED_AT + STARTED)
    assert started_at(target, wall_now=0.0, process_of=process_of) == pytest.approx(BOOTED_AT + STARTED)


@pytest.mark.parametrize(
    ("kind", "reason"), [("overlay", None), (None, None), ("ext4", "its root is ext4, not an overlay")]
)
def test_not_holdable_reports_root_that_is_no_overlay(kind: str | None, reason: str | None) -> None:
    target = target_started_at(noted=BOOTED_AT)
    processes = outside.Processes(roots=kind)
    assert runtime_state.not_holdable(target.info, processes=processes) is None, "the process is not the container's"
    processes.add(PID, container=target.view.id)
    assert runtime_state.not_holdable(target.info, processes=processes) == reason


async def test_ended_container_is_queried_once(cri_env: CriEnv) -> None:
    resized = api_pb2.LinuxContainerResources(cpu_quota=200000, memory_limit_in_bytes=256)
    cri_env.server.runtime.containers[cri_env.old].resized = resized
    cri_env.server.runtime.exit(cri_env.old, exit_code=3)
    (seen,) = await cri_env.containers()
    before = len(cri_env.server.calls)
    target = await runtime_state.find(cri_env.cri, TARGET, known=(seen,))
    assert target is not None
    assert (target.info.state, target.info.exit_code) == (ContainerState.EXITED, 3)
    processes = outside.Processes()
    successor_spec = await runtime_state.successor_spec(
        cri_env.cri,
        target.info,
        intent=cri_env.intent(),
        pod=None,
        processes=processes,
    )
    assert successor_spec.successor.config.linux.resources == resized
    calls = cri_env.server.called()[before:]
    assert sorted(calls) == ["ContainerStatus", "ListContainers", "ListPodSandbox", "PodSandboxStatus"]


async def test_the_sandbox_of_another_pod_is_refused(cri_env: CriEnv) -> None:
    cri_env.server.runtime.sandboxes[cri_env.sandbox_id].config.metadata.uid = "another"
    info = await cri_env.cri.container_status(cri_env.old)
    with pytest.raises(clone.CloneRefusedError, match="another pod"):
        await runtime_state.successor_spec(
            cri_env.cri, info, intent=cri_env.intent(), pod=None, processes=outside.Processes()
        )


@pytest.mark.parametrize("rebuilt", [True, False])
async def test_only_a_rebuilt_config_requests_the_cdi_devices_of_claims(cri_env: CriEnv, rebuilt: bool) -> None:
    claims = [("gpu.nvidia.com", "node", "gpu-0")]
    mine = podresources_server.pod(
        TARGET.pod.name, namespace=TARGET.pod.namespace, container=TARGET.name, claims=claims, cdi=["nvidia.com/gpu=0"]
    )
    holders = outside.Holders(convert.allocations([mine]))
    info = replace(await cri_env.cri.container_status(cri_env.old), is_rebuilt=rebuilt)
    successor_spec = await runtime_state.successor_spec(
        cri_env.cri, info, intent=cri_env.intent(), pod=None, processes=outside.Processes(), holders=holders
    )
    requested = [device.name for device in successor_spec.successor.config.CDI_devices]
    assert requested == (["nvidia.com/gpu=0"] if rebuilt else [])


async def test_outdated_view_does_not_hide_the_end(cri_env: CriEnv) -> None:
    (running,) = await cri_env.containers()
    await cri_env.cri.cached_status(running)  # its status is cached
    cri_env.server.runtime.exit(cri_env.old, exit_code=3)
    target = await runtime_state.find(cri_env.cri, TARGET, known=(running,))
    assert target is not None
    assert (target.info.state, target.info.exit_code) == (ContainerState.EXITED, 3)


async def test_unknown_newer_container_is_the_target(cri_env: CriEnv) -> None:
    known = await cri_env.containers()
    newer = await cri_env.kubelet_creates(attempt=1)
    target = await runtime_state.find(cri_env.cri, TARGET, known=known)
    assert target is not None
    assert target.info.id == newer


async def test_containers_of_other_names_are_not_queried(cri_env: CriEnv) -> None:
    (trainer,) = await cri_env.containers()
    other = replace(trainer, ref=replace(TARGET, name="logger"), created_at=trainer.created_at + 1)
    target = await runtime_state.find(cri_env.cri, TARGET, known=(trainer, other))
    assert target is not None
    assert target.info.id == trainer.id
    assert cri_env.server.called().count("ContainerStatus") == 1


async def test_early_query_without_answer_is_repeated(cri_env: CriEnv) -> None:
    known = await cri_env.containers()
    cri_env.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE, times=2)
    with pytest.raises(CriError):
        await runtime_state.find(cri_env.cri, TARGET, known=known)
    cri_env.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE)
    target = await runtime_state.find(cri_env.cri, TARGET, known=known)
    assert target is not None
    assert target.info.id == cri_env.old
