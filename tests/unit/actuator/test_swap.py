"""Swaps on the stand-in runtime: the order of calls, every failure of every call, kubelet's races, crashes."""

import asyncio
import stat
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubemend.agent.actuator import device_waits, hooks, turns
from kubemend.agent.actuator.context import StartPreparation
from kubemend.agent.actuator.device_processes import NoDriver, NoProcesses
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.hold.hold_set import HoldSet, OldDead
from kubemend.agent.actuator.layer_keeping import LayerKeeper, LayerKeeping
from kubemend.agent.actuator.layer_moves import KEPT
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerState,
    ContainerSummary,
    ExecHook,
    Hook,
    SleepHook,
    UnsupportedHook,
)
from kubemend.agent.restart import intents, keep, overlap, steps, swap
from kubemend.agent.restart.successor_spec import PreStopHook, SuccessorSpec
from kubemend.common import contained
from kubemend.common.pb.runtime.v1 import api_pb2
from tests import eventually
from tests.environments import call_errors
from tests.environments.runtime import LAST_WORDS, TARGET, CriEnv
from tests.fakes.cri_runtime import Container
from tests.fakes.freezer import Freezer
from tests.fakes.standbys import Standbys

CHANGES = ("StopContainer", "CreateContainer", "StartContainer", "RemoveContainer")
RESERVES = "CreateContainer"
"""The first call of a swap whose old container may end by itself: it reserves the name of kubelet's copy."""
BOTH_ORDERS = pytest.mark.parametrize("order", intents.SwapOrder)


def termination_log_of(cri_env: CriEnv, container: ContainerId) -> Path:
    """Return the host path that is mounted at the container's termination path."""
    (mount,) = cri_env.server.runtime.containers[container].config.mounts
    return Path(mount.host_path)


def changes(cri_env: CriEnv) -> list[str]:
    return [method for method in cri_env.server.called() if method in CHANGES]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (intents.SwapOrder.STOP_FIRST, [RESERVES, "StopContainer", "CreateContainer", "StartContainer"]),
        (intents.SwapOrder.CREATE_FIRST, [RESERVES, "CreateContainer", "StopContainer", "StartContainer"]),
        (intents.SwapOrder.START_FIRST, ["CreateContainer", "StartContainer", "StopContainer"]),
        (intents.SwapOrder.START_ELSE_STOP_FIRST, ["CreateContainer", "StartContainer", "StopContainer"]),
        (intents.SwapOrder.START_ELSE_CREATE_FIRST, ["CreateContainer", "StartContainer", "StopContainer"]),
    ],
)
async def test_swap_makes_its_calls_in_safe_order(
    cri_env: CriEnv, order: intents.SwapOrder, expected: list[str]
) -> None:
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert changes(cri_env) == expected
    (current,) = await cri_env.running()
    assert (current.id, current.attempt, current.restart_id) == (outcome.current["trainer"], 1, "r1")
    phases = outcome.phases.keys() - {device_waits.DEVICE_PHASE}  # a busy machine takes a millisecond at any place
    assert phases == {"stop", "create", "start", "confirm"}


async def test_host_files_are_as_kubelet_would_leave_them(cri_env: CriEnv) -> None:
    intent = cri_env.intent()
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert cri_env.termination_log.read_text() == LAST_WORDS, "kubelet reads it after the swap"
    own = termination_log_of(cri_env, outcome.current["trainer"])
    assert own != cri_env.termination_log
    assert own.parent == cri_env.termination_logs
    assert (own.read_text(), stat.S_IMODE(own.stat().st_mode)) == ("", 0o666)
    (link,) = cri_env.links.iterdir()
    assert link.name == f"trainer-0_default_trainer-{outcome.current['trainer']}.log"
    assert link.resolve() == cri_env.directory / "logs" / "trainer" / "1.log"


async def test_undone_swap_leaves_no_termination_log(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNDONE
    assert list(cri_env.termination_logs.iterdir()) == [cri_env.termination_log]


async def test_unwritable_termination_log_makes_successor_use_the_old_one(
    cri_env: CriEnv,
) -> None:
    elsewhere = cri_env.directory / "elsewhere"
    cri_env.termination_logs.rename(elsewhere)
    cri_env.termination_logs.symlink_to(elsewhere)
    intent = cri_env.intent()
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert termination_log_of(cri_env, outcome.current["trainer"]) == cri_env.termination_log
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {cri_env.termination_log.name: LAST_WORDS}


@pytest.mark.parametrize("readonly", [False, True])
async def test_file_mounted_by_pod_at_termination_path_is_never_written(cri_env: CriEnv, readonly: bool) -> None:
    """The node's own file, for example, through a read-only hostPath."""
    precious = cri_env.directory / "precious"
    precious.write_text("of the node")
    config = cri_env.server.runtime.containers[cri_env.old].config
    theirs = api_pb2.Mount(container_path="/dev/termination-log", host_path=str(precious), readonly=readonly)
    kubelets = config.mounts.pop()
    config.mounts.extend([theirs, kubelets])
    intent = cri_env.intent()
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    made = cri_env.server.runtime.containers[outcome.current["trainer"]].config
    assert outcome.result is Result.SWAPPED
    assert precious.read_text() == "of the node"
    assert made.mounts[0] == theirs
    assert Path(made.mounts[1].host_path).parent == cri_env.termination_logs


async def test_second_attempt_reuses_the_termination_log(cri_env: CriEnv) -> None:
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, times=2)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    own = termination_log_of(cri_env, outcome.current["trainer"])
    assert set(cri_env.termination_logs.iterdir()) == {cri_env.termination_log, own}


