"""Swaps on the stand-in runtime: the order of calls, every failure of every call, kubelet's races, crashes."""

import asyncio
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubemend.agent.actuator import device_waits
from kubemend.agent.actuator.device_processes import NoDriver, NoProcesses
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.hold.hold_set import HoldSet, OldDead
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
from kubemend.agent.restart import intents, likeness, overlap, steps, swap
from kubemend.agent.restart.successor_spec import PreStopHook, SuccessorSpec
from kubemend.common import contained
from kubemend.common.pb.runtime.v1 import api_pb2
from tests import eventually
from tests.environments import call_errors
from tests.environments.runtime import LAST_WORDS, TARGET, Rig
from tests.fakes.freezer import Freezer
from tests.fakes.standbys import Standbys

CHANGES = ("StopContainer", "CreateContainer", "StartContainer", "RemoveContainer")
RESERVES = "CreateContainer"
"""The first call of a swap whose old container may end by itself: it reserves the name of kubelet's copy."""
BOTH_ORDERS = pytest.mark.parametrize("order", intents.SwapOrder)


def termination_log_of(rig: Rig, container: ContainerId) -> Path:
    """Return the host path that is mounted at the container's termination path."""
    (mount,) = rig.server.runtime.containers[container].config.mounts
    return Path(mount.host_path)


def changes(rig: Rig) -> list[str]:
    return [method for method in rig.server.called() if method in CHANGES]


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
async def test_swap_makes_its_calls_in_safe_order(rig: Rig, order: intents.SwapOrder, expected: list[str]) -> None:
    intent = rig.intent(order=order)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert changes(rig) == expected
    (current,) = await rig.running()
    assert (current.id, current.attempt, current.restart_id) == (outcome.current["trainer"], 1, "r1")
    phases = outcome.phases.keys() - {device_waits.DEVICE_PHASE}  # a busy machine takes a millisecond at any place
    assert phases == {"stop", "create", "start", "confirm"}


async def test_host_files_are_as_kubelet_would_leave_them(rig: Rig) -> None:
    intent = rig.intent()
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert rig.termination_log.read_text() == LAST_WORDS, "kubelet reads it after the swap"
    own = termination_log_of(rig, outcome.current["trainer"])
    assert own != rig.termination_log
    assert own.parent == rig.termination_logs
    assert (own.read_text(), stat.S_IMODE(own.stat().st_mode)) == ("", 0o666)
    (link,) = rig.links.iterdir()
    assert link.name == f"trainer-0_default_trainer-{outcome.current['trainer']}.log"
    assert link.resolve() == rig.directory / "logs" / "trainer" / "1.log"


async def test_undone_swap_leaves_no_termination_log(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNDONE
    assert list(rig.termination_logs.iterdir()) == [rig.termination_log]


async def test_unwritable_termination_log_makes_successor_use_the_old_one(
    rig: Rig,
) -> None:
    elsewhere = rig.directory / "elsewhere"
    rig.termination_logs.rename(elsewhere)
    rig.termination_logs.symlink_to(elsewhere)
    intent = rig.intent()
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert termination_log_of(rig, outcome.current["trainer"]) == rig.termination_log
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {rig.termination_log.name: LAST_WORDS}


@pytest.mark.parametrize("readonly", [False, True])
async def test_file_mounted_by_pod_at_termination_path_is_never_written(rig: Rig, readonly: bool) -> None:
    """The node's own file, for example, through a read-only hostPath."""
    precious = rig.directory / "precious"
    precious.write_text("of the node")
    config = rig.server.runtime.containers[rig.old].config
    theirs = api_pb2.Mount(container_path="/dev/termination-log", host_path=str(precious), readonly=readonly)
    kubelets = config.mounts.pop()
    config.mounts.extend([theirs, kubelets])
    intent = rig.intent()
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    made = rig.server.runtime.containers[outcome.current["trainer"]].config
    assert outcome.result is Result.SWAPPED
    assert precious.read_text() == "of the node"
    assert made.mounts[0] == theirs
    assert Path(made.mounts[1].host_path).parent == rig.termination_logs


async def test_second_attempt_reuses_the_termination_log(rig: Rig) -> None:
    intent = rig.intent()
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, times=2)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    own = termination_log_of(rig, outcome.current["trainer"])
    assert set(rig.termination_logs.iterdir()) == {rig.termination_log, own}


@call_errors.of_swaps(
    code for code in grpc.StatusCode if code not in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
)
async def test_any_call_error_ends_in_one_running_container(
    rig: Rig, method: str, code: grpc.StatusCode, order: intents.SwapOrder
) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    seen = await rig.containers()
    rig.server.fail(method, code)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert outcome.result is Result.SWAPPED
    assert len(await rig.running()) == 1


