"""Run requests to the end of a restart on the stand-in runtime: strategies, fallbacks, journal, recovery."""

import asyncio
import itertools
import operator
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from kubemend.agent.actuator import progress
from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.clients.podresources import convert
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.model.workloads import ContainerId, ContainerState, PodUid, RestartRule, RuleAction
from kubemend.agent.restart import admission
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import attempts, planning
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.restart_plan import SwapPlan
from kubemend.agent.restarts.scheduler import Limits, RestartScheduler
from kubemend.common.coordination import FaultKind
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.environments import node, pod_env
from tests.environments.pod_env import LASTING
from tests.environments.restarts import NOW, RestartEnv, restarts_on
from tests.environments.runtime import POD, TARGET, CriEnv
from tests.fakes import outside, podresources_server
from tests.fakes.cri_runtime import IMAGE_VOLUME, Runtime


@pytest.mark.parametrize("strategy", ["swap", "rerun", "reset"])
async def test_restart_is_executed_verified_and_closed(env: RestartEnv, strategy: str) -> None:
    condition = await env.ask(strategy=strategy)
    assert condition.status is ConditionStatus.TRUE
    assert condition.message.startswith(f"trainer restart 1 by {strategy} in ")
    assert condition.message.endswith("; verified")
    assert ("kubelet" in condition.message) is (strategy == "reset"), "kubelet's part is a phase"
    assert await env.store.unfinished() == ()
    replaced = {name for name, (container,) in (await env.pod.running()).items() if container != env.pod.old[name]}
    assert replaced == ({"trainer"} if strategy == "swap" else set(LASTING))


async def test_swap_keeps_resize_and_image_volume(env: RestartEnv) -> None:
    runtime = env.pod.cri_env.server.runtime
    old = runtime.containers[env.pod.old["trainer"]]
    image = api_pb2.ImageSpec(image="sha256:1")
    mounted = api_pb2.Mount(container_path="/model", host_path=IMAGE_VOLUME, readonly=True, image=image)
    old.config.mounts.append(mounted)
    await env.pod.cri_env.cri.cached_status(
        (await env.pod.cri_env.containers())[0]
    )  # the remembered info is from before
    old.resized = api_pb2.LinuxContainerResources(cpu_quota=200000, memory_limit_in_bytes=256)
    condition = await env.ask(strategy="swap")
    assert condition.status is ConditionStatus.TRUE
    ((new,), *_) = [runs for name, runs in (await env.pod.running()).items() if name == "trainer"]
    made = runtime.containers[new].config
    assert made.linux.resources == old.resized
    assert made.mounts[-1].image == image


async def test_config_that_runtime_rejects_is_refused_before_stop(env: RestartEnv) -> None:
    old = env.pod.cri_env.server.runtime.containers[env.pod.old["trainer"]]
    old.config.mounts.append(api_pb2.Mount(container_path="/model", image=api_pb2.ImageSpec(image="sha256:1")))
    condition = await env.ask(strategy="swap")
    assert condition.status is ConditionStatus.FALSE
    assert "the mount at '/model' is of an image and not read-only" in condition.message
    assert "StopContainer" not in env.pod.cri_env.server.called()
    assert (await env.pod.running())["trainer"] == [env.pod.old["trainer"]]


@pytest.mark.parametrize(
    ("runtime_type", "handler", "word"),
    [
        ("io.containerd.runsc.v1", "gvisor", "io.containerd.runsc.v1"),
        ("io.containerd.kata.v2", "", "io.containerd.kata.v2"),
        (None, "kata-qemu-nvidia-gpu", "kata"),
    ],
)
async def test_pod_without_node_processes_is_refused(
    env: RestartEnv, runtime_type: str | None, handler: str, word: str
) -> None:
    server = env.pod.cri_env.server
    server.runtime.behaviour.runtime_type = runtime_type
    server.runtime.sandboxes[env.pod.cri_env.sandbox_id].runtime_handler = handler
    condition = await env.ask()
    assert condition.reason == "RuntimeUnsupported"
    assert word in condition.message
    assert not {"StopContainer", "CreateContainer", "RemoveContainer"} & set(server.called())