@call_errors.of_swaps(
    code for code in grpc.StatusCode if code not in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
)
async def test_any_call_error_ends_in_one_running_container(
    cri_env: CriEnv, method: str, code: grpc.StatusCode, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    seen = await cri_env.containers()
    cri_env.server.fail(method, code)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert outcome.result is Result.SWAPPED
    assert len(await cri_env.running()) == 1


@BOTH_ORDERS
async def test_permanent_create_failure_leaves_nothing_waiting(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, details="no space left on device", times=100)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.FAILED
    assert "no space left" in outcome.detail
    states = [view.state for view in await cri_env.containers()]
    old_runs_on = order is not intents.SwapOrder.STOP_FIRST
    assert states == [ContainerState.RUNNING if old_runs_on else ContainerState.EXITED]


async def test_kubelets_container_is_adopted_if_it_won_the_name(cri_env: CriEnv) -> None:
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent)
    seen = await cri_env.containers()
    theirs = await cri_env.kubelet_creates(attempt=1)
    cri_env.server.calls.clear()
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    assert [view.id for view in await cri_env.running()] == [theirs]


async def test_crio_lets_a_call_wait_whose_name_kubelet_has_taken(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await crio_material(cri_env, intent)
    cri_env.server.delay("CreateContainer", 60.0)
    swapping = asyncio.create_task(cri_env.actuator().carry_out(intent, successor_spec=successor_spec))
    await eventually.true(lambda: "CreateContainer" in cri_env.server.called())
    request = api_pb2.CreateContainerRequest(
        pod_sandbox_id=cri_env.sandbox_id, config=cri_env.config(attempt=1), sandbox_config=cri_env.sandbox_config
    )
    theirs = cri_env.server.runtime.create_container(request).container_id
    cri_env.server.runtime.start_container(api_pb2.StartContainerRequest(container_id=theirs))
    outcome = await swapping
    assert (outcome.result, outcome.current[TARGET.name]) == (Result.ADOPTED, theirs)


async def crio_material(cri_env: CriEnv, intent: intents.Intent) -> SuccessorSpec:
    """Return the successor_spec of a swap on CRI-O, where the config was rebuilt."""
    cri_env.server.runtime.behaviour.is_crio = True
    info = await cri_env.cri.container_status(cri_env.old)
    assert info.is_rebuilt
    return await cri_env.successor_spec(intent, is_rebuilt=info.is_rebuilt)


@pytest.mark.parametrize("is_dying", [False, True], ids=["has-ended", "is-dying"])
async def test_crio_is_not_asked_for_a_successor_that_kubelet_creates(cri_env: CriEnv, is_dying: bool) -> None:
    standbys = cri_env.standbys = Standbys(cri_env.server.runtime, cri_env.old, dying=is_dying)
    intent = cri_env.intent(order=intents.SwapOrder.START_ELSE_CREATE_FIRST)
    successor_spec = await crio_material(cri_env, intent)
    if not is_dying:
        await cri_env.cri.stop_container(cri_env.old, grace=0)
    cri_env.server.calls.clear()
    actuator = SwapActuator(replace(cri_env.tools(), kubelet_creates=lambda container: container == TARGET))
    swapping = asyncio.create_task(actuator.carry_out(intent, successor_spec=successor_spec))
    if is_dying:
        await eventually.true(lambda: "frozen" in standbys.story)
        await cri_env.cri.stop_container(cri_env.old, grace=0)
    await eventually.true(lambda: len([each for each in cri_env.server.called() if each == "ListContainers"]) > 1)
    assert "CreateContainer" not in cri_env.server.called()
    theirs = await cri_env.kubelet_creates(attempt=1)
    outcome = await swapping
    assert (outcome.result, outcome.current[TARGET.name]) == (Result.ADOPTED, theirs)
    assert cri_env.server.called().count("CreateContainer") == 1


@pytest.mark.parametrize("kubelet_creates", [False, True], ids=["backs-off", "is-not-there"])
async def test_crio_is_asked_for_a_successor_that_kubelet_does_not_create(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch, kubelet_creates: bool
) -> None:
    monkeypatch.setattr(swap, "KUBELETS_TURN", 0.05)
    intent = cri_env.intent(order=intents.SwapOrder.START_ELSE_CREATE_FIRST)
    successor_spec = await crio_material(cri_env, intent)
    await cri_env.cri.stop_container(cri_env.old, grace=0)
    actuator = SwapActuator(replace(cri_env.tools(), kubelet_creates=lambda _: kubelet_creates))
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED


async def test_kubelets_unstarted_container_is_waited_for(cri_env: CriEnv) -> None:
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent)
    theirs = await cri_env.kubelet_creates(attempt=1, start=False)
    work = asyncio.create_task(cri_env.actuator().carry_out(intent, successor_spec=successor_spec))
    async with cri_env.watch.subscribe(TARGET.pod.uid) as events:
        while (await events.get()).container.id != cri_env.old:
            pass  # the swap has stopped the old container and now waits
    await cri_env.cri.start_container(theirs)
    outcome = await work
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)


async def test_kubemends_duplicate_is_removed(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST)
    actuator = cri_env.actuator()
    await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    await actuator.give_back(intent)
    theirs = await cri_env.kubelet_creates(attempt=2)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=None)
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    assert [view.id for view in await cri_env.running()] == [theirs]
    assert not [view for view in await cri_env.containers() if view.restart_id == intent.id]


async def test_kill_without_effect_is_reported_and_removes_the_successor(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=2)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.STUCK
    assert changes(cri_env) == [RESERVES, "CreateContainer", "StopContainer", "StopContainer", "RemoveContainer"]
    assert [(view.id, view.state) for view in await cri_env.containers()] == [(cri_env.old, ContainerState.RUNNING)]


