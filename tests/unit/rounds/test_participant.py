"""Run round members on the stand-in runtime: reports, holds, and resuming by the next agent."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
import structlog.testing

from kubemend.agent.actuator import hooks
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.rounds import Record, StepResult
from kubemend.agent.model.workloads import (
    Allocations,
    ContainerId,
    ExecHook,
    OwnerRef,
    PodUid,
    Probe,
    RestartPolicy,
    SleepHook,
)
from kubemend.agent.restart import admission, probes
from kubemend.agent.restarts.requests import Request
from kubemend.agent.rounds import session
from kubemend.agent.rounds.order_resolver import NodePolicy
from kubemend.common import aio
from kubemend.common.coordination import FaultAnswer, FaultKind, OrderKind, StepPhase
from tests import eventually
from tests.environments import pod_env
from tests.environments.restarts import NOW
from tests.environments.rounds import DEADLINE, MAINS, Received, RoundEnv, order
from tests.environments.runtime import POD, TARGET
from tests.fakes import outside
from tests.fakes.gpu_host import GpuHost
from tests.fakes.proofs import Proofs


async def test_round_replaces_holds_and_releases_all_main_containers(env: RoundEnv) -> None:
    reported = env.order()
    stopped = await reported.next()
    assert (stopped.phase, stopped.unheld_seconds) == (StepPhase.STOPPED, 0.0)
    assert {"prepare", "stop", "create", "start"} <= stopped.seconds.keys()
    newest = await env.newest()
    assert env.freezer.still() == {newest["trainer"], newest["logger"]} == env.rounds.held()
    assert {name for name, container in newest.items() if container != env.pod.old[name]} == MAINS
    assert env.rounds.busy(POD.uid)
    env.rounds.release("default/gang-1", [POD.uid])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert env.freezer.still() == set()
    assert not env.rounds.busy(POD.uid)


async def test_next_step_of_member_counts_from_its_release(env: RoundEnv) -> None:
    await env.annotate(**{"restart": "InPlace", "heartbeat-file": "/beat", "heartbeat-timeout": "60s"})
    reported = env.order()
    await reported.next()
    successor = (await env.newest())["trainer"]
    (trainer,) = [view for view in await env.pod.containers() if view.id == successor]
    assert env.touches(trainer) is None, "it is held"
    env.rounds.release("default/gang-1", [POD.uid])
    await reported.next()
    await eventually.true(lambda: env.touches(trainer) == 1.0)


async def test_expects_end_covers_only_containers_ended_by_round(env: RoundEnv) -> None:
    reported = env.order()
    await reported.next()
    assert env.rounds.expects_end(env.pod.old["trainer"])
    assert not env.rounds.expects_end(env.pod.old["shipper"])
    env.rounds.release("default/gang-1", [])
    await reported.next()
    assert env.rounds.expects_end(env.pod.old["trainer"]), "the event may be late"
    assert not env.rounds.expects_end((await env.newest())["trainer"])


async def test_repeated_order_returns_same_result(env: RoundEnv) -> None:
    await env.order().next()
    calls = env.pod.cri_env.server.called().count("StartContainer")
    again = env.order()
    assert (await again.next()).phase is StepPhase.STOPPED
    assert env.pod.cri_env.server.called().count("StartContainer") == calls
    env.rounds.release("default/gang-1", [])
    assert (await again.next()).phase is StepPhase.RUNNING, "the latest caller receives it"


async def test_release_of_other_round_or_pod_is_ignored(env: RoundEnv) -> None:
    reported = env.order()
    await reported.next()
    env.rounds.release("default/gang-2", [])
    env.rounds.release("default/gang-1", [PodUid("another")])
    assert env.freezer.still() == env.rounds.held()
    env.rounds.release("default/gang-1", [POD.uid])
    assert (await reported.next()).phase is StepPhase.RUNNING


@pytest.mark.parametrize("strategy", ["swap", "rerun"])
async def test_member_whose_config_has_no_room_is_refused_at_once(env: RoundEnv, strategy: str) -> None:
    room = env.restarts._configs
    room.try_acquire("elsewhere", room.of_one)
    room.try_acquire(POD.namespace, room.of_one // 7)
    step_result = await env.order(strategy=strategy).next()
    assert (step_result.phase, step_result.reason) == (StepPhase.REFUSED, "RuntimeHidesConfig")
    assert "ConfigTooLarge" in step_result.detail
    assert await env.newest() == env.pod.old


async def test_order_for_absent_pod_reports_gone(env: RoundEnv) -> None:
    gone = await env.order(pod=PodUid("another")).next()
    assert (gone.phase, gone.pod) == (StepPhase.GONE, replace(POD, uid=PodUid("another"))), "named as the hub names it"
    assert env.rounds.step_results() == ()


async def test_order_for_pod_without_opt_in_is_refused(env: RoundEnv) -> None:
    await env.annotate()
    step_result = await env.order().next()
    assert (step_result.phase, step_result.reason) == (StepPhase.REFUSED, "NotOptedIn")
    step_result = await env.order(round="default/gang-2", kind=OrderKind.HOLD).next()
    assert (step_result.phase, step_result.reason) == (StepPhase.REFUSED, "NotOptedIn")
    assert env.freezer.ever == []
    assert await env.newest() == env.pod.old


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [(NodePolicy(obstacle="no cgroup version 2"), "CannotHold"), (NodePolicy(dry_run=True), "DryRun")],
)
async def test_order_on_node_that_cannot_hold_is_refused(env: RoundEnv, bounds: NodePolicy, reason: str) -> None:
    await env.die()
    env.bounds = bounds
    await env.start()
    assert (await env.order().next()).reason == reason
    assert await env.newest() == env.pod.old


async def test_order_for_succeeded_member_reports_completed(env: RoundEnv) -> None:
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, restart_policy=RestartPolicy.ON_FAILURE))
    for name in MAINS:
        await env.exits(name, code=0)
    assert (await env.order().next()).phase is StepPhase.COMPLETED


def completes_before_its_stop(env: RoundEnv, *names: str) -> None:
    """Have these containers end with 0 in the moment in which they would be stopped. None can be frozen."""
    cri_env = env.pod.cri_env
    assert cri_env.standbys is not None
    cri_env.standbys.refusal = "no cgroup version 2"
    stop_container, old = cri_env.cri.stop_container, {env.pod.old[name] for name in names}

    async def completes(container_id: ContainerId, **how: Any) -> None:
        if container_id in old:
            cri_env.server.runtime.exit(container_id, exit_code=0)
        await stop_container(container_id, **how)

    cri_env.cri.stop_container = completes  # type: ignore[method-assign]


def completes_after_the_selection(env: RoundEnv, *names: str) -> None:
    """Have these containers end with 0 between the selection and the decision."""
    current = env.holders.current

    async def completes(**how: Any) -> Allocations:
        for name in names:
            env.pod.cri_env.server.runtime.exit(env.pod.old[name], exit_code=0)
        return await current(**how)

    env.holders.current = completes  # type: ignore[method-assign]


@pytest.mark.parametrize("policy", [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER])
@pytest.mark.parametrize("completes", [completes_before_its_stop, completes_after_the_selection])
async def test_member_that_completes_before_it_is_stopped_reports_completed(
    env: RoundEnv, completes: Callable[..., None], policy: RestartPolicy
) -> None:
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], restart_policy=policy))
    completes(env, *MAINS)
    assert (await env.order().next()).phase is StepPhase.COMPLETED
    assert await env.newest() == env.pod.old


@pytest.mark.parametrize("completes", [completes_before_its_stop, completes_after_the_selection])
async def test_other_containers_of_a_member_of_which_one_completes_are_restarted(
    env: RoundEnv, completes: Callable[..., None]
) -> None:
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], restart_policy=RestartPolicy.ON_FAILURE))
    completes(env, "trainer")
    reported = env.order(containers=MAINS)
    assert (await reported.next()).phase is StepPhase.STOPPED
    newest = await env.newest()
    assert {name for name, container in newest.items() if container != env.pod.old[name]} == {"logger"}
    assert env.freezer.still() == {newest["logger"]}
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


@pytest.mark.parametrize("ends", ["deleted", "succeeds"])
async def test_member_whose_pod_ends_while_its_restart_is_planned_is_no_refusal(env: RoundEnv, ends: str) -> None:
    cri_env, pod = env.pod.cri_env, env.pod.pods.pods()[POD.uid]
    resources, has_ended = cri_env.cri.resources, asyncio.Event()

    async def while_planned(info: ContainerStatus) -> Any:
        await env.pod.pods.put(replace(pod, deleting=True) if ends == "deleted" else replace(pod, phase="Succeeded"))
        await eventually.true(lambda: not env.rounds.busy(POD.uid))
        has_ended.set()
        return await resources(info)

    cri_env.cri.resources = while_planned  # type: ignore[method-assign]
    reported = env.order(containers=frozenset({"trainer"}))
    await has_ended.wait()
    for container in env.pod.old.values():
        cri_env.server.runtime.exit(container, exit_code=0)
    if ends == "deleted":
        await env.pod.pods.gone(POD.uid)
    assert (await reported.next()).phase is (StepPhase.GONE if ends == "deleted" else StepPhase.COMPLETED)


async def test_order_for_failed_pod_is_refused(env: RoundEnv) -> None:
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, restart_policy=RestartPolicy.NEVER))
    await env.exits("logger", code=1)
    step_result = await env.order().next()
    assert (step_result.phase, step_result.reason) == (StepPhase.REFUSED, "AlreadyTerminated")
    assert env.freezer.ever == []


async def test_order_restarts_member_in_kubelet_backoff_with_others(env: RoundEnv) -> None:
    await env.exits("logger", code=1)
    reported = env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert len(env.freezer.still()) == 2
    env.rounds.release("default/gang-1", [])
    await reported.next()


@pytest.mark.parametrize("strategy", ["rerun", "reset"])
async def test_whole_pod_restart_holds_main_containers_started_by_anyone(env: RoundEnv, strategy: str) -> None:
    reported = env.order(strategy=strategy)
    if strategy == "reset":
        assert (await reported.next()).phase is StepPhase.STOPPED
        for name in pod_env.ROLES:
            await env.pod.kubelet_starts(name, attempt=1)
    else:
        assert (await reported.next()).phase is StepPhase.STOPPED
    await eventually.true(lambda: len(env.freezer.still()) == len(MAINS))
    newest = await env.newest()
    assert env.freezer.still() == {newest[name] for name in MAINS}, "other containers run"
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_successor_that_ends_at_start_is_replaced_once(env: RoundEnv) -> None:
    freeze = env.freezer.freeze

    async def ends(container_id: ContainerId, **how: Any) -> float:
        env.freezer.freeze = freeze  # type: ignore[method-assign]
        env.pod.cri_env.server.runtime.exit(container_id, exit_code=128)
        return await freeze(container_id, **how)

    env.freezer.freeze = ends  # type: ignore[method-assign]
    reported = env.order(containers=frozenset({"trainer"}))
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert (await reported.next()).phase is StepPhase.STOPPED, "the death of its successor"
    assert env.pod.cri_env.server.called().count("StartContainer") == 2
    (running,) = (await env.pod.running())["trainer"]
    assert env.freezer.still() == {running}
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_duplicate_name_keeps_and_holds_kubelets_container(env: RoundEnv) -> None:
    reported = env.order(containers=frozenset({"trainer"}))
    await reported.next()
    theirs = await env.pod.kubelet_starts("trainer", attempt=2)

    async def theirs_runs_alone() -> bool:
        return (await env.pod.running())["trainer"] == [theirs]

    await eventually.true(theirs_runs_alone)
    assert env.freezer.still() == {theirs}
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert (await env.pod.running())["trainer"] == [theirs]


@pytest.mark.parametrize("strategy", ["swap", "rerun"])
async def test_two_of_one_name_stay_held_while_the_runtime_is_away(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(aio.Backoff, "next_wait", lambda _: 0.0)
    reported = env.order(strategy=strategy, containers=frozenset({"trainer"} if strategy == "swap" else ()))
    await reported.next()
    held = len(env.freezer.still())
    actuators = env.restarts._dependencies.actuators
    actuator = actuators.swap if strategy == "swap" else actuators.pods
    carry_out, tried, back = actuator.carry_out, asyncio.Event(), asyncio.Event()

    async def away(intent: Any, **how: Any) -> Outcome:
        tried.set()
        return await carry_out(intent, **how) if back.is_set() else Outcome(Result.UNFINISHED)

    monkeypatch.setattr(actuator, "carry_out", away)
    theirs = await env.pod.kubelet_starts("trainer", attempt=3)
    await tried.wait()
    env.rounds.release("default/gang-1", [])
    assert len(env.freezer.still()) == held + 1
    await env.pod.kubelet_says_running("trainer", "logger", "shipper")
    back.set()
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert (await env.pod.running())["trainer"] == [theirs]


async def test_next_round_takes_over_two_of_one_name_that_could_not_be_told_apart(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio.Backoff, "next_wait", lambda _: 0.0)
    await env.order(containers=frozenset({"trainer"})).next()
    swapper = env.restarts._dependencies.actuators.swap
    carry_out, tried = swapper.carry_out, asyncio.Event()
    (first,) = await env.store.unfinished()

    async def away(intent: Any, **how: Any) -> Outcome:
        tried.set()
        return Outcome(Result.UNFINISHED) if intent.id == first.id else await carry_out(intent, **how)

    monkeypatch.setattr(swapper, "carry_out", away)
    await env.pod.kubelet_starts("trainer", attempt=2)
    await tried.wait()
    reported = env.order(round="default/gang-2", attempt=2, containers=frozenset({"trainer"}))
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert len(env.freezer.still()) == 1
    env.rounds.release("default/gang-2", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert len((await env.pod.running())["trainer"]) == 1


async def test_kubelets_created_container_is_removed_before_release(env: RoundEnv) -> None:
    """Otherwise kubelet starts it after the release, and the running successor would be removed for it."""
    reported = env.order(containers=frozenset({"trainer"}))
    await reported.next()
    ours = (await env.newest())["trainer"]
    theirs = await env.pod.kubelet_starts("trainer", attempt=2, start=False)
    await eventually.true(lambda: any(view.id == theirs for view in env.pod.cri_env.watch.containers()))
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert (await env.pod.running())["trainer"] == [ours]
    assert theirs not in {view.id for view in await env.pod.containers()}


async def test_kubelets_container_after_release_is_removed(env: RoundEnv) -> None:
    reported = env.order(containers=frozenset({"trainer"}))
    await reported.next()
    ours = (await env.newest())["trainer"]
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    theirs = await env.pod.kubelet_starts("trainer", attempt=2)

    async def ours_runs_alone() -> bool:
        return (await env.pod.running())["trainer"] == [ours]

    await eventually.true(ours_runs_alone)
    assert theirs not in {view.id for view in await env.pod.containers()}


async def test_hold_order_ends_nothing_and_holds_all(env: RoundEnv) -> None:
    reported = env.order(kind=OrderKind.HOLD)
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert env.freezer.still() == {env.pod.old["trainer"], env.pod.old["logger"]}
    assert "StopContainer" not in env.pod.cri_env.server.called()
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_post_start_hook_runs_after_release(env: RoundEnv) -> None:
    view = env.pod.pods.pods()[POD.uid]
    hook = ExecHook(("warm", "up"))
    specs = tuple(replace(spec, post_start=hook if spec.name == "trainer" else None) for spec in view.containers)
    await env.pod.pods.put(replace(view, containers=specs))
    reported = env.order()
    await reported.next()
    assert "ExecSync" not in env.pod.cri_env.server.called()
    env.rounds.release("default/gang-1", [])
    await reported.next()
    await eventually.true(lambda: "ExecSync" in env.pod.cri_env.server.called())


async def test_round_does_not_wait_for_post_start_hooks_of_earlier_restarts(env: RoundEnv) -> None:
    """It ends their containers."""
    view = env.pod.pods.pods()[POD.uid]
    specs = tuple(replace(spec, post_start=SleepHook(3600)) for spec in view.containers)
    await env.pod.pods.put(replace(view, containers=specs))
    alone = asyncio.create_task(env.restarts.submit(fault(FaultKind.DEVICE)))
    await eventually.true(lambda: env.pod.cri_env.server.called().count("StopContainer") == 1)
    for number in (1, 2):
        reported = env.order(round=f"default/gang-{number}", attempt=number)
        assert (await reported.next()).phase is StepPhase.STOPPED
        env.rounds.release(f"default/gang-{number}", [])
        assert (await reported.next()).phase is StepPhase.RUNNING
    await alone


async def test_post_start_hook_of_an_earlier_restart_goes_on_if_the_round_is_refused(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container runs on, whose hook would be cut short."""
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run_post_start(*_: Any, **__: Any) -> None:
        begun.set()
        await may_end.wait()
        ended.set()

    monkeypatch.setattr(hooks, "run_post_start", run_post_start)
    view = env.pod.pods.pods()[POD.uid]
    specs = tuple(replace(spec, post_start=SleepHook(3600)) for spec in view.containers)
    job = OwnerRef(kind="Job", name="j", api_group="batch")
    await env.pod.pods.put(replace(view, containers=specs, owner=job, restart_policy=RestartPolicy.ON_FAILURE))
    env.owners.answer = admission.OwnerFacts(job_restarts_left=admission.UNLIMITED_BACKOFF)
    alone = asyncio.create_task(env.restarts.submit(fault(FaultKind.DEVICE)))
    async with asyncio.timeout(DEADLINE):
        await begun.wait()
        env.owners.answer = None
        assert (await env.order().next()).reason == "OwnerUnknown"
        await alone
        may_end.set()
        await ended.wait()