@BOTH_ORDERS
async def test_permanent_create_failure_leaves_nothing_waiting(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, details="no space left on device", times=100)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.FAILED
    assert "no space left" in outcome.detail
    states = [view.state for view in await rig.containers()]
    old_runs_on = order is not intents.SwapOrder.STOP_FIRST
    assert states == [ContainerState.RUNNING if old_runs_on else ContainerState.EXITED]


async def test_kubelets_container_is_adopted_if_it_won_the_name(rig: Rig) -> None:
    intent = rig.intent()
    successor_spec = await rig.successor_spec(intent)
    seen = await rig.containers()
    theirs = await rig.kubelet_creates(attempt=1)
    rig.server.calls.clear()
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    assert [view.id for view in await rig.running()] == [theirs]


async def test_crio_lets_a_call_wait_whose_name_kubelet_has_taken(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await crio_material(rig, intent)
    rig.server.delay("CreateContainer", 60.0)
    swapping = asyncio.create_task(rig.actuator().carry_out(intent, successor_spec=successor_spec))
    await eventually.true(lambda: "CreateContainer" in rig.server.called())
    request = api_pb2.CreateContainerRequest(
        pod_sandbox_id=rig.sandbox_id, config=rig.config(attempt=1), sandbox_config=rig.sandbox_config
    )
    theirs = rig.server.runtime.create_container(request).container_id
    rig.server.runtime.start_container(api_pb2.StartContainerRequest(container_id=theirs))
    outcome = await swapping
    assert (outcome.result, outcome.current[TARGET.name]) == (Result.ADOPTED, theirs)


async def crio_material(rig: Rig, intent: intents.Intent) -> SuccessorSpec:
    """Return the successor_spec of a swap on CRI-O, where the config was rebuilt."""
    rig.server.runtime.behaviour.is_crio = True
    info = await rig.cri.container_status(rig.old)
    assert info.spec is not None
    return await rig.successor_spec(intent, original=likeness.Original(info.id, info.spec))


@pytest.mark.parametrize("is_dying", [False, True], ids=["has-ended", "is-dying"])
async def test_crio_is_not_asked_for_a_successor_that_kubelet_creates(rig: Rig, is_dying: bool) -> None:
    standbys = rig.standbys = Standbys(rig.server.runtime, rig.old, dying=is_dying)
    intent = rig.intent(order=intents.SwapOrder.START_ELSE_CREATE_FIRST)
    successor_spec = await crio_material(rig, intent)
    if not is_dying:
        await rig.cri.stop_container(rig.old, grace=0)
    rig.server.calls.clear()
    actuator = SwapActuator(replace(rig.tools(), kubelet_creates=lambda container: container == TARGET))
    swapping = asyncio.create_task(actuator.carry_out(intent, successor_spec=successor_spec))
    if is_dying:
        await eventually.true(lambda: "frozen" in standbys.story)
        await rig.cri.stop_container(rig.old, grace=0)
    await eventually.true(lambda: len([each for each in rig.server.called() if each == "ListContainers"]) > 1)
    assert "CreateContainer" not in rig.server.called()
    theirs = await rig.kubelet_creates(attempt=1)
    outcome = await swapping
    assert (outcome.result, outcome.current[TARGET.name]) == (Result.ADOPTED, theirs)
    assert rig.server.called().count("CreateContainer") == 1


@pytest.mark.parametrize("kubelet_creates", [False, True], ids=["backs-off", "is-not-there"])
async def test_crio_is_asked_for_a_successor_that_kubelet_does_not_create(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, kubelet_creates: bool
) -> None:
    monkeypatch.setattr(swap, "KUBELETS_TURN", 0.05)
    intent = rig.intent(order=intents.SwapOrder.START_ELSE_CREATE_FIRST)
    successor_spec = await crio_material(rig, intent)
    await rig.cri.stop_container(rig.old, grace=0)
    actuator = SwapActuator(replace(rig.tools(), kubelet_creates=lambda _: kubelet_creates))
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED


async def test_kubelets_unstarted_container_is_waited_for(rig: Rig) -> None:
    intent = rig.intent()
    successor_spec = await rig.successor_spec(intent)
    theirs = await rig.kubelet_creates(attempt=1, start=False)
    work = asyncio.create_task(rig.actuator().carry_out(intent, successor_spec=successor_spec))
    async with rig.watch.subscribe(TARGET.pod.uid) as events:
        while (await events.get()).container.id != rig.old:
            pass  # the swap has stopped the old container and now waits
    await rig.cri.start_container(theirs)
    outcome = await work
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)