@BOTH_ORDERS
async def test_runtime_outage_is_waited_out(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    await cri_env.server.stop()
    work = asyncio.create_task(
        cri_env.actuator().carry_out(intent, successor_spec=successor_spec, seen=_before(cri_env))
    )
    await asyncio.sleep(0.05)
    await cri_env.server.start()
    assert (await work).result is Result.SWAPPED
    assert len(await cri_env.running()) == 1


def _before(cri_env: CriEnv) -> tuple[Any, ...]:
    return tuple(view for view in cri_env.watch.containers() if view.ref == TARGET)


async def test_permanent_runtime_outage_leaves_the_intent_unfinished(cri_env: CriEnv) -> None:
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent)
    await cri_env.server.stop()
    outcome = await cri_env.actuator(time_limit=0.2).carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNFINISHED
    await cri_env.server.start()


@BOTH_ORDERS
@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("resolution", steps.Resolution)
async def test_crash_after_any_call_is_completed_or_undone(
    cri_env: CriEnv, order: intents.SwapOrder, calls: int, resolution: steps.Resolution
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.calls.clear()
    await crash_after(cri_env, intent, successor_spec=successor_spec, calls=calls)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, resolution=resolution)
    assert outcome.result in (Result.SWAPPED, Result.UNDONE)
    assert len(await cri_env.running()) == 1
    assert not [view for view in await cri_env.containers() if view.state is ContainerState.CREATED]


async def crash_after(cri_env: CriEnv, intent: intents.Intent, *, successor_spec: Any, calls: int) -> None:
    """Do the first ``calls`` steps of the plan, then stop without cleanup."""
    for _ in range(calls):
        step = swap.next_step(intent, await cri_env.containers())
        match step.kind:
            case steps.StepKind.STOP:
                await cri_env.cri.stop_container(intent.old, grace=0)
            case steps.StepKind.CREATE:
                await cri_env.cri.create_container(
                    sandbox_id=intent.sandbox_id,
                    config=successor_spec.successor.config,
                    sandbox_config=successor_spec.sandbox_config,
                )
            case steps.StepKind.START:
                assert step.container is not None
                await cri_env.cri.start_container(step.container)


async def test_post_start_hook_runs_in_the_successor(cri_env: CriEnv) -> None:
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent, post_start=ExecHook(("touch", "/ready")))
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    (call,) = [call for call in cri_env.server.calls if call.method == "ExecSync"]
    assert list(call.request.cmd) == ["touch", "/ready"]  # type: ignore[attr-defined]


async def test_post_start_hook_is_not_cut_short_by_the_time_limit_of_the_swap(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ended = hooks.run_post_start, []

    async def recorded(*arguments: Any, **more: Any) -> None:
        await run(*arguments, **more)
        ended.append(more["container_id"])

    monkeypatch.setattr(hooks, "run_post_start", recorded)
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent, post_start=SleepHook(2))
    outcome = await cri_env.actuator(time_limit=1.5).carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert ended == [outcome.current[TARGET.name]]


async def test_failed_post_start_hook_stops_the_successor(cri_env: CriEnv) -> None:
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent, post_start=UnsupportedHook("tcpSocket cannot be run"))
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SUCCESSOR_EXITED
    assert "tcpSocket" in outcome.detail


async def test_failed_post_start_hook_never_fails_a_never_pod(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await cri_env.successor_spec(intent, post_start=UnsupportedHook("tcpSocket cannot be run"))
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert "tcpSocket" in outcome.detail


async def test_grace_period_runs_pre_stop_then_sends_sigterm(cri_env: CriEnv) -> None:
    intent = cri_env.intent(grace_seconds=5.0)
    successor_spec = await cri_env.successor_spec(intent, pre_stop_hook=PreStopHook(ExecHook(("sync",))))
    await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    called = [method for method in cri_env.server.called() if method in ("ExecSync", "StopContainer")]
    assert called == ["ExecSync", "StopContainer"]


async def test_pre_stop_is_skipped_without_grace_period(cri_env: CriEnv) -> None:
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent, pre_stop_hook=PreStopHook(ExecHook(("sync",))))
    await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert "ExecSync" not in cri_env.server.called()


async def test_pre_stop_uses_up_the_grace_period(cri_env: CriEnv) -> None:
    intent = cri_env.intent(grace_seconds=60.0)
    cri_env.server.delay("ExecSync", 1.1)
    successor_spec = await cri_env.successor_spec(intent, pre_stop_hook=PreStopHook(ExecHook(("sync",))))
    await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    (stop,) = [call.request for call in cri_env.server.calls if call.method == "StopContainer"]
    assert 0 < stop.timeout <= 59  # type: ignore[attr-defined]  # 58.9 s at most, in whole seconds as CRI has it


@pytest.mark.parametrize("hook", [ExecHook(("sync",)), SleepHook(60), UnsupportedHook("tcpSocket")])
async def test_failed_or_slow_pre_stop_does_not_prevent_the_stop(cri_env: CriEnv, hook: Hook) -> None:
    intent = cri_env.intent(grace_seconds=0.5)
    cri_env.server.fail("ExecSync", grpc.StatusCode.INTERNAL)
    successor_spec = await cri_env.successor_spec(intent, pre_stop_hook=PreStopHook(hook))
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED


START_FIRST = intents.SwapOrder.START_FIRST
STARTS_FIRST = pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each.starts_first])


def standbys(cri_env: CriEnv) -> Standbys:
    assert cri_env.standbys is not None
    return cri_env.standbys


@STARTS_FIRST
async def test_standby_successor_runs_once_the_old_container_is_dead(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert standbys(cri_env).story == ["frozen", "prepared", "released"]


@STARTS_FIRST
@pytest.mark.parametrize("slow", [False, True])
async def test_old_container_of_a_round_is_killed_before_the_runtime_stops_it(
    cri_env: CriEnv, order: intents.SwapOrder, slow: bool
) -> None:
    standbys(cri_env).slow_to_die = slow
    intent = cri_env.intent(order=order)
    dead: list[OldDead] = []
    calls: list[str] = []

    def note(death: OldDead) -> None:
        dead.append(death)
        calls.extend(cri_env.server.called())

    holding = HoldSet(Freezer(cri_env.server.runtime), mark="uid-1", names={"trainer"}, on_dead=note)
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=await cri_env.successor_spec(intent), holding=holding
    )
    assert outcome.result is Result.SWAPPED
    assert "StopContainer" in cri_env.server.called()
    assert [each.has_started for each in dead] == ([] if slow else [True])
    assert "StopContainer" not in calls
    assert ("killed" in standbys(cri_env).story) is not slow
    holding.release()