async def test_auto_uses_reset_if_runtime_hides_config(env: RestartEnv) -> None:
    env.pod.cri_env.server.runtime.behaviour.gives_config = False
    condition = await env.ask()
    assert " by reset " in condition.message


async def test_a_config_that_crio_hides_is_rebuilt_for_a_swap(env: RestartEnv) -> None:
    env.pod.cri_env.server.runtime.behaviour.is_crio = True
    condition = await env.ask()
    assert " by swap " in condition.message
    assert len(await env.pod.running()) == len(LASTING)


async def test_a_rebuilt_config_requests_the_cdi_devices_that_kubelet_lists(env: RestartEnv) -> None:
    runtime = env.pod.cri_env.server.runtime
    runtime.behaviour.is_crio = True
    claims = [("gpu.nvidia.com", "node", "gpu-0")]
    listed = podresources_server.pod(
        POD.name, namespace=POD.namespace, container=TARGET.name, claims=claims, cdi=["nvidia.com/gpu=0"]
    )
    there = node.NodeEnv(store=env.store, holders=outside.Holders(convert.allocations([listed])))
    everything = replace(env.dependencies, device_facts=there.facts())
    env.restarts = RestartScheduler(dependencies=everything, store=env.store, metrics=node.metrics(), now=lambda: NOW)
    resumed = await planning.resume(everything, env.pod.cri_env.intent(created_at=NOW))
    condition = await env.ask()
    assert " by swap " in condition.message
    ((new,), *_) = [runs for name, runs in (await env.pod.running()).items() if name == "trainer"]
    assert isinstance(resumed, SwapPlan)
    assert resumed.swaps[0].successor_spec is not None
    for config in (runtime.containers[new].config, resumed.swaps[0].successor_spec.successor.config):
        assert [device.name for device in config.CDI_devices] == ["nvidia.com/gpu=0"]


async def test_a_rebuilt_config_whose_spec_differs_is_taken_back_before_anything_is_stopped(env: RestartEnv) -> None:
    server = env.pod.cri_env.server
    server.runtime.behaviour.is_crio = True
    server.runtime.behaviour.spec_of_new = {"cwd": "/elsewhere"}
    condition = await env.ask()
    assert " by reset " in condition.message
    assert "process.cwd is new" in condition.message
    calls = [call for call in server.called() if call in ("CreateContainer", "StopContainer", "RemoveContainer")]
    assert calls[:2] == ["CreateContainer", "RemoveContainer"]
    assert await env.store.unfinished() == ()


async def test_a_restart_that_was_taken_back_does_not_count_for_the_next_agent(env: RestartEnv) -> None:
    behaviour = env.pod.cri_env.server.runtime.behaviour
    behaviour.is_crio, behaviour.spec_of_new = True, {"cwd": "/elsewhere"}
    condition = await env.ask(strategy="swap")
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "RuntimeHidesConfig")
    assert await env.store.begun_since(0.0) == ()


async def test_copy_of_a_successor_that_could_not_be_started_does_not_run_next_to_the_old_container(
    cri_env: CriEnv, tmp_path: Path
) -> None:
    """Kubelet has listed the successor before its removal, and takes the failed start for its exit."""
    async with restarts_on(cri_env, tmp_path, can_hold=True) as env:
        cri_env.server.fail("StartContainer", grpc.StatusCode.UNKNOWN, times=3)
        asking = asyncio.create_task(env.ask())
        async with asyncio.timeout(30):
            await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, "Undone")
            assert (await env.pod.running())["trainer"] == [env.pod.old["trainer"]]
            copy = await env.pod.kubelet_starts("trainer", attempt=2)
            condition = await asking
        assert (condition.status, condition.reason) == (ConditionStatus.TRUE, "Adopted")
        assert (await env.pod.running())["trainer"] == [copy]
        assert await env.store.unfinished() == ()