async def test_kubemends_duplicate_is_removed(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.CREATE_FIRST)
    actuator = rig.actuator()
    await actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent))
    await actuator.give_back(intent)
    theirs = await rig.kubelet_creates(attempt=2)
    outcome = await rig.actuator().carry_out(intent, successor_spec=None)
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    assert [view.id for view in await rig.running()] == [theirs]
    assert not [view for view in await rig.containers() if view.restart_id == intent.id]


async def test_kill_without_effect_is_reported_and_removes_the_successor(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=2)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.STUCK
    assert changes(rig) == [RESERVES, "CreateContainer", "StopContainer", "StopContainer", "RemoveContainer"]
    assert [(view.id, view.state) for view in await rig.containers()] == [(rig.old, ContainerState.RUNNING)]


@BOTH_ORDERS
async def test_runtime_outage_is_waited_out(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    await rig.server.stop()
    work = asyncio.create_task(rig.actuator().carry_out(intent, successor_spec=successor_spec, seen=_before(rig)))
    await asyncio.sleep(0.05)
    await rig.server.start()
    assert (await work).result is Result.SWAPPED
    assert len(await rig.running()) == 1


def _before(rig: Rig) -> tuple[Any, ...]:
    return tuple(view for view in rig.watch.containers() if view.ref == TARGET)


async def test_permanent_runtime_outage_leaves_the_intent_unfinished(rig: Rig) -> None:
    intent = rig.intent()
    successor_spec = await rig.successor_spec(intent)
    await rig.server.stop()
    outcome = await rig.actuator(time_limit=0.2).carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNFINISHED
    await rig.server.start()


@BOTH_ORDERS
@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("resolution", steps.Resolution)
async def test_crash_after_any_call_is_completed_or_undone(
    rig: Rig, order: intents.SwapOrder, calls: int, resolution: steps.Resolution
) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.calls.clear()
    await crash_after(rig, intent, successor_spec=successor_spec, calls=calls)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, resolution=resolution)
    assert outcome.result in (Result.SWAPPED, Result.UNDONE)
    assert len(await rig.running()) == 1
    assert not [view for view in await rig.containers() if view.state is ContainerState.CREATED]


async def crash_after(rig: Rig, intent: intents.Intent, *, successor_spec: Any, calls: int) -> None:
    """Do the first ``calls`` steps of the plan, then stop without cleanup."""
    for _ in range(calls):
        step = swap.next_step(intent, await rig.containers())
        match step.kind:
            case steps.StepKind.STOP:
                await rig.cri.stop_container(intent.old, grace=0)
            case steps.StepKind.CREATE:
                await rig.cri.create_container(
                    sandbox_id=intent.sandbox_id,
                    config=successor_spec.successor.config,
                    sandbox_config=successor_spec.sandbox_config,
                )
            case steps.StepKind.START:
                assert step.container is not None
                await rig.cri.start_container(step.container)


async def test_post_start_hook_runs_in_the_successor(rig: Rig) -> None:
    intent = rig.intent()
    successor_spec = await rig.successor_spec(intent, post_start=ExecHook(("touch", "/ready")))
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    (call,) = [call for call in rig.server.calls if call.method == "ExecSync"]
    assert list(call.request.cmd) == ["touch", "/ready"]  # type: ignore[attr-defined]


async def test_failed_post_start_hook_stops_the_successor(rig: Rig) -> None:
    intent = rig.intent()
    successor_spec = await rig.successor_spec(intent, post_start=UnsupportedHook("tcpSocket cannot be run"))
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SUCCESSOR_EXITED
    assert "tcpSocket" in outcome.detail


async def test_failed_post_start_hook_never_fails_a_never_pod(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await rig.successor_spec(intent, post_start=UnsupportedHook("tcpSocket cannot be run"))
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert "tcpSocket" in outcome.detail


async def test_grace_period_runs_pre_stop_then_sends_sigterm(rig: Rig) -> None:
    intent = rig.intent(grace_seconds=5.0)
    successor_spec = await rig.successor_spec(intent, pre_stop_hook=PreStopHook(ExecHook(("sync",))))
    await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    called = [method for method in rig.server.called() if method in ("ExecSync", "StopContainer")]
    assert called == ["ExecSync", "StopContainer"]


async def test_pre_stop_is_skipped_without_grace_period(rig: Rig) -> None:
    intent = rig.intent()
    successor_spec = await rig.successor_spec(intent, pre_stop_hook=PreStopHook(ExecHook(("sync",))))
    await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert "ExecSync" not in rig.server.called()


async def test_pre_stop_uses_up_the_grace_period(rig: Rig) -> None:
    intent = rig.intent(grace_seconds=60.0)
    rig.server.delay("ExecSync", 1.1)
    successor_spec = await rig.successor_spec(intent, pre_stop_hook=PreStopHook(ExecHook(("sync",))))
    await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    (stop,) = [call.request for call in rig.server.calls if call.method == "StopContainer"]
    assert 0 < stop.timeout <= 59  # type: ignore[attr-defined]  # 58.9 s at most, in whole seconds as CRI has it


@pytest.mark.parametrize("hook", [ExecHook(("sync",)), SleepHook(60), UnsupportedHook("tcpSocket")])
async def test_failed_or_slow_pre_stop_does_not_prevent_the_stop(rig: Rig, hook: Hook) -> None:
    intent = rig.intent(grace_seconds=0.5)
    rig.server.fail("ExecSync", grpc.StatusCode.INTERNAL)
    successor_spec = await rig.successor_spec(intent, pre_stop_hook=PreStopHook(hook))
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED


START_FIRST = intents.SwapOrder.START_FIRST
STARTS_FIRST = pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each.starts_first])