@BOTH_ORDERS
async def test_old_container_from_before_the_clock_was_set_back_is_removed_once_its_successor_runs(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    """At once after its end, if the successor is on standby."""
    cri_env.server.runtime.containers[cri_env.old].created_at = time.time_ns() + 3600 * 10**9
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert [view.id for view in await cri_env.containers()] == [outcome.current["trainer"]]
    assert changes(cri_env)[-2:] == ["StopContainer" if order.starts_first else "StartContainer", "RemoveContainer"]
    called = cri_env.server.called()
    assert (called[called.index("RemoveContainer") - 1] == "StopContainer") is order.starts_first


async def test_unholdable_successor_is_removed_and_the_old_container_continues(cri_env: CriEnv) -> None:
    standbys(cri_env).refusal = "no fanotify"
    intent = cri_env.intent(order=START_FIRST)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert (outcome.result, outcome.detail) == (Result.UNDONE, "no fanotify")
    assert [view.id for view in await cri_env.containers()] == [cri_env.old]
    assert [view.id for view in await cri_env.running()] == [cri_env.old]


async def test_obstacle_found_while_the_successor_is_created_undoes_the_swap(cri_env: CriEnv) -> None:
    standbys(cri_env).obstacle = "no room"
    intent = cri_env.intent(order=START_FIRST)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert (outcome.result, outcome.detail) == (Result.UNDONE, "no room")
    assert [view.id for view in await cri_env.running()] == [cri_env.old]
    assert standbys(cri_env).story == ["frozen", "thawed", "thawed"]


@STARTS_FIRST
async def test_old_container_with_known_process_is_frozen_without_a_call(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent, old_pid=41)
    seen = await cri_env.containers()
    cri_env.server.calls.clear()
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert outcome.result is Result.SWAPPED
    called = cri_env.server.called()
    assert "ContainerStatus" not in called[: called.index("CreateContainer")]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (intents.SwapOrder.STOP_FIRST, [RESERVES, "StopContainer", "CreateContainer", "RemoveContainer"]),
        (intents.SwapOrder.CREATE_FIRST, [RESERVES, "CreateContainer", "RemoveContainer"]),
        (intents.SwapOrder.START_FIRST, ["CreateContainer", "StartContainer", "RemoveContainer"]),
        (intents.SwapOrder.START_ELSE_STOP_FIRST, ["CreateContainer", "StartContainer", "RemoveContainer"]),
        (intents.SwapOrder.START_ELSE_CREATE_FIRST, ["CreateContainer", "StartContainer", "RemoveContainer"]),
    ],
)
async def test_a_successor_that_differs_never_runs_and_is_removed(
    cri_env: CriEnv, order: intents.SwapOrder, expected: list[str]
) -> None:
    cri_env.server.runtime.behaviour.spec_of_new = {"cwd": "/elsewhere"}
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.resized_spec(intent))
    assert (outcome.result, outcome.detail) == (Result.NOT_ALIKE, "the successor would differ: process.cwd is new")
    assert changes(cri_env) == expected
    (left,) = await cri_env.containers()
    is_stopped = order is intents.SwapOrder.STOP_FIRST
    assert (left.id, left.state) == (cri_env.old, ContainerState.EXITED if is_stopped else ContainerState.RUNNING)