async def test_a_program_that_goes_on_while_the_disk_is_slow_is_not_killed(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_LATE", 0.0)
    begin, answers = env.store.begin, [""]

    async def slow(*intents: Any, **more: Any) -> None:
        answers.append("it touches its heartbeat file again")
        await begin(*intents, **more)

    async def withdrawn() -> str:
        return answers[-1]

    monkeypatch.setattr(env.store, "begin", slow)
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    hung = admission.Cause(code="Hung", message="no heartbeat", happened_at=NOW)
    await env.restarts.submit(Request(target=TARGET, cause=lambda: hung, devices=frozenset(), withdrawn=withdrawn))
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "Withdrawn")
    assert condition.message.endswith("it touches its heartbeat file again")
    assert {name: [env.pod.old[name]] for name in LASTING} == await env.pod.running()
    assert await env.store.unfinished() == ()
    assert await env.store.begun_since(0.0) == ()


async def test_a_fault_that_has_joined_a_restart_that_is_withdrawn_is_handled(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_LATE", 0.0)
    begin, answers, joining = env.store.begin, [""], list[asyncio.Task[None]]()
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    fault = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    second = Request(target=TARGET, cause=lambda: fault, devices=frozenset())

    async def slow(*intents: Any, **more: Any) -> None:
        if not joining:
            answers.append("it touches its heartbeat file again")
            joining.append(asyncio.create_task(env.restarts.submit(second)))
            await asyncio.sleep(0)
        await begin(*intents, **more)

    async def withdrawn() -> str:
        return answers[-1]

    monkeypatch.setattr(env.store, "begin", slow)
    hung = admission.Cause(code="Hung", message="no heartbeat", happened_at=NOW)
    async with asyncio.timeout(30), env.kubelet():
        await env.restarts.submit(Request(target=TARGET, cause=lambda: hung, devices=frozenset(), withdrawn=withdrawn))
        await joining[0]
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].status is ConditionStatus.TRUE
    assert (await env.pod.running())["trainer"] != [env.pod.old["trainer"]]
    (begun,) = await env.store.begun_since(0.0)
    assert begun.fault_at == NOW


async def test_a_resized_config_whose_spec_differs_is_taken_back(env: RestartEnv) -> None:
    old = env.pod.cri_env.server.runtime.containers[env.pod.old["trainer"]]
    old.resized = api_pb2.LinuxContainerResources(cpu_quota=200000, memory_limit_in_bytes=256)
    env.pod.cri_env.server.runtime.behaviour.spec_of_new = {"cwd": "/elsewhere"}
    condition = await env.ask()
    assert " by reset " in condition.message
    assert "not swap: the successor would differ: process.cwd is new" in condition.message
    assert await env.store.unfinished() == ()


async def test_a_rebuilt_config_that_the_runtime_refuses_three_times_is_reset(env: RestartEnv) -> None:
    server = env.pod.cri_env.server
    server.runtime.behaviour.is_crio = True
    server.fail("CreateContainer", grpc.StatusCode.UNKNOWN, details="no such image", times=3)
    condition = await env.ask()
    assert " by reset " in condition.message
    assert "no such image" in condition.message
    assert (await env.pod.running()).keys() == set(LASTING)


async def test_auto_steps_down_if_config_is_not_cloneable(env: RestartEnv) -> None:
    running = env.pod.cri_env.server.runtime.containers[env.pod.old["trainer"]]
    running.config.annotations["io.kubernetes.container.restartCount"] = "many"
    condition = await env.ask()
    assert " by reset " in condition.message