def standbys(rig: Rig) -> Standbys:
    assert rig.standbys is not None
    return rig.standbys


@STARTS_FIRST
async def test_standby_successor_runs_once_the_old_container_is_dead(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert standbys(rig).story == ["frozen", "prepared", "released"]


@STARTS_FIRST
@pytest.mark.parametrize("slow", [False, True])
async def test_old_container_of_a_round_is_killed_before_the_runtime_stops_it(
    rig: Rig, order: intents.SwapOrder, slow: bool
) -> None:
    standbys(rig).slow_to_die = slow
    intent = rig.intent(order=order)
    dead: list[OldDead] = []
    calls: list[str] = []

    def note(death: OldDead) -> None:
        dead.append(death)
        calls.extend(rig.server.called())

    holding = HoldSet(Freezer(rig.server.runtime), mark="uid-1", names={"trainer"}, on_dead=note)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent), holding=holding)
    assert outcome.result is Result.SWAPPED
    assert "StopContainer" in rig.server.called()
    assert [each.has_started for each in dead] == ([] if slow else [True])
    assert "StopContainer" not in calls
    assert ("killed" in standbys(rig).story) is not slow
    holding.release()


async def test_unholdable_successor_is_removed_and_the_old_container_continues(rig: Rig) -> None:
    standbys(rig).refusal = "no fanotify"
    intent = rig.intent(order=START_FIRST)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert (outcome.result, outcome.detail) == (Result.UNDONE, "no fanotify")
    assert [view.id for view in await rig.containers()] == [rig.old]
    assert [view.id for view in await rig.running()] == [rig.old]


async def test_obstacle_found_while_the_successor_is_created_undoes_the_swap(rig: Rig) -> None:
    standbys(rig).obstacle = "no room"
    intent = rig.intent(order=START_FIRST)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert (outcome.result, outcome.detail) == (Result.UNDONE, "no room")
    assert [view.id for view in await rig.running()] == [rig.old]
    assert standbys(rig).story == ["frozen", "thawed", "thawed"]


@STARTS_FIRST
async def test_old_container_with_known_process_is_frozen_without_a_call(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent, old_pid=41)
    before, seen = rig.server.called(), await rig.containers()
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert outcome.result is Result.SWAPPED
    assert rig.server.called().count("ContainerStatus") == before.count("ContainerStatus")


@pytest.mark.parametrize("order", [intents.SwapOrder.START_ELSE_STOP_FIRST, intents.SwapOrder.START_ELSE_CREATE_FIRST])
async def test_unholdable_successor_falls_back_to_stop_first_if_safe(rig: Rig, order: intents.SwapOrder) -> None:
    standbys(rig).refusal = "no fanotify"
    intent = rig.intent(order=order)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    assert changes(rig) == [RESERVES, "CreateContainer", "StopContainer", "StartContainer"]
    assert len(await rig.running()) == 1


@STARTS_FIRST
async def test_unstartable_successor_leaves_the_old_container_running(rig: Rig, order: intents.SwapOrder) -> None:
    """Containerd counts a failed start as the container's exit."""
    rig.server.runtime.behaviour.start_fails = True
    intent = rig.intent(order=order)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.FAILED
    assert "cannot start" in outcome.detail
    assert "StopContainer" not in changes(rig)
    assert [(view.id, view.state) for view in await rig.containers()] == [(rig.old, ContainerState.RUNNING)]
    assert "thawed" in standbys(rig).story