async def test_hold_expires_without_renewal(env: RoundEnv) -> None:
    assert (await env.order().next()).phase is StepPhase.STOPPED
    reported = env.order(hold_seconds=0.2)  # not earlier: a member that is stopped later than that is never held
    async with asyncio.timeout(DEADLINE):  # it may be over before the hold is seen
        phases = [(await reported.step_results.get()).phase for _ in range(2)]
    assert phases == [StepPhase.STOPPED, StepPhase.SELF_RELEASED]
    assert env.freezer.still() == set()


async def test_container_that_cannot_be_frozen_reports_failed(env: RoundEnv) -> None:
    env.freezer.refusal = "read-only file system"
    reported = env.order()
    step_result = await reported.next()
    assert (step_result.phase, step_result.reason) == (StepPhase.FAILED, "CannotHold")
    env.rounds.abort("default/gang-1", [], reason="over")


async def test_post_start_hook_of_a_container_that_cannot_be_frozen_runs_after_the_round(env: RoundEnv) -> None:
    view = env.pod.pods.pods()[POD.uid]
    specs = tuple(replace(spec, post_start=ExecHook(("warm", "up"))) for spec in view.containers)
    await env.pod.pods.put(replace(view, containers=specs))
    env.freezer.refusal = "read-only file system"
    assert (await env.order(containers=frozenset({"trainer"})).next()).reason == "CannotHold"
    assert "ExecSync" not in env.pod.cri_env.server.called()
    env.rounds.abort("default/gang-1", [], reason="over")
    await eventually.true(lambda: "ExecSync" in env.pod.cri_env.server.called())