async def test_auto_steps_down_if_config_is_too_large(env: RestartEnv) -> None:
    running = env.pod.cri_env.server.runtime.containers[env.pod.old["trainer"]]
    running.config.envs.extend(api_pb2.KeyValue(key=f"V{number:05}", value=b"x") for number in range(20_000))
    condition = await env.ask()
    assert " by reset " in condition.message
    assert "ConfigTooLarge" in condition.message


async def test_rerun_names_container_whose_config_is_too_large(env: RestartEnv) -> None:
    running = env.pod.cri_env.server.runtime.containers[env.pod.old["logger"]]
    running.config.envs.extend(api_pb2.KeyValue(key=f"V{number:05}", value=b"x") for number in range(20_000))
    condition = await env.ask(strategy="rerun")
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "RuntimeHidesConfig")
    assert "ConfigTooLarge" in condition.message


async def test_explicit_rerun_is_refused_if_config_not_cloneable(env: RestartEnv) -> None:
    env.pod.cri_env.server.runtime.behaviour.gives_config = False
    condition = await env.ask(strategy="rerun")
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "RuntimeHidesConfig")
    assert set(await env.pod.running()) == set(LASTING)
    assert "RemoveContainer" not in env.pod.cri_env.server.called()


async def test_selected_containers_are_swapped_together_except_stopped_ones(env: RestartEnv) -> None:
    env.pod.cri_env.server.runtime.exit(env.pod.old["shipper"], exit_code=1)
    condition = await env.ask(containers="trainer,logger,shipper")
    assert condition.status is ConditionStatus.TRUE
    running = await env.pod.running()
    assert {name for name, (container,) in running.items() if container != env.pod.old[name]} == {"trainer", "logger"}


async def test_graver_fault_found_before_first_step_stops_nothing(env: RestartEnv) -> None:
    cause = admission.Cause(code="Xid43", message="Xid 43", happened_at=NOW, device=outside.GPU.uuid)
    needed = [ActionClass.RESTART_APP]

    async def withdrawn() -> str:  # asked right before the first step
        needed[0] = ActionClass.RESET_DEVICE
        return ""

    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    await env.restarts.submit(
        Request(
            target=TARGET,
            cause=lambda: replace(cause, action=needed[0]),
            devices=frozenset({outside.GPU.uuid}),
            withdrawn=withdrawn,
        )
    )
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "DeviceNotUsable")
    assert "StopContainer" not in env.pod.cri_env.server.called()
    assert await env.store.unfinished() == ()
    assert (await env.pod.running())["trainer"] == [env.pod.old["trainer"]]


async def test_graver_fault_found_after_the_kill_starts_nothing(env: RestartEnv) -> None:
    cause = admission.Cause(code="Xid43", message="Xid 43", happened_at=NOW, device=outside.GPU.uuid)

    def now_known() -> admission.Cause:
        stopped = "StopContainer" in env.pod.cri_env.server.called()
        return replace(cause, action=ActionClass.REBOOT_NODE if stopped else ActionClass.RESTART_APP)

    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    await env.restarts.submit(Request(target=TARGET, cause=now_known, devices=frozenset({outside.GPU.uuid})))
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "DeviceNotUsable")
    assert "trainer" not in await env.pod.running()
    assert await env.store.unfinished() == ()


async def test_concurrent_requests_for_container_are_coalesced(env: RestartEnv) -> None:
    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    async with env.pod.cri_env.watch.subscribe(POD.uid) as events:
        first = asyncio.create_task(env.ask(strategy="rerun"))
        await events.get()  # the first has started
        await env.restarts.submit(Request(target=TARGET, cause=lambda: cause, devices=frozenset()))
    await first
    assert env.pod.cri_env.server.called().count("StartContainer") == len(pod_env.ROLES)