@STARTS_FIRST
async def test_failed_start_is_retried_with_another_successor(rig: Rig, order: intents.SwapOrder) -> None:
    rig.server.runtime.behaviour.start_fails = True
    intent = rig.intent(order=order)
    work = asyncio.create_task(rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent)))
    async with rig.watch.subscribe(TARGET.pod.uid) as events:
        while (await events.get()).kind is not EventKind.DELETED:
            pass  # the one that could not be started is removed
    rig.server.runtime.behaviour.start_fails = False
    assert (await work).result is Result.SWAPPED
    (current,) = await rig.running()
    assert (current.attempt, current.restart_id) == (1, intent.id)


@STARTS_FIRST
async def test_post_start_of_held_successor_waits_for_release(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent, post_start=ExecHook(("true",)))
    await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    called = [method for method in rig.server.called() if method in (*CHANGES, "ExecSync")]
    assert called == ["CreateContainer", "StartContainer", "StopContainer", "ExecSync"]


@STARTS_FIRST
async def test_failing_stop_keeps_successor_and_kills_old_by_cgroup(rig: Rig, order: intents.SwapOrder) -> None:
    """Once both exist there is no way back: kubelet would see the successor's exit."""
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await rig.actuator(time_limit=3.0).carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNFINISHED
    assert standbys(rig).story == ["frozen", "prepared", "killed", "released"]
    (current,) = await rig.running()
    assert current.restart_id == intent.id


@STARTS_FIRST
async def test_unkillable_old_container_removes_the_held_successor(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=2)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.STUCK
    assert [view.id for view in await rig.running()] == [rig.old]


@STARTS_FIRST
async def test_lost_start_answer_keeps_the_old_container_frozen_until_listed(
    rig: Rig, order: intents.SwapOrder
) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StartContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert "thawed" not in standbys(rig).story


@pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each is not intents.SwapOrder.STOP_FIRST])
async def test_old_container_is_frozen_before_its_successor_is_created(rig: Rig, order: intents.SwapOrder) -> None:
    """Otherwise kubelet's copy and the old one would both run if the agent died there."""
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.FAILED
    assert standbys(rig).story[0] == "frozen"
    assert "thawed" in standbys(rig).story, "nothing is left next to it"


async def test_container_stopped_before_create_is_not_frozen(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.STOP_FIRST)
    await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert standbys(rig).story == []


async def test_unfreezable_container_gets_a_successor_while_running(rig: Rig) -> None:
    standbys(rig).refusal = "no cgroup version 2"
    intent = rig.intent(order=intents.SwapOrder.CREATE_FIRST)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.SWAPPED