async def test_failed_freeze_is_retried_by_next_round(env: RoundEnv) -> None:
    env.freezer.refusal = "the runtime does not answer"
    for number in (1, 2):
        step_result = await env.order(round=f"default/gang-{number}", attempt=number, kind=OrderKind.HOLD).next()
        assert (step_result.phase, step_result.reason) == (StepPhase.FAILED, "CannotHold")
    env.freezer.refusal = ""
    reported = env.order(round="default/gang-3", attempt=3, kind=OrderKind.HOLD)
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert env.freezer.still() == {env.pod.old[name] for name in MAINS}
    env.rounds.release("default/gang-3", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_next_round_restarts_held_member_without_running_it(env: RoundEnv) -> None:
    first = env.order()
    await first.next()
    held = env.freezer.still()
    second = env.order(round="default/gang-2", attempt=2)
    assert (await second.next()).phase is StepPhase.STOPPED
    assert not env.freezer.still() & held
    assert first.step_results.empty()
    env.rounds.release("default/gang-2", [])
    assert (await second.next()).phase is StepPhase.RUNNING
    assert [step_result.round for step_result in env.rounds.step_results()] == ["default/gang-2"]


async def test_round_does_not_wait_for_verification_of_last_restart(env: RoundEnv) -> None:
    for number in (1, 2, 3):  # no test acts as kubelet here: it never agrees
        reported = env.order(round=f"default/gang-{number}", attempt=number)
        assert (await reported.next()).phase is StepPhase.STOPPED
        env.rounds.release(f"default/gang-{number}", [])
        assert (await reported.next()).phase is StepPhase.RUNNING


async def test_held_pod_that_is_deleted_ends_and_reports_gone(env: RoundEnv) -> None:
    reported = env.order()
    await reported.next()
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], deleting=True))

    async def no_main_runs() -> bool:
        return not set(await env.pod.running()) & MAINS

    await eventually.true(no_main_runs)
    await env.pod.pods.gone(POD.uid)  # force-deleted: its sidecar still runs
    reported_again = env.order(round="default/gang-2")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.0):
            await reported_again.step_results.get()
    assert reported.step_results.empty(), "something of it runs"
    env.pod.cri_env.server.runtime.exit(env.pod.old["shipper"], exit_code=137)
    assert (await reported.next()).phase is StepPhase.GONE
    assert (await reported_again.next()).phase is StepPhase.GONE