@pytest.mark.parametrize("strategy", [Strategy.RERUN, Strategy.RESET])
async def test_half_cleared_pod_is_finished_by_next_agent(env: RestartEnv, strategy: Strategy) -> None:
    intent = env.pod.intent(strategy=strategy, created_at=NOW)
    await env.store.begin(intent)
    await env.pod.cri_env.cri.remove_container(env.pod.old["trainer"])
    async with env.kubelet():
        assert await Recovery(dependencies=env.dependencies, store=env.store, now=lambda: NOW).run() == 1
    assert not {view.id for view in await env.pod.containers()} & set(env.pod.old.values())
    assert await env.store.unfinished() == ()


@pytest.mark.parametrize("strategy", [Strategy.RERUN, Strategy.RESET])
async def test_container_that_kubelet_has_started_is_not_killed_by_the_next_agent(
    env: RestartEnv, strategy: Strategy
) -> None:
    await env.store.begin(env.pod.intent(strategy=strategy, created_at=NOW))
    env.pod.cri_env.server.runtime.exit(env.pod.old["trainer"], exit_code=1)
    await env.pod.kubelet_starts("trainer", attempt=1)
    before = await env.pod.running()
    assert await Recovery(dependencies=env.dependencies, store=env.store, now=lambda: NOW).run() == 1
    assert await env.pod.running() == before
    assert await env.store.unfinished() == ()


@pytest.mark.parametrize("age", [3600, -3600], ids=["old", "before-the-clock-was-set-back"])
async def test_old_intent_without_effect_is_undone(env: RestartEnv, age: float) -> None:
    await env.store.begin(env.pod.intent(created_at=NOW - age))
    await Recovery(dependencies=env.dependencies, store=env.store, now=lambda: NOW).run()
    assert {view.state for view in await env.pod.containers()} == {ContainerState.RUNNING, ContainerState.EXITED}
    assert {name: [env.pod.old[name]] for name in LASTING} == await env.pod.running()


async def _held_by_its_budget(env: RestartEnv, ended: asyncio.Event, clock: list[float]) -> "asyncio.Task[None]":
    """Spend the pod's only restart, and have a second fault on hold; ``ended``: the process that it hit has ended."""
    view = env.pod.pods.pods()[POD.uid]
    written = {"kubemend.io/restart": "InPlace", "kubemend.io/max-restarts": "1"}
    await env.pod.pods.put(replace(view, annotations=written))
    restarts = RestartScheduler(
        dependencies=env.dependencies, store=env.store, metrics=node.metrics(), now=lambda: clock[0]
    )

    async def lapsed() -> str:
        return "process 4711, which the fault hit, has ended" if ended.is_set() else ""

    def request(at: float) -> Request:
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=at)
        return Request(target=TARGET, cause=lambda: cause, devices=frozenset(), lapsed=lapsed)

    await restarts.submit(request(clock[0]))
    clock[0] += 120
    held = asyncio.create_task(restarts.submit(request(clock[0])))
    async with asyncio.timeout(30):
        await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, "BudgetSpent")
    return held


async def _an_hour_later(env: RestartEnv, clock: list[float]) -> None:
    clock[0] += 3600
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], labels={"changed": "yes"}))


async def test_fault_on_hold_is_dropped_when_process_ended(env: RestartEnv) -> None:
    ended, clock = asyncio.Event(), [NOW]
    async with env.kubelet():
        held = await _held_by_its_budget(env, ended, clock)
        (healthy,) = (await env.pod.running())["trainer"]
        ended.set()  # and the program has replaced it within the container
        await _an_hour_later(env, clock)
        async with asyncio.timeout(30):
            await held
        assert (await env.pod.running())["trainer"] == [healthy]
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].reason == "CauseGone"


async def test_fault_on_hold_is_handled_later_if_process_lives(env: RestartEnv) -> None:
    clock = [NOW]
    async with env.kubelet():
        held = await _held_by_its_budget(env, asyncio.Event(), clock)
        (hit,) = (await env.pod.running())["trainer"]
        await _an_hour_later(env, clock)
        async with asyncio.timeout(30):
            await held
        assert (await env.pod.running())["trainer"] != [hit]


