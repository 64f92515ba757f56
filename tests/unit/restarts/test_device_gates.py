"""Restart on GPUs: report old processes that do not leave, and mark their device as suspect."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.release_gate import Timeouts
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.metrics import Metrics
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import admission
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.requests import Request
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.environments.restarts import NOW, RestartEnv, restarts_on
from tests.environments.runtime import POD, TARGET, CriEnv
from tests.fakes import outside
from tests.fakes.gpu_host import GpuHost

GPU = outside.GPU.uuid
PID = 11
GIB = 1 << 30


@dataclass
class GatesEnv:
    """A pod whose trainer uses a GPU, and the agent around it."""

    env: RestartEnv
    host: GpuHost
    reattach_timer: DeviceReattachTimer
    registry: CollectorRegistry
    suspicions: list[Finding]

    async def restart(self, **annotations: str) -> Condition:
        """Request a restart as after an Xid on the GPU; return the last condition."""
        return await self.env.ask_on(GPU, **annotations)

    def reported(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def gates_env(cri_env: CriEnv, tmp_path: Any) -> AsyncIterator[GatesEnv]:
    host = GpuHost()
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    suspicions: list[Finding] = []
    reattach_timer = DeviceReattachTimer(driver=host, processes=host, metrics=metrics, period=0.01)
    suspects = SuspicionTracker(
        verdict_store=None,  # type: ignore[arg-type]  # nothing checks suspicions here
        driver=host,
        processes=host,
        submit=suspicions.append,
        classify=lambda _, __: ActionClass.OBSERVE,
        now=lambda: NOW,
    )
    gates = ReleaseGates(driver=host, processes=host, timeouts=Timeouts(before=30.0, answer=30.0, leave=0.1, stuck=0.1))
    async with restarts_on(
        cri_env, tmp_path, tools={"gates": gates}, metrics=metrics, suspects=suspects, reattach_timer=reattach_timer
    ) as env:
        host.put(GPU, PID, container=env.pod.old["trainer"], used=40 * GIB)
        yield GatesEnv(env, host, reattach_timer, registry, suspicions)


def dies_with_its_container(gates_env: GatesEnv, *, leaves: bool, memory: int = 0) -> None:
    """Have the process on the GPU end in the moment in which its container stops, as the kernel does."""
    runtime, old = gates_env.env.pod.cri_env.server.runtime, gates_env.env.pod.old["trainer"]
    tell = runtime.on_event

    def handle(event: api_pb2.ContainerEventResponse) -> None:
        if (event.container_id, event.container_event_type) == (old, api_pb2.CONTAINER_STOPPED_EVENT):
            gates_env.host.die(PID)
            if leaves:
                gates_env.host.leave(PID)
            gates_env.host.memory[GPU] = memory
        tell(event)

    runtime.on_event = handle


@pytest.mark.parametrize("strategy", ["swap", "rerun", "reset"])
async def test_gates_old_process_left_verifies_restart(gates_env: GatesEnv, strategy: str) -> None:
    dies_with_its_container(gates_env, leaves=True)
    condition = await gates_env.restart(strategy=strategy)
    assert condition.status is ConditionStatus.TRUE
    assert condition.message.endswith("; verified")
    assert gates_env.suspicions == []


@pytest.mark.parametrize("strategy", ["swap", "rerun", "reset"])
async def test_gates_old_process_still_listed_fails_verification(gates_env: GatesEnv, strategy: str) -> None:
    dies_with_its_container(gates_env, leaves=False)
    condition = await gates_env.restart(strategy=strategy)
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "DeviceLeftover")
    assert f"devices-free: still listed: pid {PID} on {GPU}" in condition.message
    running = await gates_env.env.pod.running()
    assert running["trainer"] != [gates_env.env.pod.old["trainer"]]
    assert len(running["trainer"]) == 1


async def test_gates_memory_not_freed_fails_verification(gates_env: GatesEnv) -> None:
    dies_with_its_container(gates_env, leaves=True, memory=40 * GIB)
    condition = await gates_env.restart()
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "DeviceMemoryHeld")
    assert "40.0 GiB" in condition.message


async def test_gates_driver_silent_leaves_restart_unverified(gates_env: GatesEnv) -> None:
    gates_env.host.answers = False
    condition = await gates_env.restart()
    assert condition.status is ConditionStatus.TRUE
    assert condition.message.endswith("; could not verify devices-free")


async def test_gates_unknown_devices_leave_restart_unverified(gates_env: GatesEnv) -> None:
    env = gates_env.env
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    async with env.kubelet():
        await env.restarts.submit(Request(target=TARGET, cause=lambda: cause, devices=None))
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert condition.message.endswith("; could not verify devices-answer, devices-free")


async def test_gates_unkillable_process_is_reported_and_marks_device_suspect(gates_env: GatesEnv) -> None:
    gates_env.host.in_d_state.add(PID)
    condition = await gates_env.restart()
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "Stuck")
    assert f"pid {PID} on {GPU}" in condition.message
    (suspicion,) = gates_env.suspicions
    assert (suspicion.kind, suspicion.device.uuid) == (FindingKind.PROCESS_STUCK, GPU)
    assert str(PID) in suspicion.text
    assert await gates_env.env.store.unfinished() == ()  # never retried automatically


async def test_reattach_timer_reports_new_process_and_blocks_nothing(gates_env: GatesEnv) -> None:
    dies_with_its_container(gates_env, leaves=True)
    looking = asyncio.create_task(gates_env.reattach_timer.run(), name="reattach-timer")
    await gates_env.restart()  # ends, although no process uses the device yet
    name = "kubemend_restart_phase_seconds_count"
    assert gates_env.reported(name, strategy="swap", phase="on_device") is None
    (new,) = (await gates_env.env.pod.running())["trainer"]
    gates_env.host.put(GPU, 22, container=ContainerId(new))
    async with asyncio.timeout(30):
        while gates_env.reported(name, strategy="swap", phase="on_device") != 1.0:
            questions = gates_env.host.questions
            await gates_env.host.questions_reach(questions + 1)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


async def test_reattach_timer_ignores_container_that_used_no_device(gates_env: GatesEnv) -> None:
    gates_env.host.end(PID)
    await gates_env.restart()
    assert not gates_env.reattach_timer._expected