async def test_held_pod_that_is_force_deleted_ends_at_once(env: RoundEnv) -> None:
    """The API server shows no deletion of it before it is gone."""
    reported = env.order()
    await reported.next()
    env.pod.cri_env.server.runtime.exit(env.pod.old["shipper"], exit_code=137)
    await env.pod.pods.gone(POD.uid)
    assert (await reported.next()).phase is StepPhase.GONE
    assert not await env.pod.running()


async def test_held_pod_whose_node_shuts_down_has_failed_when_the_shutdown_is_cancelled(env: RoundEnv) -> None:
    reported = env.order()
    await reported.next()
    pod = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(pod, leaving="NodeShutdown"))

    async def no_main_runs() -> bool:
        return not set(await env.pod.running()) & MAINS

    await eventually.true(no_main_runs)
    assert reported.step_results.empty()
    await env.pod.pods.put(pod)
    failed = await reported.next()
    assert (failed.phase, failed.detail) == (StepPhase.FAILED, "its node no longer shuts down")


async def test_next_agent_continues_hold_until_release(env: RoundEnv) -> None:
    await env.order().next()
    held = env.freezer.still()
    await env.die()
    await env.start()
    assert env.held == {POD.uid}
    assert env.freezer.still() == held == env.rounds.held()
    assert [step_result.round for step_result in env.rounds.step_results()] == ["default/gang-1"]
    reported = env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert len(env.freezer.ever) == 2, "nothing was started once more"