async def test_exit_on_hold_whose_container_kubelet_restarts_is_no_longer_reported_as_waiting(env: RestartEnv) -> None:
    """Kubelet's Events alone would leave "not yet restarted" in the condition of a container that runs for days."""
    view = env.pod.pods.pods()[POD.uid]
    spent = {"kubemend.io/restart": "InPlace", "kubemend.io/max-restarts": "1"}
    await env.pod.pods.put(replace(view, annotations=spent))
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 300))
    old = env.pod.old["trainer"]
    env.pod.cri_env.server.runtime.exit(old, exit_code=1)
    cause = admission.Cause("Exit1", "container trainer ended", happened_at=NOW, container=old)
    request = Request(TARGET, lambda: cause, frozenset(), kind=FaultKind.EXIT, gang_answered=True)
    async with asyncio.timeout(30):
        held = asyncio.create_task(env.restarts.submit(request))
        await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, "BudgetSpent")
        await env.pod.kubelet_starts("trainer", attempt=1)
        await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], labels={"changed": "yes"}))
        await held
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert condition.reason == Reason.ALREADY_REPLACED.value
    assert "not yet" not in condition.message


async def test_process_that_ends_at_once_does_not_prevent_restart(env: RestartEnv) -> None:
    async def lapsed() -> str:
        return "process 4711, which the fault hit, has ended"

    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    async with env.kubelet():
        await env.restarts.submit(Request(target=TARGET, cause=lambda: cause, devices=frozenset(), lapsed=lapsed))
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].status is ConditionStatus.TRUE


class _Outage:
    """Follows a restart. The runtime starts nothing as soon as that has begun, for several tries."""

    def __init__(self, cri_env: CriEnv) -> None:
        self._rig = cri_env

    def notify(self, event: progress.Event) -> None:
        if isinstance(event, progress.Begun):
            self._rig.server.fail("StartContainer", grpc.StatusCode.UNAVAILABLE, details="down", times=8)


async def test_restart_of_which_the_runtime_is_away_for_long_is_finished_once_it_is_back(
    cri_env: CriEnv, tmp_path: Path
) -> None:
    limits, tools = Limits(retry_seconds=0.0), {"time_limit": 0.1}
    async with restarts_on(cri_env, tmp_path, can_hold=True, limits=limits, tools=tools) as env:
        view = env.pod.pods.pods()[POD.uid]
        await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
        request = Request(target=TARGET, cause=lambda: cause, devices=frozenset(), followed=_Outage(cri_env))
        with capture_logs() as logged:
            async with env.kubelet():
                await env.restarts.submit(request)
        assert "restart.unfinished" in {entry["event"] for entry in logged}
        assert env.said.said[POD, conditions.IN_PLACE_RESTART].status is ConditionStatus.TRUE
        assert await env.store.unfinished() == ()


async def test_fault_on_hold_for_too_long_is_no_longer_reported_as_one_that_will_be_restarted(
    cri_env: CriEnv, tmp_path: Path
) -> None:
    async with restarts_on(cri_env, tmp_path, limits=Limits(retry_seconds=0.0)) as env:
        view = env.pod.pods.pods()[POD.uid]
        await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}, phase="Pending"))
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
        await env.restarts.submit(Request(target=TARGET, cause=lambda: cause, devices=frozenset()))
        condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert condition.reason == Reason.POD_NOT_RUNNING.value
    assert condition.message == "trainer not restarted for Xid 31: the pod's phase is Pending; given up after 0 s"


async def test_container_whose_stops_fail_ends_by_itself_later(env: RestartEnv) -> None:
    """Else its exit would count as the agent's work: not restarted in place, not reported to its gang."""
    env.pod.cri_env.server.fail("StopContainer", grpc.StatusCode.UNKNOWN, details="shim: connection refused", times=3)
    condition = await env.ask(strategy="swap")
    assert condition.status is ConditionStatus.FALSE
    old = env.pod.old["trainer"]
    assert (await env.pod.running())["trainer"] == [old]
    assert not env.pod.cri_env.cri.has_ended(old)