@STARTS_FIRST
async def test_old_container_that_ends_during_the_swap_needs_no_hold(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    successor_spec, seen = await rig.successor_spec(intent), await rig.containers()
    rig.server.runtime.exit(rig.old, exit_code=1)
    standbys(rig).gone = True
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert outcome.result is Result.SWAPPED
    assert changes(rig) == [RESERVES, "CreateContainer", "StartContainer"]


@STARTS_FIRST
async def test_swap_waits_for_the_runtime_to_show_that_the_old_process_is_gone(
    rig: Rig, order: intents.SwapOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a lone Never container would lose the successor that is to replace it."""
    intent = rig.intent(order=order)
    successor_spec, list_containers = await rig.successor_spec(intent), rig.cri.list_containers
    standbys(rig).gone = True

    async def exits_after_the_listing(**of: Any) -> tuple[ContainerSummary, ...]:
        views = await list_containers(**of)
        if any(view.restart_id == intent.id for view in views):
            rig.server.runtime.exit(rig.old, exit_code=1)
        return views

    monkeypatch.setattr(rig.cri, "list_containers", exits_after_the_listing)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert changes(rig) == [RESERVES, "CreateContainer", "StartContainer"]


@BOTH_ORDERS
async def test_failing_stop_leaves_no_successor_waiting(rig: Rig, order: intents.SwapOrder) -> None:
    if order.starts_first:
        return
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is (Result.FAILED if order is intents.SwapOrder.STOP_FIRST else Result.UNDONE)
    assert [(view.id, view.state) for view in await rig.containers()] == [(rig.old, ContainerState.RUNNING)]


@STARTS_FIRST
async def test_undone_replay_thaws_the_old_container(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    standbys(rig).frozen = True  # by an agent that died then
    outcome = await rig.actuator().carry_out(
        intent, successor_spec=await rig.successor_spec(intent), resolution=steps.Resolution.UNDO
    )
    assert outcome.result is Result.UNDONE
    assert not standbys(rig).frozen


async def test_replay_that_cannot_thaw_the_old_container_is_not_finished(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.START_FIRST)
    successor_spec, undo = await rig.successor_spec(intent), steps.Resolution.UNDO
    standbys(rig).frozen = True  # by an agent that died then
    rig.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, resolution=undo)
    assert outcome.result is Result.UNFINISHED
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, resolution=undo)
    assert outcome.result is Result.UNDONE
    assert not standbys(rig).frozen


async def test_old_container_of_a_dead_agent_is_thawed_if_it_can_be_neither_replaced_nor_stopped(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.START_ELSE_STOP_FIRST)
    standbys(rig).frozen, standbys(rig).refusal = True, "no room"
    rig.server.fail("StopContainer", grpc.StatusCode.UNKNOWN, times=99)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.UNDONE
    assert not standbys(rig).frozen


@BOTH_ORDERS
@pytest.mark.parametrize("exit_code", [0, 1])
async def test_undone_replay_starts_no_container_that_may_have_ended_for_good(
    rig: Rig, order: intents.SwapOrder, exit_code: int
) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.runtime.exit(rig.old, exit_code=exit_code)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, resolution=steps.Resolution.UNDO)
    restarted = exit_code != 0 and order.exit_is_restarted
    assert outcome.result is (Result.SWAPPED if restarted else Result.UNDONE)
    assert len(await rig.running()) == restarted


@BOTH_ORDERS
async def test_program_that_completes_before_its_stop_is_not_started_again(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order, completes=True)
    successor_spec = await rig.successor_spec(intent)
    rig.server.runtime.exit(rig.old, exit_code=0)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    detail = "the program ended with exit code 0 before it was stopped"
    assert (outcome.result, outcome.detail) == (Result.COMPLETED, detail)
    assert changes(rig) == []


async def test_successor_of_a_program_that_completes_in_between_is_removed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process could not be frozen, so it has ended by itself while its successor was created."""
    assert rig.standbys is not None
    rig.standbys.refusal = "no cgroup version 2"
    intent = rig.intent(order=intents.SwapOrder.CREATE_FIRST, completes=True)
    stop_container = rig.cri.stop_container

    async def completes_before_the_stop(container_id: ContainerId, **how: Any) -> None:
        rig.server.runtime.exit(rig.old, exit_code=0)
        await stop_container(container_id, **how)

    monkeypatch.setattr(rig.cri, "stop_container", completes_before_the_stop)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.COMPLETED
    assert [view.id for view in await rig.containers()] == [rig.old]
    assert changes(rig) == ["CreateContainer", RESERVES, "StopContainer", "RemoveContainer"]


STARTED = ["CreateContainer", "StartContainer"]
"""The calls after which a successor is on standby, or runs, if its agent has died since."""


@STARTS_FIRST
@pytest.mark.parametrize("begun", [[], STARTED[:1], STARTED])
@pytest.mark.parametrize("in_round", [False, True])
@pytest.mark.parametrize("exit_code", [0, 1])
async def test_successor_on_standby_of_a_program_that_has_completed_is_removed(
    rig: Rig,
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
    standbys(rig).dying = True
    intent = rig.intent(order=order, completes=True)
    successor_spec = await rig.successor_spec(intent)
    await crash_after(rig, intent, successor_spec=successor_spec, calls=len(begun))
    assert changes(rig) == begun
    stop_container = rig.cri.stop_container

    async def ends_before_the_stop(container_id: ContainerId, **how: Any) -> None:
        rig.server.runtime.exit(rig.old, exit_code=exit_code)
        await stop_container(container_id, **how)

    monkeypatch.setattr(rig.cri, "stop_container", ends_before_the_stop)
    holding = HoldSet(Freezer(rig.server.runtime), mark="uid-1", names={"trainer"})
    outcome = await rig.actuator().carry_out(
        intent, successor_spec=successor_spec, holding=holding if in_round else None
    )
    holding.release()
    if exit_code:
        assert outcome.result is Result.SWAPPED
        assert len(await rig.running()) == 1
    else:
        assert outcome.result is Result.COMPLETED
        assert [view.id for view in await rig.containers()] == [rig.old]
        assert not standbys(rig).held


async def test_successor_of_a_completed_program_that_cannot_be_removed_at_first_is_removed_later(rig: Rig) -> None:
    """Kubelet would start a copy of it."""
    intent = rig.intent(order=intents.SwapOrder.CREATE_FIRST, completes=True)
    successor_spec = await rig.successor_spec(intent)
    await crash_after(rig, intent, successor_spec=successor_spec, calls=1)
    rig.server.runtime.exit(rig.old, exit_code=0)
    rig.server.fail("RemoveContainer", grpc.StatusCode.UNKNOWN, details="device or resource busy", times=4)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.COMPLETED
    assert [view.id for view in await rig.containers()] == [rig.old]


@STARTS_FIRST
@pytest.mark.parametrize("resolution", steps.Resolution)
async def test_successor_that_a_dead_agent_has_released_beside_a_completed_program_is_removed_within_a_minute(
    rig: Rig, order: intents.SwapOrder, resolution: steps.Resolution
) -> None:
    """After that it may have worked for days, until an agent came back. Nor is it removed once the swap is over."""
    intent = rig.intent(order=order, completes=True)
    successor_spec = await rig.successor_spec(intent)
    await crash_after(rig, intent, successor_spec=successor_spec, calls=2)
    rig.server.runtime.exit(rig.old, exit_code=0)
    over = await rig.actuator().carry_out(intent, successor_spec=None)
    assert over.result is Result.SWAPPED
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, resolution=resolution)
    is_recent = resolution is steps.Resolution.FINISH
    assert outcome.result is (Result.COMPLETED if is_recent else Result.SWAPPED)
    assert len(await rig.running()) == (not is_recent)


async def test_container_that_was_not_stopped_has_not_completed(rig: Rig) -> None:
    """The runtime has answered the stop, but the container runs: its status has the exit code 0 until it ends."""
    intent = rig.intent(completes=True)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.NOT_FOUND)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED


async def test_exit_code_that_cannot_be_read_is_read_again(rig: Rig) -> None:
    intent = rig.intent(completes=True)
    successor_spec = await rig.successor_spec(intent)
    rig.server.runtime.exit(rig.old, exit_code=0)
    rig.server.fail("ContainerStatus", grpc.StatusCode.UNAVAILABLE, times=2)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.COMPLETED
    assert changes(rig) == []


@pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each is not intents.SwapOrder.STOP_FIRST])
@pytest.mark.parametrize("carried_out", [False, True])
async def test_stop_timeout_of_hanging_runtime_undoes_nothing(
    rig: Rig, order: intents.SwapOrder, carried_out: bool
) -> None:
    """The old container may die a moment later: without its successor the pod would fail."""
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, carried_out=carried_out)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert "RemoveContainer" not in changes(rig)
    assert len(await rig.running()) == 1