@pytest.mark.parametrize("method", ["ListPodSandbox", "ContainerStatus"])
async def test_order_repeated_before_the_restart_begins_restarts_under_the_next_agent(
    env: RoundEnv, method: str
) -> None:
    server = env.pod.cri_env.server
    server.calls.clear()
    server.delay(method, seconds=30.0)
    env.order()
    await eventually.true(lambda: method in server.called())
    env.order()
    await env.die()
    server.delay(method, seconds=0.0)
    assert await env.store.unfinished() == ()
    await env.start()
    await released_without_old_programs(env, env.order())


@pytest.mark.parametrize("dies", [False, True], ids=["the-same-agent", "the-next-agent"])
async def test_member_of_which_kubelet_replaces_the_target_before_the_first_removal_is_restarted(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The other members wait for it: in a round a container that kubelet has just started is restarted, too."""
    begin, written, made = env.store.begin, asyncio.Event(), list[ContainerId]()

    async def is_slow(*intents: Any, **more: Any) -> None:
        await begin(*intents, **more)
        if not made:
            env.pod.cri_env.server.runtime.exit(env.pod.old["trainer"], exit_code=1)
            made.append(await env.pod.kubelet_starts("trainer", attempt=1))
            written.set()
            await asyncio.Event().wait() if dies else None

    monkeypatch.setattr(env.store, "begin", is_slow)
    reported = env.order(strategy="rerun")
    await written.wait()
    if dies:
        await env.die()
        await env.start()
        reported = env.order(strategy="rerun")
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert not set((await env.pod.running())["trainer"]) & {*made, env.pod.old["trainer"]}
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_next_agent_restarts_a_member_whose_agent_ended_before_the_journal_entry(env: RoundEnv) -> None:
    await env.die()
    made = order()
    waiting = StepResult(made.round, POD, StepPhase.STOPPING, attempt=made.attempt)
    await env.store.note(
        Record(order=made, pod=POD, step_result=waiting, boot=env.boot, renewed_at=env.since_boot, written_at=NOW)
    )
    await env.start()
    await released_without_old_programs(env, env.order())


async def released_without_old_programs(env: RoundEnv, reported: Received) -> None:
    """Follow a member that stops and is released; none of its old containers may run then."""
    while (step_result := await reported.next()).phase is StepPhase.STOPPING:
        pass
    assert step_result.phase is StepPhase.STOPPED
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    running = await env.pod.running()
    assert not [name for name in MAINS if env.pod.old[name] in running[name]]


async def test_next_agent_finishes_started_restart_held(env: RoundEnv) -> None:
    env.pod.cri_env.server.delay("CreateContainer", seconds=30.0)
    env.order()
    await eventually.true(lambda: "CreateContainer" in env.pod.cri_env.server.called())
    await env.die()
    env.pod.cri_env.server.delay("CreateContainer", seconds=0.0)
    await env.start()
    reported = env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    newest = await env.newest()
    assert env.freezer.still() == {newest[name] for name in MAINS}
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_stopping_member_reports_current_step(env: RoundEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REPORT_INTERVAL", 0.01)
    env.pod.cri_env.server.delay("CreateContainer", seconds=1.0)
    reported = env.order()
    heard = [await reported.next()]
    while heard[-1].phase is StepPhase.STOPPING:
        heard.append(await reported.next())
    assert "Creating" in {step_result.reason for step_result in heard}
    assert (heard[-1].phase, heard[-1].reason) == (StepPhase.STOPPED, "")
    assert [step_result.reason for step_result in env.rounds.step_results()] == [""], (
        "the current step is not part of the state"
    )
    env.rounds.release("default/gang-1", [])
    await env.stands(StepPhase.RUNNING)


async def test_member_that_kubelet_must_start_reports_progress_after_release(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "REPORT_INTERVAL", 0.01)
    reported = env.order()
    step_result = await reported.next()
    while step_result.phase is not StepPhase.STOPPED:
        step_result = await reported.next()
    for name in MAINS:
        env.pod.cri_env.server.runtime.exit((await env.newest())[name], exit_code=137)
    env.rounds.release("default/gang-1", [])
    assert (await reported.start()).phase is StepPhase.STOPPED


async def test_hold_longer_than_probes_allow_restarts_member(env: RoundEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet would kill it: a frozen process answers no probe, and the SIGTERM would wait for its release."""
    monkeypatch.setattr(probes, "SHORTEST", 3.0)  # on a busy machine the first successors are listed before that
    await _probed(env, Probe(failure_threshold=1))
    reported = env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    first = await env.newest()
    await _probed(env, Probe(initial_delay=1000.0))
    assert (await reported.next()).phase is StepPhase.STOPPED
    second = await env.newest()
    assert not set(first.values()) & {second[name] for name in MAINS}
    assert env.freezer.still() == {second[name] for name in MAINS}
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert await env.newest() == second


async def _probed(env: RoundEnv, liveness: Probe) -> None:
    pod = env.pod.pods.pods()[POD.uid]
    containers = tuple(replace(spec, liveness=liveness) for spec in pod.containers)
    await env.pod.pods.put(replace(pod, containers=containers))


async def test_agent_that_returns_late_releases_at_once(env: RoundEnv) -> None:
    await env.order().next()
    await env.die()
    env.since_boot += 5000.0
    await env.start()
    await env.stands(StepPhase.SELF_RELEASED)
    assert env.freezer.still() == set()


async def test_an_agent_that_comes_back_after_the_hold_waits_for_the_hub_before_the_release(env: RoundEnv) -> None:
    """While there was no agent the hub could not renew the hold."""
    reported = env.order(hold_seconds=30.0)
    await reported.next()
    held = env.freezer.still()
    await env.die()
    env.since_boot += 45.0
    await env.start()
    assert env.freezer.still() == held
    reported = env.order(hold_seconds=1000.0)
    assert (await reported.next()).phase is StepPhase.STOPPED
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_an_agent_that_comes_back_after_an_earlier_rounds_release_holds_for_the_one_under_way(
    env: RoundEnv,
) -> None:
    """A container released by the first round is in its grace period when the agent dies in the second round."""
    reported = env.order()
    await reported.next()
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    env.since_boot += 60.0
    server = env.pod.cri_env.server
    server.delay("StopContainer", seconds=3000.0)
    server.calls.clear()
    env.order(round="default/gang-2", grace_seconds=2000.0)
    await eventually.true(lambda: "StopContainer" in server.called())
    await env.die()
    server.delay("StopContainer", seconds=0.0)
    await env.start()
    assert env.held == {POD.uid}
    reported = env.order(round="default/gang-2", grace_seconds=2000.0)
    assert (await reported.next()).phase is StepPhase.STOPPED
    env.rounds.release("default/gang-2", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


@pytest.mark.parametrize("grace", [0.0, 2000.0])
async def test_an_agent_that_stops_leaves_members_that_only_wait_to_the_next_one(env: RoundEnv, grace: float) -> None:
    server = env.pod.cri_env.server
    server.delay("StopContainer", seconds=3000.0)
    env.order(grace_seconds=grace)
    await eventually.true(lambda: "StopContainer" in server.called())
    if grace:
        async with asyncio.timeout(DEADLINE):
            await env.restarts.quiet.wait()
    else:
        assert not env.restarts.quiet.is_set(), "a kill takes a moment: it is at work"
    await env.die()
    server.delay("StopContainer", seconds=0.0)
    await env.start()
    reported = env.order(grace_seconds=grace)
    assert (await reported.next()).phase is StepPhase.STOPPED
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


async def test_of_two_of_one_name_only_one_is_released_however_late(env: RoundEnv) -> None:
    await env.order().next()
    await env.die()
    theirs = await env.pod.kubelet_starts("trainer", attempt=2)
    await env.freezer.freeze(theirs, mark=POD.uid)  # the agent's last action
    env.since_boot += 5000.0
    await env.start()
    await env.stands(StepPhase.SELF_RELEASED)
    assert (await env.pod.running())["trainer"] == [theirs]
    assert len(env.freezer.released) == 2, "the successor was removed while frozen"


async def test_reboot_ends_all_holds(env: RoundEnv) -> None:
    await env.order().next()
    await env.die()
    env.boot = "another"
    await env.start()
    assert env.held == frozenset()
    assert [step_result.phase for step_result in env.rounds.step_results()] == [StepPhase.SELF_RELEASED]
    assert await env.store.unfinished() == ()


@pytest.mark.parametrize("policy", [RestartPolicy.ALWAYS, RestartPolicy.NEVER])
@pytest.mark.parametrize("calls", range(1, 25))
async def test_agent_death_at_any_call_is_finished_by_next(env: RoundEnv, policy: RestartPolicy, calls: int) -> None:
    view = env.pod.pods.pods()[POD.uid]
    only = tuple(replace(spec, running=spec.name in MAINS) for spec in view.containers)
    await env.pod.pods.put(replace(view, restart_policy=policy, containers=only))
    server = env.pod.cri_env.server
    server.calls.clear()
    reported = env.order()
    await eventually.true(lambda: len(server.called()) >= calls or not reported.step_results.empty(), look_again=0.0)
    await env.die()
    await env.start()
    reported = env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    running = await env.pod.running()
    assert [len(running[name]) for name in MAINS] == [1, 1]
    assert env.freezer.still() == {running[name][0] for name in MAINS}
    assert not env.freezer.still() & set(env.pod.old.values())
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert await env.pod.running() == running


async def test_graver_fault_found_after_the_kill_has_the_member_recreated(env: RoundEnv) -> None:
    host = GpuHost()
    host.put(outside.GPU.uuid, 11, container=env.pod.old["trainer"])
    await env.die()
    env.gates = ReleaseGates(driver=host, processes=host)
    env.holders.hold(TARGET)
    await env.start()
    reported = env.order(containers=frozenset({"trainer"}))
    step_result = await reported.next()
    assert (step_result.phase, step_result.reason) == (StepPhase.STOPPING, "DriverFreeing")
    env.needs_reset()
    host.end(11)
    while (step_result := await reported.next()).phase is StepPhase.STOPPING:
        assert step_result.reason == "DriverFreeing"
    assert (step_result.phase, step_result.reason) == (StepPhase.FAILED, "DeviceNotUsable")
    assert "trainer" not in await env.pod.running()


@pytest.mark.parametrize("calls", range(1, 25, 2))
async def test_member_that_next_agent_finishes_is_proved_or_reports_why_not(env: RoundEnv, calls: int) -> None:
    host = GpuHost()
    host.listed[outside.GPU.uuid] = {}
    env.gates, env.prover = ReleaseGates(driver=host, processes=host), (proofs := Proofs(env.pod.cri_env))
    env.holders.hold(TARGET)
    server = env.pod.cri_env.server
    server.calls.clear()
    reported = env.order(attempt=2)
    await eventually.true(lambda: len(server.called()) >= calls or not reported.step_results.empty(), look_again=0.0)
    await env.die()
    proofs.subjects.clear()
    with structlog.testing.capture_logs() as log:
        await env.start()
        reported = env.order(attempt=2)
        assert (await reported.next()).phase is StepPhase.STOPPED
        env.rounds.release("default/gang-1", [])
        assert (await reported.next()).phase is StepPhase.RUNNING
    for done in [event for event in log if event["event"] == "restart.resumed"]:  # none if nothing had begun
        assert done["proofs"] in ({outside.GPU.uuid: "Passed"}, {outside.GPU.uuid: "Interrupted"})
    assert {subject.attempt for subject in proofs.subjects} == {2}


async def test_released_container_is_not_frozen_by_next_agent(env: RoundEnv) -> None:
    await env.order().next()
    await env.die()
    one, _ = env.freezer.still()
    env.freezer.thaw(one)  # it was releasing, and wrote no further record
    await env.start()
    assert env.freezer.still() == set()
    assert [step_result.phase for step_result in env.rounds.step_results()] == [StepPhase.SELF_RELEASED], (
        "the reason of the release is unknown"
    )


async def test_next_agent_reports_recorded_release(env: RoundEnv) -> None:
    reported = env.order()
    await reported.next()
    env.rounds.release("default/gang-1", [POD.uid])
    await eventually.true(env.is_written_off)
    await env.die()
    await env.start()
    assert [step_result.phase for step_result in env.rounds.step_results()] == [StepPhase.RUNNING]


async def test_aborted_member_never_reports_released(env: RoundEnv) -> None:
    reported = env.order()
    await reported.next()
    env.rounds.abort("default/gang-1", [POD.uid], reason="budget spent")
    step_result = await reported.next()
    assert (step_result.phase, step_result.reason) == (StepPhase.SELF_RELEASED, "Aborted")
    assert env.freezer.still() == set()


async def test_order_after_its_abort_starts_nothing(env: RoundEnv) -> None:
    env.rounds.abort("default/gang-1", [POD.uid], reason="budget spent")
    step_result = await env.order().next()
    assert (step_result.phase, step_result.reason) == (StepPhase.SELF_RELEASED, "Aborted")
    assert await env.newest() == env.pod.old
    assert env.freezer.ever == []


async def test_later_of_two_records_holds_pod(env: RoundEnv) -> None:
    """The agent died before it recorded the end of the earlier round."""
    await env.order().next()
    held = env.freezer.still()
    (record,) = await env.store.records()
    stale = replace(record, order=order(round="default/gang-0"), written_at=record.written_at - 1.0)
    for earlier in (stale, replace(stale, released=True)):
        await env.die()
        await env.store.note(earlier)
        await env.start()
        assert env.freezer.still() == held == env.rounds.held()
        assert [step_result.round for step_result in env.rounds.step_results()] == ["default/gang-1"]
    env.rounds.release("default/gang-1", [POD.uid])
    await env.stands(StepPhase.RUNNING)


async def test_stale_record_of_earlier_round_holds_nothing(env: RoundEnv) -> None:
    await env.order().next()
    (record,) = await env.store.records()
    env.rounds.release("default/gang-1", [POD.uid])
    await env.stands(StepPhase.RUNNING)
    await eventually.true(env.is_written_off)
    await env.die()
    await env.store.note(replace(record, order=order(round="default/gang-0"), written_at=record.written_at - 1.0))
    env.freezer.released.clear()  # no mark is left either
    await env.start()
    assert env.held == frozenset()
    assert env.freezer.still() == set()
    assert [step_result.round for step_result in env.rounds.step_results()] == ["default/gang-1"]


async def test_adopted_container_is_held_although_its_event_is_late(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubemend.agent.rounds.pod_hold.PodHolder._hold_soon", lambda *_: None)  # no event ever comes
    await env.exits("trainer", code=1)
    theirs: list[ContainerId] = []

    async def kubelet_first(*_: Any, **__: Any) -> Any:
        theirs.append(await env.pod.kubelet_starts("trainer", attempt=1))
        return await begin(*_, **__)

    begin = env.store.begin
    monkeypatch.setattr(env.store, "begin", kubelet_first)
    reported = env.order(containers=frozenset({"trainer"}))
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert env.freezer.still() == set(theirs)
    env.rounds.release("default/gang-1", [])
    await reported.next()


async def test_held_container_is_ended_without_grace_period(env: RoundEnv) -> None:
    """A frozen process handles no SIGTERM: the next round would wait for the whole grace period."""
    await env.order(grace_seconds=30.0).next()
    env.pod.cri_env.server.calls.clear()
    second = env.order(round="default/gang-2", attempt=2, grace_seconds=30.0)
    assert (await second.next()).phase is StepPhase.STOPPED
    stops = [call.request for call in env.pod.cri_env.server.calls if call.method == "StopContainer"]
    assert [getattr(request, "timeout", None) for request in stops] == [0, 0]
    env.rounds.release("default/gang-2", [])
    await second.next()


async def test_succeeded_pod_without_container_reports_completed(env: RoundEnv) -> None:
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, phase="Succeeded", restart_policy=RestartPolicy.ON_FAILURE))
    assert (await env.order().next()).phase is StepPhase.COMPLETED
    hold = await env.order(round="default/gang-2", kind=OrderKind.HOLD).next()
    assert hold.phase is StepPhase.COMPLETED


async def test_container_that_vanishes_during_selection_does_not_fail_round(env: RoundEnv) -> None:
    await env.exits("trainer", code=1)
    env.pod.cri_env.server.fail("ContainerStatus", grpc.StatusCode.NOT_FOUND)
    reported = env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    env.rounds.release("default/gang-1", [])
    await reported.next()


async def test_hold_of_unstarted_pod_reports_when_first_container_held(env: RoundEnv) -> None:
    for name, container in env.pod.old.items():
        if name in MAINS:
            env.pod.cri_env.server.runtime.exit(container, exit_code=1)
            await env.pod.cri_env.cri.remove_container(container)
    await eventually.true(lambda: not any(view.ref.name in MAINS for view in env.pod.cri_env.watch.containers()))
    reported = env.order(kind=OrderKind.HOLD)
    await env.stands(StepPhase.STOPPING)
    assert reported.step_results.empty()
    theirs = await env.pod.kubelet_starts("trainer", attempt=1)
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert env.freezer.still() == {theirs}
    env.rounds.abort("default/gang-1", [POD.uid], reason="over")
    assert (await reported.next()).phase is StepPhase.SELF_RELEASED


async def test_round_with_unknown_owner_refuses_without_waiting(env: RoundEnv) -> None:
    view = env.pod.pods.pods()[POD.uid]
    job = OwnerRef(kind="Job", name="j", api_group="batch")
    await env.pod.pods.put(replace(view, owner=job, restart_policy=RestartPolicy.ON_FAILURE))
    env.owners.answer = None
    step_result = await env.order().next()
    assert (step_result.phase, step_result.reason) == (StepPhase.REFUSED, "OwnerUnknown")
    assert await env.newest() == env.pod.old


async def test_members_and_phases_are_counted(env: RoundEnv) -> None:
    reported = env.order()
    await reported.next()
    assert env.registry.get_sample_value("kubemend_round_held") == 2
    env.rounds.release("default/gang-1", [])
    await reported.next()
    sample = env.registry.get_sample_value
    assert sample("kubemend_round_held") == 0
    assert sample("kubemend_round_members_total", {"phase": "Stopped"}) == 1
    assert sample("kubemend_round_members_total", {"phase": "Running"}) == 1
    assert sample("kubemend_round_phase_seconds_count", {"phase": "held"}) == 1
    await eventually.true(lambda: sample("kubemend_round_unheld_seconds_count") == 1)  # its restart is over


async def test_fault_of_gang_is_left_to_round(env: RoundEnv) -> None:
    env.gangs.answer = FaultAnswer.ROUND
    await env.restarts.submit(fault(FaultKind.HANG))
    assert env.gangs.asked == [(TARGET, FaultKind.HANG)]
    assert await env.newest() == env.pod.old
    assert env.said.said == {}


async def test_fault_answered_with_nothing_is_refused_and_reported(env: RoundEnv) -> None:
    env.gangs.answer = FaultAnswer.NOTHING
    await env.restarts.submit(fault(FaultKind.DEVICE))
    (condition,) = env.said.said.values()
    assert condition.reason == "LeftToGang"
    assert await env.newest() == env.pod.old


def fault(kind: FaultKind) -> Request:
    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    return Request(target=TARGET, cause=lambda: cause, devices=frozenset(), kind=kind)