async def test_container_that_a_restart_has_stopped_is_ended_by_the_agent(env: RestartEnv) -> None:
    await env.ask(strategy="swap")
    assert env.pod.cri_env.cri.has_ended(env.pod.old["trainer"])


@pytest.mark.parametrize(
    ("strategy", "slow"),
    [
        ("reset", "dependencies.owners.facts"),
        ("rerun", "dependencies.owners.facts"),
        ("reset", "store.begin"),
        ("rerun", "store.begin"),
        ("rerun", "pod.cri_env.cri.create_container"),  # of a reservation
    ],
)
async def test_container_that_kubelet_starts_before_the_first_removal_is_not_killed(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch, strategy: str, slow: str
) -> None:
    """It has started after the fault. The API server, the disk or the runtime may take seconds."""
    call, made = operator.attrgetter(slow)(env), list[ContainerId]()

    async def is_slow(*args: Any, **more: Any) -> Any:
        if not made:
            made.append(ContainerId(""))
            env.pod.cri_env.server.runtime.exit(env.pod.old["trainer"], exit_code=1)
            made[0] = await env.pod.kubelet_starts("trainer", attempt=1)
        return await call(*args, **more)

    owner, _, name = slow.rpartition(".")
    monkeypatch.setattr(operator.attrgetter(owner)(env), name, is_slow)
    await env.pod.pods.put(
        replace(
            env.pod.pods.pods()[POD.uid],
            annotations={"kubemend.io/restart": "InPlace", "kubemend.io/strategy": strategy},
        )
    )
    fault = admission.Cause(code="Xid31", message="Xid 31", happened_at=time.time())
    async with asyncio.timeout(60), env.kubelet():
        await env.restarts.submit(Request(target=TARGET, cause=lambda: fault, devices=frozenset()))
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].reason == Reason.ALREADY_REPLACED.value
    assert (await env.pod.running())["trainer"] == made
    assert await env.store.begun_since(0.0) == (), "nothing was restarted"