@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "its answer is lost"])
@pytest.mark.parametrize("grace", [30.0, 0.0], ids=["in its grace period", "killed"])
async def test_successor_gets_the_resources_of_a_resize_while_the_old_container_takes_long_to_end(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch, grace: float, *, is_lost: bool
) -> None:
    if not grace:
        monkeypatch.setattr(turns, "SLOW", 0.0)
    intent = cri_env.intent(grace_seconds=grace)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.delay("StopContainer", 60.0)
    if is_lost:
        cri_env.server.fail("StopContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True)
    work = asyncio.create_task(cri_env.actuator().carry_out(intent, successor_spec=successor_spec))
    await eventually.true(lambda: "StopContainer" in cri_env.server.called())
    containers = cri_env.server.runtime.containers
    containers[cri_env.old].resized = api_pb2.LinuxContainerResources(memory_limit_in_bytes=2 << 30)
    cri_env.server.delay("StopContainer", 0.0)
    outcome = await work
    assert containers[outcome.current["trainer"]].config.linux.resources.memory_limit_in_bytes == 2 << 30


@STARTS_FIRST
async def test_a_successor_that_differs_is_removed_although_its_swap_is_cancelled(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    cri_env.server.runtime.behaviour.spec_of_new = {"cwd": "/elsewhere"}
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.resized_spec(intent)
    cri_env.server.delay("RemoveContainer", 60.0)
    work = asyncio.create_task(cri_env.actuator().carry_out(intent, successor_spec=successor_spec))
    await eventually.true(lambda: "RemoveContainer" in cri_env.server.called())
    work.cancel()
    cri_env.server.delay("RemoveContainer", 0.0)
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [(view.id, view.state) for view in await cri_env.containers()] == [(cri_env.old, ContainerState.RUNNING)]
    assert standbys(cri_env).story[-1] == "thawed"


@STARTS_FIRST
async def test_a_successor_that_is_not_compared_yet_is_removed_when_its_swap_is_cancelled(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.resized_spec(intent, old_pid=41)
    cri_env.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE, times=10_000)
    work = asyncio.create_task(cri_env.actuator().carry_out(intent, successor_spec=successor_spec))
    await eventually.true(lambda: "prepared" in standbys(cri_env).story)
    async with cri_env.watch.subscribe(TARGET.pod.uid) as events:
        while len(await cri_env.running()) < 2:
            await events.get()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [view.id for view in await cri_env.containers()] == [cri_env.old]
    assert standbys(cri_env).story[-1] == "thawed"


@STARTS_FIRST
async def test_a_successor_that_differs_does_not_import_although_its_start_was_not_answered(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    cri_env.server.runtime.behaviour.spec_of_new = {"cwd": "/elsewhere"}
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.resized_spec(intent, overlap_request=overlap.Request())
    cri_env.server.fail("StartContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.NOT_ALIKE
    assert "imports" not in standbys(cri_env).story
    assert [view.id for view in await cri_env.running()] == [cri_env.old]


@BOTH_ORDERS
async def test_a_successor_that_cannot_be_compared_counts_as_different(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.resized_spec(intent)
    verbose = Container.verbose
    monkeypatch.setattr(Container, "verbose", lambda of, how: verbose(of, how) if of.id == cri_env.old else "no JSON")
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.NOT_ALIKE
    assert "is not JSON" in outcome.detail


@STARTS_FIRST
async def test_a_runtime_that_does_not_answer_for_a_while_is_asked_again_before_the_old_container_is_stopped(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.resized_spec(intent, old_pid=41)
    cri_env.server.calls.clear()
    cri_env.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE, times=3)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    called = cri_env.server.called()
    assert called[: called.index("StopContainer")].count("ContainerStatus") > 3


@BOTH_ORDERS
async def test_a_successor_of_a_dead_container_that_is_removed_during_the_comparison_needs_no_proof(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.resized_spec(intent)
    await cri_env.cri.remove_container(cri_env.old)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED


async def test_a_rebuilt_successor_of_a_container_that_is_gone_cannot_be_proved(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await crio_material(cri_env, intent)
    await cri_env.cri.remove_container(cri_env.old)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.NOT_ALIKE
    assert "does not exist" in outcome.detail
    assert await cri_env.containers() == ()


@BOTH_ORDERS
async def test_a_plain_copy_is_not_compared(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    """A comparison takes 3 ms of CPU, which a gang on one node would wait for."""
    cri_env.server.runtime.behaviour.spec_of_new = {"cwd": "/elsewhere"}
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED


@pytest.mark.parametrize("order", [intents.SwapOrder.START_ELSE_STOP_FIRST, intents.SwapOrder.START_ELSE_CREATE_FIRST])
async def test_unholdable_successor_falls_back_to_stop_first_if_safe(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    standbys(cri_env).refusal = "no fanotify"
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert changes(cri_env) == [RESERVES, "CreateContainer", "StopContainer", "StartContainer"]
    assert len(await cri_env.running()) == 1


@STARTS_FIRST
async def test_unstartable_successor_leaves_the_old_container_running(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    """Containerd counts a failed start as the container's exit."""
    cri_env.server.runtime.behaviour.start_fails = True
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.FAILED
    assert "cannot start" in outcome.detail
    assert "StopContainer" not in changes(cri_env)
    assert [(view.id, view.state) for view in await cri_env.containers()] == [(cri_env.old, ContainerState.RUNNING)]
    assert "thawed" in standbys(cri_env).story


@STARTS_FIRST
async def test_failed_start_is_retried_with_another_successor(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    cri_env.server.runtime.behaviour.start_fails = True
    intent = cri_env.intent(order=order)
    work = asyncio.create_task(
        cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    )
    async with cri_env.watch.subscribe(TARGET.pod.uid) as events:
        while (await events.get()).kind is not EventKind.DELETED:
            pass  # the one that could not be started is removed
    cri_env.server.runtime.behaviour.start_fails = False
    assert (await work).result is Result.SWAPPED
    (current,) = await cri_env.running()
    assert (current.attempt, current.restart_id) == (1, intent.id)


@STARTS_FIRST
async def test_post_start_of_held_successor_waits_for_release(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent, post_start=ExecHook(("true",)))
    await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    called = [method for method in cri_env.server.called() if method in (*CHANGES, "ExecSync")]
    assert called == ["CreateContainer", "StartContainer", "StopContainer", "ExecSync"]


@STARTS_FIRST
async def test_failing_stop_keeps_successor_and_kills_old_by_cgroup(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    """Once both exist there is no way back: kubelet would see the successor's exit."""
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await cri_env.actuator(time_limit=3.0).carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNFINISHED
    assert standbys(cri_env).story == ["frozen", "prepared", "killed", "released"]
    (current,) = await cri_env.running()
    assert current.restart_id == intent.id


@STARTS_FIRST
async def test_unkillable_old_container_removes_the_held_successor(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=2)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.STUCK
    assert [view.id for view in await cri_env.running()] == [cri_env.old]


@STARTS_FIRST
async def test_lost_start_answer_keeps_the_old_container_frozen_until_listed(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StartContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert "thawed" not in standbys(cri_env).story


@pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each is not intents.SwapOrder.STOP_FIRST])
async def test_old_container_is_frozen_before_its_successor_is_created(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    """Otherwise kubelet's copy and the old one would both run if the agent died there."""
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.FAILED
    assert standbys(cri_env).story[0] == "frozen"
    assert "thawed" in standbys(cri_env).story, "nothing is left next to it"


async def test_container_stopped_before_create_is_not_frozen(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.STOP_FIRST)
    await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert standbys(cri_env).story == []


async def test_unfreezable_container_gets_a_successor_while_running(cri_env: CriEnv) -> None:
    standbys(cri_env).refusal = "no cgroup version 2"
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED


@STARTS_FIRST
async def test_old_container_that_ends_during_the_swap_needs_no_hold(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent = cri_env.intent(order=order)
    successor_spec, seen = await cri_env.successor_spec(intent), await cri_env.containers()
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    standbys(cri_env).gone = True
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert outcome.result is Result.SWAPPED
    assert changes(cri_env) == [RESERVES, "CreateContainer", "StartContainer"]


@STARTS_FIRST
async def test_swap_waits_for_the_runtime_to_show_that_the_old_process_is_gone(
    cri_env: CriEnv, order: intents.SwapOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a lone Never container would lose the successor that is to replace it."""
    intent = cri_env.intent(order=order)
    successor_spec, list_containers = await cri_env.successor_spec(intent), cri_env.cri.list_containers
    standbys(cri_env).gone = True

    async def exits_after_the_listing(**of: Any) -> tuple[ContainerSummary, ...]:
        views = await list_containers(**of)
        if any(view.restart_id == intent.id for view in views):
            cri_env.server.runtime.exit(cri_env.old, exit_code=1)
        return views

    monkeypatch.setattr(cri_env.cri, "list_containers", exits_after_the_listing)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert changes(cri_env) == [RESERVES, "CreateContainer", "StartContainer"]


@BOTH_ORDERS
async def test_failing_stop_leaves_no_successor_waiting(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    if order.starts_first:
        return
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is (Result.FAILED if order is intents.SwapOrder.STOP_FIRST else Result.UNDONE)
    assert [(view.id, view.state) for view in await cri_env.containers()] == [(cri_env.old, ContainerState.RUNNING)]


@STARTS_FIRST
async def test_undone_replay_thaws_the_old_container(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent = cri_env.intent(order=order)
    standbys(cri_env).frozen = True  # by an agent that died then
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=await cri_env.successor_spec(intent), resolution=steps.Resolution.UNDO
    )
    assert outcome.result is Result.UNDONE
    assert not standbys(cri_env).frozen


async def test_replay_that_cannot_thaw_the_old_container_is_not_finished(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.START_FIRST)
    successor_spec, undo = await cri_env.successor_spec(intent), steps.Resolution.UNDO
    standbys(cri_env).frozen = True  # by an agent that died then
    cri_env.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, resolution=undo)
    assert outcome.result is Result.UNFINISHED
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, resolution=undo)
    assert outcome.result is Result.UNDONE
    assert not standbys(cri_env).frozen


async def test_swap_that_cannot_thaw_the_old_container_is_not_finished(cri_env: CriEnv) -> None:
    """Nothing else would thaw it before the next agent."""
    intent = cri_env.intent(order=intents.SwapOrder.START_FIRST)
    successor_spec = await cri_env.successor_spec(intent)
    standbys(cri_env).not_thawed = "no descriptor is free"
    cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, times=3)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert (outcome.result, outcome.detail) == (
        Result.UNFINISHED,
        "the old container may be frozen: no descriptor is free",
    )
    standbys(cri_env).not_thawed = None
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=successor_spec, resolution=steps.Resolution.UNDO
    )
    assert outcome.result is Result.UNDONE
    assert not standbys(cri_env).frozen


async def test_old_container_of_a_dead_agent_is_thawed_if_it_can_be_neither_replaced_nor_stopped(
    cri_env: CriEnv,
) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.START_ELSE_STOP_FIRST)
    standbys(cri_env).frozen, standbys(cri_env).refusal = True, "no room"
    cri_env.server.fail("StopContainer", grpc.StatusCode.UNKNOWN, times=99)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.UNDONE
    assert not standbys(cri_env).frozen


@BOTH_ORDERS
@pytest.mark.parametrize("exit_code", [0, 1])
async def test_undone_replay_starts_no_container_that_may_have_ended_for_good(
    cri_env: CriEnv, order: intents.SwapOrder, exit_code: int
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.runtime.exit(cri_env.old, exit_code=exit_code)
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=successor_spec, resolution=steps.Resolution.UNDO
    )
    restarted = exit_code != 0 and order.exit_is_restarted
    assert outcome.result is (Result.SWAPPED if restarted else Result.UNDONE)
    assert len(await cri_env.running()) == restarted


@BOTH_ORDERS
async def test_program_that_completes_before_its_stop_is_not_started_again(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order, completes=True)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.runtime.exit(cri_env.old, exit_code=0)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    detail = "the program ended with exit code 0 before it was stopped"
    assert (outcome.result, outcome.detail) == (Result.COMPLETED, detail)
    assert changes(cri_env) == []


async def test_successor_of_a_program_that_completes_in_between_is_removed(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process could not be frozen, so it has ended by itself while its successor was created."""
    assert cri_env.standbys is not None
    cri_env.standbys.refusal = "no cgroup version 2"
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST, completes=True)
    stop_container = cri_env.cri.stop_container

    async def completes_before_the_stop(container_id: ContainerId, **how: Any) -> None:
        cri_env.server.runtime.exit(cri_env.old, exit_code=0)
        await stop_container(container_id, **how)

    monkeypatch.setattr(cri_env.cri, "stop_container", completes_before_the_stop)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.COMPLETED
    assert [view.id for view in await cri_env.containers()] == [cri_env.old]
    assert changes(cri_env) == ["CreateContainer", RESERVES, "StopContainer", "RemoveContainer"]


STARTED = ["CreateContainer", "StartContainer"]
"""The calls after which a successor is on standby, or runs, if its agent has died since."""


@STARTS_FIRST
@pytest.mark.parametrize("begun", [[], STARTED[:1], STARTED])
@pytest.mark.parametrize("in_round", [False, True])
@pytest.mark.parametrize("exit_code", [0, 1])
async def test_successor_on_standby_of_a_program_that_has_completed_is_removed(
    cri_env: CriEnv,
    monkeypatch: pytest.MonkeyPatch,
    *,
    order: intents.SwapOrder,
    begun: list[str],
    in_round: bool,
    exit_code: int,
) -> None:
    """The program has exited already, but its process takes long to leave its devices, and cannot be frozen.

    A previous agent may have ``begun`` the swap.
    """
    standbys(cri_env).dying = True
    intent = cri_env.intent(order=order, completes=True)
    successor_spec = await cri_env.successor_spec(intent)
    await crash_after(cri_env, intent, successor_spec=successor_spec, calls=len(begun))
    assert changes(cri_env) == begun
    stop_container = cri_env.cri.stop_container

    async def ends_before_the_stop(container_id: ContainerId, **how: Any) -> None:
        cri_env.server.runtime.exit(cri_env.old, exit_code=exit_code)
        await stop_container(container_id, **how)

    monkeypatch.setattr(cri_env.cri, "stop_container", ends_before_the_stop)
    holding = HoldSet(Freezer(cri_env.server.runtime), mark="uid-1", names={"trainer"})
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=successor_spec, holding=holding if in_round else None
    )
    holding.release()
    if exit_code:
        assert outcome.result is Result.SWAPPED
        assert len(await cri_env.running()) == 1
    else:
        assert outcome.result is Result.COMPLETED
        assert [view.id for view in await cri_env.containers()] == [cri_env.old]
        assert not standbys(cri_env).held


async def test_successor_of_a_completed_program_that_cannot_be_removed_at_first_is_removed_later(
    cri_env: CriEnv,
) -> None:
    """Kubelet would start a copy of it."""
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST, completes=True)
    successor_spec = await cri_env.successor_spec(intent)
    await crash_after(cri_env, intent, successor_spec=successor_spec, calls=1)
    cri_env.server.runtime.exit(cri_env.old, exit_code=0)
    cri_env.server.fail("RemoveContainer", grpc.StatusCode.UNKNOWN, details="device or resource busy", times=4)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.COMPLETED
    assert [view.id for view in await cri_env.containers()] == [cri_env.old]


@STARTS_FIRST
@pytest.mark.parametrize("resolution", steps.Resolution)
async def test_successor_that_a_dead_agent_has_released_next_to_a_completed_program_is_removed_within_a_minute(
    cri_env: CriEnv, order: intents.SwapOrder, resolution: steps.Resolution
) -> None:
    """After that it may have worked for days, until an agent came back. Nor is it removed once the swap is over."""
    intent = cri_env.intent(order=order, completes=True)
    successor_spec = await cri_env.successor_spec(intent)
    await crash_after(cri_env, intent, successor_spec=successor_spec, calls=2)
    cri_env.server.runtime.exit(cri_env.old, exit_code=0)
    over = await cri_env.actuator().carry_out(intent, successor_spec=None)
    assert over.result is Result.SWAPPED
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, resolution=resolution)
    is_recent = resolution is steps.Resolution.FINISH
    assert outcome.result is (Result.COMPLETED if is_recent else Result.SWAPPED)
    assert len(await cri_env.running()) == (not is_recent)


async def test_container_that_was_not_stopped_has_not_completed(cri_env: CriEnv) -> None:
    """The runtime has answered the stop, but the container runs: its status has the exit code 0 until it ends."""
    intent = cri_env.intent(completes=True)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.NOT_FOUND)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED


async def test_exit_code_that_cannot_be_read_is_read_again(cri_env: CriEnv) -> None:
    intent = cri_env.intent(completes=True)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.runtime.exit(cri_env.old, exit_code=0)
    cri_env.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE, times=2)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.COMPLETED
    assert changes(cri_env) == []


@pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each is not intents.SwapOrder.STOP_FIRST])
@pytest.mark.parametrize("carried_out", [False, True])
async def test_stop_timeout_of_hanging_runtime_undoes_nothing(
    cri_env: CriEnv, order: intents.SwapOrder, carried_out: bool
) -> None:
    """The old container may die a moment later: without its successor the pod would fail."""
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, carried_out=carried_out)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert "RemoveContainer" not in changes(cri_env)
    assert len(await cri_env.running()) == 1


IMPORTED = overlap.note("trainer", None)


@STARTS_FIRST
async def test_successor_imports_while_the_old_container_is_stopped(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent = cri_env.intent(order=order)
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    )
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (IMPORTED,))
    assert standbys(cri_env).story == ["frozen", "prepared", "imports", "released", "driver released"]
    assert changes(cri_env) == ["CreateContainer", "StartContainer", "StopContainer"]


async def test_importing_successor_waits_for_the_devices_of_the_dead_one(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=START_FIRST)
    gates = ShutGates()
    actuator = SwapActuator(replace(cri_env.tools(), gates=gates))
    work = asyncio.create_task(
        actuator.carry_out(
            intent, successor_spec=await cri_env.successor_spec(intent, overlap_request=overlap.Request())
        )
    )
    await gates.reached.wait()
    assert standbys(cri_env).story == ["frozen", "prepared", "imports", "released"]
    assert not standbys(cri_env).old_runs()
    gates.open = True
    assert (await work).result is Result.SWAPPED
    assert standbys(cri_env).story[-1] == "driver released"


class ShutGates(ReleaseGates):
    """Gates that stay shut until they are opened."""

    def __init__(self) -> None:
        super().__init__(driver=NoDriver(), processes=NoProcesses())
        self.reached = asyncio.Event()
        self.open = False

    async def opens(self, restart: str, *, timeout: float | None = None) -> bool:
        self.reached.set()
        await asyncio.sleep(0)
        return self.open


class Keeper(LayerKeeper):
    """Move paths to the successor, and record when."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = asyncio.Event()

    async def move(
        self, old: ContainerId, new: ContainerId, paths: Sequence[str], *, held: int | None = None
    ) -> dict[str, str]:
        assert held is None
        self.moved.set()
        return dict.fromkeys(paths, KEPT)


@pytest.mark.parametrize("order", [intents.SwapOrder.STOP_FIRST, intents.SwapOrder.CREATE_FIRST])
async def test_kept_paths_do_not_wait_for_the_devices(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    """Once a minute, kubelet removes all but the newest of a name's containers that do not run."""
    intent, gates, keeper = cri_env.intent(order=order), ShutGates(), Keeper()
    keeping = LayerKeeping(keeper, keep.Request("trainer", ("/a",), intent.old, ()))
    actuator = SwapActuator(replace(cri_env.tools(), gates=gates, standbys=None))
    work = asyncio.create_task(
        actuator.carry_out(
            intent,
            successor_spec=await cri_env.successor_spec(intent),
            preparation=StartPreparation(kept={"trainer": keeping}),
        )
    )
    async with asyncio.timeout(60.0):
        await keeper.moved.wait()
        assert "StartContainer" not in changes(cri_env)
        gates.open = True
        assert (await work).result is Result.SWAPPED
    assert keeping.note == "trainer keeps /a"


class SlowGates(ReleaseGates):
    """Gates that open a moment later."""

    def __init__(self) -> None:
        super().__init__(driver=NoDriver(), processes=NoProcesses())

    async def opens(self, restart: str, *, timeout: float | None = None) -> bool:
        await asyncio.sleep(0.1)
        return True


@STARTS_FIRST
async def test_wait_for_the_devices_after_a_lost_answer_is_not_counted_twice(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True)
    actuator = SwapActuator(replace(cri_env.tools(), gates=SlowGates()))
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert outcome.phases["device"] >= 0.1
    assert min(outcome.phases.values()) >= 0.0


async def test_pod_without_the_wish_imports_nothing_early(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=START_FIRST)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.notes == ()
    assert "imports" not in standbys(cri_env).story


@pytest.mark.parametrize("obstacle", [overlap.Obstacle.NO_DRIVER, overlap.Obstacle.NO_ROOM])
async def test_successor_that_cannot_be_held_at_its_driver_stays_held(
    cri_env: CriEnv, obstacle: overlap.Obstacle
) -> None:
    standbys(cri_env).not_overlapped = obstacle
    intent = cri_env.intent(order=START_FIRST)
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    )
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (overlap.note("trainer", obstacle),))
    assert standbys(cri_env).story == ["frozen", "prepared", "released"]


async def test_successor_of_a_round_imports_nothing_early(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=START_FIRST)
    holding = HoldSet(Freezer(cri_env.server.runtime), mark="uid-1", names={"trainer"})
    successor_spec = await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, holding=holding)
    assert outcome.notes == (overlap.note("trainer", overlap.Obstacle.IN_ROUND),)
    assert "imports" not in standbys(cri_env).story
    holding.release()


async def test_successor_that_is_not_started_next_to_the_old_one_imports_nothing_early(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.STOP_FIRST)
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    )
    assert outcome.notes == (overlap.note("trainer", overlap.Obstacle.NO_STANDBY),)


