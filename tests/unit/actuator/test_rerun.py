"""Reruns on the stand-in runtime: the order of calls, every failure of every call, kubelet's races, crashes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import grpc
import pytest

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerState, ExecHook
from kubemend.agent.restart import intents, rerun, reservations, reset, steps
from kubemend.agent.restart.successor_spec import PreStopHook, SuccessorSpec
from kubemend.common.pb.runtime.v1 import api_pb2
from tests import eventually
from tests.environments import pod_env
from tests.environments.pod_env import LASTING, PodEnv
from tests.environments.runtime import POD, CriEnv

RESERVED = 3
"""Calls until all names are reserved: n+1 of all but the first container, and n+2 of all."""

CODES = [code for code in grpc.StatusCode if code not in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)]


@pytest.fixture
async def pod(cri_env: CriEnv) -> AsyncIterator[PodEnv]:
    async with pod_env.made(cri_env) as made:
        yield made


async def check_rerun(pod: PodEnv) -> None:
    running = await pod.running()
    assert {name: len(ids) for name, ids in running.items()} == dict.fromkeys(LASTING, 1)
    assert not [view for view in await pod.containers() if view.state is ContainerState.CREATED]
    assert not {view.id for view in await pod.containers()} & set(pod.old.values())


async def test_containers_are_removed_and_recreated_in_spec_order(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    pod.cri_env.server.calls.clear()
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.RERUN
    await check_rerun(pod)
    made = [view for view in await pod.containers() if view.restart_id == intent.id]
    assert [view.ref.name for view in made[:2]] == ["prepare", "shipper"]
    assert {view.attempt for view in made} == {1}
    calls = pod.cri_env.server.calls
    removed = [call.request.container_id for call in calls if call.method == "RemoveContainer"]  # type: ignore[attr-defined]
    assert removed[0] == pod.old["prepare"], "ended containers are removed first"
    assert set(removed[1:4]) == {pod.old[name] for name in LASTING}
    assert "StopContainer" not in pod.cri_env.server.called(), "without grace the removal is the kill"
    assert set(outcome.current) == set(pod_env.ROLES)


@pytest.mark.parametrize("method", ["RemoveContainer", "CreateContainer", "StartContainer", "ListContainers"])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_any_call_error_ends_in_a_complete_pod(pod: PodEnv, method: str, code: grpc.StatusCode) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    pod.cri_env.server.fail(method, code)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.RERUN
    await check_rerun(pod)


async def test_nothing_is_removed_if_names_cannot_be_reserved(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    pod.cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, details="no space left on device", times=100)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.UNDONE
    assert "no space left" in outcome.detail
    assert {view.id for view in await pod.in_sandbox()} == set(pod.old.values())


async def test_permanent_create_failure_leaves_a_clean_pod_to_kubelet(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    await crash_after(pod, intent, successor_specs=successor_specs, calls=RESERVED)
    pod.cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, details="no space left on device", times=100)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.LEFT_TO_KUBELET
    assert "no space left" in outcome.detail
    assert await pod.in_sandbox() == ()


async def test_permanent_start_failure_leaves_nothing_created(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    pod.cri_env.server.fail("StartContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.LEFT_TO_KUBELET
    assert await pod.in_sandbox() == ()


async def test_failed_init_container_stops_the_rerun_and_is_reported(cri_env: CriEnv) -> None:
    async with pod_env.made(cri_env, exit_code=3) as pod:
        intent = pod.intent()
        outcome = await pod.actuator().carry_out(intent, successor_specs=await pod.successor_specs(intent))
        assert outcome.result is Result.LEFT_TO_KUBELET
        assert outcome.detail == "prepare ended with exit code 3; kubelet does the rest"
        assert [view.ref.name for view in await pod.in_sandbox()] == ["prepare"]


async def test_kubelets_init_container_is_waited_for_and_adopted(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    for container in pod.old.values():
        await pod.cri_env.cri.remove_container(container)
    theirs = await pod.kubelet_starts("prepare", attempt=1, start=False)
    work = asyncio.create_task(pod.actuator().carry_out(intent, successor_specs=successor_specs))
    await pod.cri_env.cri.start_container(theirs)
    outcome = await work
    assert (outcome.result, outcome.current["prepare"]) == (Result.RERUN, theirs)
    await check_rerun(pod)


async def test_name_just_taken_by_kubelet_is_not_a_failure(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    reserved = 'failed to reserve container name "x": name "x" is reserved for "y"'
    pod.cri_env.server.fail("CreateContainer", grpc.StatusCode.FAILED_PRECONDITION, details=reserved, times=5)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.RERUN
    await check_rerun(pod)


async def test_kubemends_duplicate_main_is_removed(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    await pod.kubelet_collects()
    theirs = await pod.kubelet_starts("trainer", attempt=2)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert (outcome.result, outcome.current["trainer"]) == (Result.RERUN, theirs)
    await check_rerun(pod)


async def test_second_init_run_by_kubelet_repeats_later_containers(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    first = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    await pod.kubelet_collects()
    await pod.kubelet_starts("prepare", attempt=2)
    again = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert again.result is Result.RERUN
    assert all(again.current[name] != first.current[name] for name in LASTING)
    await check_rerun(pod)


async def test_sidecar_startup_probe_is_awaited_by_kubelets_status(pod: PodEnv) -> None:
    intent = pod.intent(startup_probes=("shipper",))
    successor_specs = await pod.successor_specs(intent)
    async with pod.cri_env.watch.subscribe(POD.uid) as events:
        work = asyncio.create_task(pod.actuator().carry_out(intent, successor_specs=successor_specs))
        await pod.until_started("shipper", events)
    assert set(await pod.running()) == {"shipper"}
    await pod.kubelet_says_started("shipper")
    assert (await work).result is Result.RERUN
    await check_rerun(pod)


async def test_kill_without_effect_is_reported(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    pod.cri_env.server.fail("RemoveContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=2)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.STUCK
    assert await pod.reserved() == set(), "kubelet is not kept from what it can still do"


async def test_grace_period_stops_all_containers_concurrently(pod: PodEnv) -> None:
    intent = pod.intent(grace_seconds=5.0)
    wish = PreStopHook(ExecHook(("sync",)))
    outcome = await pod.actuator().carry_out(
        intent, successor_specs=await pod.successor_specs(intent, pre_stop_hook=wish)
    )
    assert outcome.result is Result.RERUN
    stops = [call.request for call in pod.cri_env.server.calls if call.method == "StopContainer"]
    assert {stop.timeout for stop in stops} == {5}  # type: ignore[attr-defined]
    assert {stop.container_id for stop in stops} == {pod.old[name] for name in LASTING}  # type: ignore[attr-defined]
    execs = [call.request for call in pod.cri_env.server.calls if call.method == "ExecSync"]
    assert [list(call.cmd) for call in execs] == [["sync"]] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "its answer is lost"])
async def test_successors_get_the_resources_of_a_resize_during_the_grace_period(
    pod: PodEnv, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """Kubelet resizes the newest container of a name; an older one that still runs has other resources."""
    server, older = pod.cri_env.server, pod.old["trainer"]
    newest = await pod.kubelet_starts("trainer", attempt=1)
    plan = [
        replace(each, old=(older, newest), old_attempt=1) if each.name == "trainer" else each
        for each in pod.intent().plan
    ]
    intent = pod.intent(grace_seconds=30.0, plan=tuple(plan))
    successor_specs = await pod.successor_specs(intent)
    server.delay("StopContainer", 60.0)
    if is_lost:
        server.fail("StopContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True, times=4)
    work = asyncio.create_task(pod.actuator().carry_out(intent, successor_specs=successor_specs))
    await eventually.true(lambda: server.called().count("StopContainer") == 4)
    containers = server.runtime.containers
    for container, limit in ((newest, 2 << 30), (older, 1 << 30)):
        containers[container].resized = api_pb2.LinuxContainerResources(memory_limit_in_bytes=limit)
    newest_is_read, status = asyncio.Event(), pod.cri_env.cri.container_status

    async def older_comes_last(container_id: ContainerId) -> ContainerStatus:
        if container_id == older:
            await newest_is_read.wait()
        try:
            return await status(container_id)
        finally:
            newest_is_read.set()

    monkeypatch.setattr(pod.cri_env.cri, "container_status", older_comes_last)
    server.delay("StopContainer", 0.0)
    outcome = await work
    assert containers[outcome.current["trainer"]].config.linux.resources.memory_limit_in_bytes == 2 << 30


async def test_runtime_outage_is_waited_out(pod: PodEnv) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    await pod.cri_env.server.stop()
    work = asyncio.create_task(pod.actuator().carry_out(intent, successor_specs=successor_specs))
    await asyncio.sleep(0.05)
    await pod.cri_env.server.start()
    assert (await work).result is Result.RERUN
    await check_rerun(pod)


@pytest.mark.parametrize("calls", range(22))
@pytest.mark.parametrize("resolution", steps.Resolution)
async def test_crash_after_any_step_leaves_a_pod_that_kubelet_completes(
    pod: PodEnv, calls: int, resolution: steps.Resolution
) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    await crash_after(pod, intent, successor_specs=successor_specs, calls=calls)
    outcome = await pod.actuator().carry_out(intent, successor_specs=None, resolution=resolution)
    left = await pod.in_sandbox()
    if calls <= RESERVED + 1 and resolution is steps.Resolution.UNDO:
        assert outcome.result is Result.UNDONE
        assert set(pod.old.values()) - {view.id for view in left} == (
            {pod.old["prepare"]} if calls > RESERVED else set()
        )
        return
    assert outcome.result in (Result.LEFT_TO_KUBELET, Result.RERUN)
    assert not {view.id for view in left} & set(pod.old.values())
    assert not [view for view in left if view.state is ContainerState.CREATED]


async def crash_after(
    pod: PodEnv, intent: intents.PodIntent, *, successor_specs: Mapping[str, SuccessorSpec], calls: int
) -> None:
    """Do the first ``calls`` steps of the plan, each a single call, then stop without cleanup."""
    cri = pod.cri_env.cri
    exits: dict[ContainerId, reset.Exit] = {}
    for _ in range(calls):
        seen = await pod.in_sandbox()
        for view in seen:
            if view.ref.name == "prepare" and view.state is ContainerState.EXITED and view.id not in exits:
                info = await cri.container_status(view.id)
                exits[view.id] = reset.Exit(info.exit_code, info.finished_at)
        step = rerun.next_steps(intent, seen, known=reset.Known(exits=exits))[0]
        if step.name is not None and step.kind in (steps.StepKind.RESERVE, steps.StepKind.CREATE):
            successor_spec = successor_specs[step.name]
            config = successor_spec.successor.config
            if step.attempt is not None:
                config = reservations.config(config, attempt=step.attempt)
            await cri.create_container(
                sandbox_id=intent.sandbox_id, config=config, sandbox_config=successor_spec.sandbox_config
            )
        elif step.container is not None:
            if step.kind is steps.StepKind.REMOVE:
                await cri.remove_container(step.container)
            elif step.kind is steps.StepKind.START:
                await cri.start_container(step.container)