async def test_entry_that_a_full_disk_keeps_open_is_closed_before_the_next_restart(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an agent that resumes the next one for a round would take both for one restart."""

    async def is_full(*_: object, **__: object) -> None:
        raise JournalError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(env.store, "finish", is_full)
        await env.ask()
    assert len(await env.store.unfinished()) == 1
    begin, open_before = env.store.begin, []

    async def begun(*intents: Any, **more: Any) -> None:
        open_before.append(await env.store.unfinished())
        await begin(*intents, **more)

    monkeypatch.setattr(env.store, "begin", begun)
    await env.ask()
    assert open_before == [()]
    assert await env.store.unfinished() == ()


async def test_restart_in_the_journal_is_carried_out_although_its_report_fails(env: RestartEnv) -> None:
    class Follower:
        def notify(self, event: progress.Event) -> None:
            match event:
                case progress.Begun():
                    raise RuntimeError("cannot be reported")

    opted_in = replace(env.pod.pods.pods()[POD.uid], annotations={"kubemend.io/restart": "InPlace"})
    await env.pod.pods.put(opted_in)
    fault = admission.Cause(code="Xid31", message="Xid 31", happened_at=time.time())
    request = Request(target=TARGET, cause=lambda: fault, devices=frozenset(), followed=Follower())
    async with asyncio.timeout(60), env.kubelet():
        await env.restarts.submit(request)
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].status is ConditionStatus.TRUE
    assert await env.store.unfinished() == ()


async def test_after_the_clock_was_set_back_the_successor_is_the_newest(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next fault makes a second successor, next to the one that runs."""
    clock = itertools.count(1)
    monkeypatch.setattr(Runtime, "_now", lambda _: next(clock))

    async def not_asked(_: Any, outcome: Outcome) -> tuple[Outcome, tuple[()]]:
        return outcome, ()  # kubelet takes the old one for the newest

    monkeypatch.setattr(env.restarts._executor._conclusions._verifier, "wait_for_kubelet", not_asked)
    for attempt in (1, 2):
        assert (await env.ask()).status is ConditionStatus.TRUE
        views = [view for view in await env.pod.containers() if view.ref == TARGET]
        assert [view.attempt for view in views if view.state is ContainerState.RUNNING] == [attempt]


async def test_fault_whose_trigger_ends_by_itself_before_the_kill_is_decided_again_once_that_runs(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet restarts the trigger alone: the faulty container next to it would run on."""
    begin, killed, runtime = env.store.begin, asyncio.Event(), env.pod.cri_env.server.runtime
    stop = env.pod.cri_env.cri.stop_container

    async def ends(*begun: Any, **how: Any) -> None:
        await begin(*begun, **how)
        if runtime.containers[env.pod.old["trainer"]].state == api_pb2.CONTAINER_RUNNING:
            runtime.exit(env.pod.old["trainer"], exit_code=1)

    async def kills(container_id: ContainerId, *, grace: float) -> None:
        await stop(container_id, grace=grace)
        killed.set()

    monkeypatch.setattr(env.store, "begin", ends)
    monkeypatch.setattr(env.pod.cri_env.cri, "stop_container", kills)
    view = env.pod.pods.pods()[POD.uid]
    rule = RestartRule(RuleAction.RESTART_ALL, frozenset({137}))
    specs = tuple(replace(spec, restart_rules=(rule,)) if spec.name == "trainer" else spec for spec in view.containers)
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/strategy": "rules"}
    await env.pod.pods.put(replace(view, annotations=annotations, containers=specs))
    fault = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    request = Request(target=replace(TARGET, name="logger"), cause=lambda: fault, devices=frozenset())
    async with asyncio.timeout(60), env.kubelet():
        restart = asyncio.create_task(env.restarts.submit(request))
        await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, Reason.TRIGGER_ENDED.value)
        assert await env.store.begun_since(0.0) == (), "nothing was restarted"
        assert await env.store.unfinished() == ()
        theirs = await env.pod.kubelet_starts("trainer", attempt=1)
        await killed.wait()
        restart.cancel()
        await asyncio.gather(restart, return_exceptions=True)
    running = await env.pod.running()
    assert theirs not in running.get("trainer", [])
    assert running["logger"] == [env.pod.old["logger"]], "kubelet restarts it"


@pytest.mark.parametrize(
    ("opted_in", "said"), [(True, Reason.STATIC_POD.value), (False, None)], ids=["opted-in", "not-opted-in"]
)
@pytest.mark.parametrize("has_mirror", [True, False], ids=["mirror", "no-mirror"])
async def test_fault_of_a_static_pod_is_refused_at_once(
    env: RestartEnv, *, has_mirror: bool, opted_in: bool, said: str | None
) -> None:
    """Its mirror in the API server has another UID than the pod in the runtime."""
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.gone(POD.uid)
    opt_in = {"kubemend.io/restart": "InPlace"} if opted_in else {}
    if has_mirror:
        annotations = {"kubernetes.io/config.mirror": POD.uid} | opt_in
        await env.pod.pods.put(replace(view, ref=replace(POD, uid=PodUid("of-the-mirror")), annotations=annotations))
    else:
        sandbox = env.pod.cri_env.server.runtime.sandboxes[env.pod.cri_env.sandbox_id]
        sandbox.config.annotations.update({"kubernetes.io/config.source": "file"} | opt_in)
    fault = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    async with asyncio.timeout(60):
        await env.restarts.submit(Request(target=TARGET, cause=lambda: fault, devices=frozenset()))
    condition = env.said.said.get((POD, conditions.IN_PLACE_RESTART))
    assert (condition.reason if condition is not None else None) == said