async def test_internal_error_of_an_overlap_keeps_the_successor_held(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("internal")

    monkeypatch.setattr(standbys(cri_env), "overlap", fail)
    intent = cri_env.intent(order=START_FIRST)
    counted = contained.count()
    outcome = await cri_env.actuator().carry_out(
        intent, successor_spec=await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    )
    assert outcome.notes == (overlap.note("trainer", overlap.Obstacle.INTERNAL_ERROR),)
    assert standbys(cri_env).story == ["frozen", "prepared", "released"]
    assert contained.count() == counted + 1


async def test_end_of_a_container_that_has_ended_is_overlapped_by_nothing(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=START_FIRST)
    successor_spec = await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, ())


async def test_importing_successor_of_an_unkillable_container_is_removed(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=START_FIRST)
    successor_spec = await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    cri_env.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=2)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.STUCK
    assert [view.id for view in await cri_env.running()] == [cri_env.old]


async def test_failing_stop_of_an_overlapped_container_kills_it_before_the_driver_is_released(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=START_FIRST)
    successor_spec = await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    cri_env.server.fail("StopContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await cri_env.actuator(time_limit=3.0).carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNFINISHED
    assert standbys(cri_env).story[-2:] == ["killed", "driver released"]


async def test_successor_that_dies_of_its_imports_is_left_to_kubelet(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=START_FIRST)
    gates = ShutGates()
    actuator = SwapActuator(replace(cri_env.tools(), gates=gates))
    work = asyncio.create_task(
        actuator.carry_out(
            intent, successor_spec=await cri_env.successor_spec(intent, overlap_request=overlap.Request())
        )
    )
    await gates.reached.wait()
    (importing,) = await cri_env.running()
    cri_env.server.runtime.exit(importing.id, exit_code=1)
    gates.open = True
    assert (await work).result is Result.SUCCESSOR_EXITED
    assert await cri_env.running() == []


async def test_lost_start_answer_overlaps_once(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=START_FIRST)
    successor_spec = await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    cri_env.server.fail("StartContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (IMPORTED,))
    assert standbys(cri_env).story.count("imports") == 1


@STARTS_FIRST
@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("resolution", steps.Resolution)
async def test_interrupted_overlap_is_completed_or_undone(
    cri_env: CriEnv, order: intents.SwapOrder, calls: int, resolution: steps.Resolution
) -> None:
    """The kernel has released what the dead agent held; the successor may be anywhere in its program."""
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent, overlap_request=overlap.Request())
    await crash_after(cri_env, intent, successor_spec=successor_spec, calls=calls)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=successor_spec, resolution=resolution)
    assert outcome.result in (Result.SWAPPED, Result.UNDONE)
    assert len(await cri_env.running()) == 1
    assert not [view for view in await cri_env.containers() if view.state is ContainerState.CREATED]