IMPORTED = overlap.note("trainer", None)


@STARTS_FIRST
async def test_successor_imports_while_the_old_container_is_stopped(rig: Rig, order: intents.SwapOrder) -> None:
    intent = rig.intent(order=order)
    outcome = await rig.actuator().carry_out(
        intent, successor_spec=await rig.successor_spec(intent, overlap_request=overlap.Request())
    )
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (IMPORTED,))
    assert standbys(rig).story == ["frozen", "prepared", "imports", "released", "driver released"]
    assert changes(rig) == ["CreateContainer", "StartContainer", "StopContainer"]


async def test_importing_successor_waits_for_the_devices_of_the_dead_one(rig: Rig) -> None:
    intent = rig.intent(order=START_FIRST)
    gates = ShutGates()
    actuator = SwapActuator(replace(rig.tools(), gates=gates))
    work = asyncio.create_task(
        actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent, overlap_request=overlap.Request()))
    )
    await gates.reached.wait()
    assert standbys(rig).story == ["frozen", "prepared", "imports", "released"]
    assert not standbys(rig).old_runs()
    gates.open = True
    assert (await work).result is Result.SWAPPED
    assert standbys(rig).story[-1] == "driver released"


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


class SlowGates(ReleaseGates):
    """Gates that open a moment later."""

    def __init__(self) -> None:
        super().__init__(driver=NoDriver(), processes=NoProcesses())

    async def opens(self, restart: str, *, timeout: float | None = None) -> bool:
        await asyncio.sleep(0.1)
        return True


@STARTS_FIRST
async def test_wait_for_the_devices_after_a_lost_answer_is_not_counted_twice(
    rig: Rig, order: intents.SwapOrder
) -> None:
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True)
    actuator = SwapActuator(replace(rig.tools(), gates=SlowGates()))
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    assert outcome.phases["device"] >= 0.1
    assert min(outcome.phases.values()) >= 0.0


async def test_pod_without_the_wish_imports_nothing_early(rig: Rig) -> None:
    intent = rig.intent(order=START_FIRST)
    outcome = await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.notes == ()
    assert "imports" not in standbys(rig).story


@pytest.mark.parametrize("obstacle", [overlap.Obstacle.NO_DRIVER, overlap.Obstacle.NO_ROOM])
async def test_successor_that_cannot_be_held_at_its_driver_stays_held(rig: Rig, obstacle: overlap.Obstacle) -> None:
    standbys(rig).not_overlapped = obstacle
    intent = rig.intent(order=START_FIRST)
    outcome = await rig.actuator().carry_out(
        intent, successor_spec=await rig.successor_spec(intent, overlap_request=overlap.Request())
    )
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (overlap.note("trainer", obstacle),))
    assert standbys(rig).story == ["frozen", "prepared", "released"]


async def test_successor_of_a_round_imports_nothing_early(rig: Rig) -> None:
    intent = rig.intent(order=START_FIRST)
    holding = HoldSet(Freezer(rig.server.runtime), mark="uid-1", names={"trainer"})
    successor_spec = await rig.successor_spec(intent, overlap_request=overlap.Request())
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, holding=holding)
    assert outcome.notes == (overlap.note("trainer", overlap.Obstacle.IN_ROUND),)
    assert "imports" not in standbys(rig).story
    holding.release()


async def test_successor_that_is_not_started_beside_the_old_one_imports_nothing_early(rig: Rig) -> None:
    intent = rig.intent(order=intents.SwapOrder.STOP_FIRST)
    outcome = await rig.actuator().carry_out(
        intent, successor_spec=await rig.successor_spec(intent, overlap_request=overlap.Request())
    )
    assert outcome.notes == (overlap.note("trainer", overlap.Obstacle.NOT_BESIDE),)


async def test_internal_error_of_an_overlap_keeps_the_successor_held(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("internal")

    monkeypatch.setattr(standbys(rig), "overlap", fail)
    intent = rig.intent(order=START_FIRST)
    counted = contained.count()
    outcome = await rig.actuator().carry_out(
        intent, successor_spec=await rig.successor_spec(intent, overlap_request=overlap.Request())
    )
    assert outcome.notes == (overlap.note("trainer", overlap.Obstacle.INTERNAL_ERROR),)
    assert standbys(rig).story == ["frozen", "prepared", "released"]
    assert contained.count() == counted + 1


async def test_end_of_a_container_that_has_ended_is_overlapped_by_nothing(rig: Rig) -> None:
    intent = rig.intent(order=START_FIRST)
    successor_spec = await rig.successor_spec(intent, overlap_request=overlap.Request())
    rig.server.runtime.exit(rig.old, exit_code=1)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, ())


async def test_importing_successor_of_an_unkillable_container_is_removed(rig: Rig) -> None:
    intent = rig.intent(order=START_FIRST)
    successor_spec = await rig.successor_spec(intent, overlap_request=overlap.Request())
    rig.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=2)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.STUCK
    assert [view.id for view in await rig.running()] == [rig.old]


async def test_failing_stop_of_an_overlapped_container_kills_it_before_the_driver_is_released(rig: Rig) -> None:
    intent = rig.intent(order=START_FIRST)
    successor_spec = await rig.successor_spec(intent, overlap_request=overlap.Request())
    rig.server.fail("StopContainer", grpc.StatusCode.INTERNAL, times=100)
    outcome = await rig.actuator(time_limit=3.0).carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNFINISHED
    assert standbys(rig).story[-2:] == ["killed", "driver released"]


async def test_successor_that_dies_of_its_imports_is_left_to_kubelet(rig: Rig) -> None:
    intent = rig.intent(order=START_FIRST)
    gates = ShutGates()
    actuator = SwapActuator(replace(rig.tools(), gates=gates))
    work = asyncio.create_task(
        actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent, overlap_request=overlap.Request()))
    )
    await gates.reached.wait()
    (importing,) = await rig.running()
    rig.server.runtime.exit(importing.id, exit_code=1)
    gates.open = True
    assert (await work).result is Result.SUCCESSOR_EXITED
    assert await rig.running() == []


async def test_lost_start_answer_overlaps_once(rig: Rig) -> None:
    intent = rig.intent(order=START_FIRST)
    successor_spec = await rig.successor_spec(intent, overlap_request=overlap.Request())
    rig.server.fail("StartContainer", grpc.StatusCode.UNAVAILABLE, carried_out=True)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec)
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (IMPORTED,))
    assert standbys(rig).story.count("imports") == 1


@STARTS_FIRST
@pytest.mark.parametrize("calls", range(4))
@pytest.mark.parametrize("resolution", steps.Resolution)
async def test_interrupted_overlap_is_completed_or_undone(
    rig: Rig, order: intents.SwapOrder, calls: int, resolution: steps.Resolution
) -> None:
    """The kernel has released what the dead agent held; the successor may be anywhere in its program."""
    intent = rig.intent(order=order)
    successor_spec = await rig.successor_spec(intent, overlap_request=overlap.Request())
    await crash_after(rig, intent, successor_spec=successor_spec, calls=calls)
    outcome = await rig.actuator().carry_out(intent, successor_spec=successor_spec, resolution=resolution)
    assert outcome.result in (Result.SWAPPED, Result.UNDONE)
    assert len(await rig.running()) == 1
    assert not [view for view in await rig.containers() if view.state is ContainerState.CREATED]
