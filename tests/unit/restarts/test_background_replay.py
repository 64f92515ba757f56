"""A restart that the previous agent left open, and that takes long to end, delays only other restarts of its pod."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from kubemend.agent.actuator import progress
from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.model import conditions
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, PodUid, RestartRule, RuleAction
from kubemend.agent.restart import admission, intents
from kubemend.agent.restart.counts import Begun
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import planning
from kubemend.agent.restarts import replay as replay_module
from kubemend.agent.restarts.manual_requests import CODE as REQUESTED
from kubemend.agent.restarts.plan_execution import PlanExecution
from kubemend.agent.restarts.recovery import Background, Recovery
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.restart_plan import RestartPlan
from kubemend.agent.restarts.verifier import Timeouts
from tests.environments.pod_env import ROLES
from tests.environments.restarts import NOW, RestartEnv, restarts_on
from tests.environments.runtime import POD, TARGET, CriEnv

_AT_ONCE = Timeouts(kubelet=0.0, pod=0.0)  # no test acts as kubelet


@dataclass
class Stop:
    """The runtime is asked to stop the old container; its program ends when ``ended`` is set."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Queued:
    """A follower that waits until its restart waits for another one."""

    seen: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self, event: progress.Event) -> None:
        if isinstance(event, progress.Queued):
            self.seen.set()


@pytest.fixture(params=[600.0, 0.0], ids=["within its grace period", "stuck in the kernel"])
async def stop(env: RestartEnv, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Stop:
    """The previous agent was killed while it stopped the old container."""
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 30, grace_seconds=request.param))
    this, stop_container = Stop(), env.pod.cri_env.cri.stop_container

    async def once_ended(container_id: ContainerId, *, grace: float) -> None:
        this.asked.set()
        await this.ended.wait()
        await stop_container(container_id, grace=grace)

    monkeypatch.setattr(env.pod.cri_env.cri, "stop_container", once_ended)
    return this


@contextlib.asynccontextmanager
async def recovery(
    env: RestartEnv, *, patience: float = 0.0, spared: frozenset[PodUid] = frozenset()
) -> AsyncIterator[Recovery]:
    """Recovery with a background; wait for that at the end."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        yield Recovery(
            dependencies=env.dependencies,
            store=env.store,
            now=lambda: NOW,
            timeouts=_AT_ONCE,
            spared=spared,
            background=Background(tasks, env.restarts, patience=patience),
        )


async def is_restarted(env: RestartEnv) -> bool:
    (running,) = await env.pod.cri_env.running()
    return running.restart_id is not None and await env.store.unfinished() == ()


async def test_recovery_does_not_wait_for_a_program_that_takes_long_to_end(env: RestartEnv, stop: Stop) -> None:
    (intent,) = await env.store.unfinished()
    async with recovery(env, patience=3600.0 if intent.grace_seconds else 0.0) as replay:
        assert await replay.run() == 1
        await stop.asked.wait()
        assert len(await env.store.unfinished()) == 1
        stop.ended.set()
    assert await is_restarted(env)


async def test_recovery_replays_each_restart_once_whatever_other_pods_have(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed, resume = list[str](), planning.resume

    async def resumed(everything: Any, intent: intents.AnyIntent, **more: Any) -> RestartPlan:
        replayed.append(intent.id)
        return await resume(everything, intent, **more)

    monkeypatch.setattr(planning, "resume", resumed)
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 30))
    second = replace(TARGET, pod=replace(POD, name="trainer-1", uid=PodUid("second")))
    await env.store.begin(env.pod.cri_env.intent(id="r2", target=second, created_at=NOW - 30))
    async with recovery(env) as replay:
        assert await replay.run() == 2
    assert sorted(replayed) == ["r1", "r2"]
    assert await env.store.unfinished() == ()


async def test_recovery_that_is_repeated_replays_nothing_twice(env: RestartEnv, stop: Stop) -> None:
    async with recovery(env) as replay:
        await replay.run()
        await stop.asked.wait()
        assert await replay.run() == 0
        stop.ended.set()
    assert await is_restarted(env)
    assert env.pod.cri_env.server.called().count("StopContainer") == 1


async def leave_name_reserved(env: RestartEnv) -> str:
    """Swap the container with no agent that releases the reserved name; return the restart's id."""
    cri_env, intent = env.pod.cri_env, env.pod.cri_env.intent(order=intents.SwapOrder.STOP_FIRST)
    await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert len(await env.pod.reserved()) == 1
    return intent.id


@pytest.mark.parametrize("here", [True, False], ids=["pod of this node", "pod of another node with the same runtime"])
async def test_recovery_releases_names_that_no_restart_of_this_node_needs(env: RestartEnv, *, here: bool) -> None:
    """The previous agent had closed the restart, and was killed before it released the name."""
    await leave_name_reserved(env)
    if not here:
        env.pod.pods.drop(POD.uid)
    async with recovery(env) as replay:
        await replay.run()
    assert len(await env.pod.reserved()) == (0 if here else 1)


@pytest.mark.parametrize("is_open", [True, False], ids=["resumed", "new"])
async def test_recovery_leaves_the_names_of_a_rounds_member_to_its_restart(env: RestartEnv, *, is_open: bool) -> None:
    """A member may begin a restart after the journal was read."""
    intent = env.pod.cri_env.intent(id=await leave_name_reserved(env), created_at=NOW)
    if is_open:
        await env.store.begin(intent)
    async with recovery(env, spared=frozenset({POD.uid})) as replay:
        assert await replay.run() == 0
    assert len(await env.pod.reserved()) == 1
    await env.dependencies.actuators.swap.give_back(intent)
    assert len(await env.pod.reserved()) == (0 if is_open else 1)


async def test_recovery_leaves_the_names_of_restarts_in_the_journal(env: RestartEnv) -> None:
    """A rerun finds its names in the runtime's listing, and releases them itself."""
    restart_id = await leave_name_reserved(env)
    await env.store.begin(env.pod.intent(id=restart_id))
    await env.store.quarantine(restart_id, reason="a test", now=NOW)
    async with recovery(env) as replay:
        await replay.run()
    assert len(await env.pod.reserved()) == 1


async def test_request_for_a_pod_under_replay_waits_for_its_end(env: RestartEnv, stop: Stop) -> None:
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    cause, queued = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW), Queued()
    async with recovery(env) as replay:
        await replay.run()
        request = Request(target=TARGET, cause=lambda: cause, devices=frozenset(), followed=queued)
        waiting = asyncio.create_task(env.restarts.submit(request))
        await queued.seen.wait()
        assert len(await env.store.unfinished()) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        stop.ended.set()
    assert await is_restarted(env)


async def test_background_replay_is_repeated_when_the_disk_can_be_used_again(
    env: RestartEnv, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, failed = env.store.replay_begins, asyncio.Event()

    async def fails_once(intent_id: str) -> bool:
        if not failed.is_set():
            failed.set()
            raise JournalError("the disk is full")
        return await begins(intent_id)

    monkeypatch.setattr(env.store, "replay_begins", fails_once)
    stop.ended.set()
    async with recovery(env) as replay:
        await replay.run()
    assert failed.is_set()
    assert await is_restarted(env)


async def test_replay_whose_container_the_runtime_does_not_report_for_long_is_finished_later(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a container that was frozen for it would stay so, unseen, until the next agent."""
    undone, undo = asyncio.Event(), PlanExecution.undo

    async def hangs(execution: PlanExecution[RestartPlan], *, reason: str, waits: bool = False) -> Outcome:
        if undone.is_set():
            return await undo(execution, reason=reason, waits=waits)
        undone.set()
        return Outcome(Result.UNFINISHED, detail=reason)

    monkeypatch.setattr(replay_module, "_TRIES", 1)
    monkeypatch.setattr(PlanExecution, "undo", hangs)
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 30))
    env.pod.cri_env.server.fail("ContainerStatus", grpc.StatusCode.DEADLINE_EXCEEDED)
    async with recovery(env) as replay:
        assert await replay.run() == 1
    assert undone.is_set()
    assert await is_restarted(env)


async def test_replay_that_fails_by_a_bug_does_not_lock_its_pod_for_good(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next agent tries once more."""

    async def broken(*_: object, **__: object) -> RestartPlan:
        raise IndexError("a bug")

    async def not_undone(*_: object, reason: str) -> Outcome:
        return Outcome(Result.UNFINISHED, detail=reason)

    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 30))
    with monkeypatch.context() as patched:
        patched.setattr(planning, "resume", broken)
        patched.setattr(PlanExecution, "undo", not_undone)
        async with recovery(env) as replay:
            assert await replay.run() == 1
    assert len(await env.store.unfinished()) == 1
    async with env.restarts.turn(POD.uid):
        pass


async def test_replay_of_which_the_runtime_is_away_for_long_is_finished_once_it_is_back(
    cri_env: CriEnv, tmp_path: Path
) -> None:
    """Else a container that is frozen for it would stay so until the next agent."""
    async with restarts_on(cri_env, tmp_path, can_hold=True, tools={"time_limit": 0.1}) as env:
        await env.store.begin(cri_env.intent(created_at=NOW - 30))
        cri_env.server.fail("StartContainer", grpc.StatusCode.UNAVAILABLE, details="down", times=8)
        with capture_logs() as logged:
            async with recovery(env) as replay:
                assert await replay.run() == 1
                assert len(await env.store.unfinished()) == 1
        assert "restart.replay_waits" in {entry["event"] for entry in logged}
        assert await is_restarted(env)


@pytest.mark.parametrize("replaced", [True, False])
async def test_restart_that_has_changed_nothing_counts_no_more(env: RestartEnv, *, replaced: bool) -> None:
    counted = Begun(POD.uid, frozenset(ROLES), at=NOW - 31, fault_at=NOW - 32)
    await env.store.begin(env.pod.intent(strategy=Strategy.RESET, created_at=NOW - 30), counted=counted)
    if replaced:
        env.pod.cri_env.server.runtime.exit(env.pod.old["trainer"], exit_code=1)
        await env.pod.kubelet_starts("trainer", attempt=1)
    async with recovery(env, patience=60.0) as replay, env.kubelet():
        assert await replay.run() == 1
    assert await env.store.unfinished() == ()
    assert (await env.store.begun_since(0.0) == ()) is replaced


async def begin_by_rules(env: RestartEnv, *, reason: str) -> None:
    """Begin a restart of ``logger`` by the rules, whose trigger has ended by itself before the agent could kill it."""
    view = env.pod.pods.pods()[POD.uid]
    rule = RestartRule(RuleAction.RESTART_ALL, frozenset({137}))
    specs = tuple(replace(spec, restart_rules=(rule,)) if spec.name == "trainer" else spec for spec in view.containers)
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/strategy": "rules"}
    await env.pod.pods.put(replace(view, annotations=annotations, containers=specs))
    trigger = env.pod.old["trainer"]
    intent = env.pod.intent(strategy=Strategy.RULES, trigger=trigger, created_at=NOW - 30, reason=reason)
    counted = Begun(POD.uid, frozenset(ROLES), at=NOW - 31, fault_at=NOW - 32)
    await env.store.begin(replace(intent, target=replace(TARGET, name="logger")), counted=counted)
    env.pod.cri_env.server.runtime.exit(trigger, exit_code=1)


async def test_replayed_fault_whose_trigger_had_ended_by_itself_is_decided_again_once_that_runs(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet restarts the trigger alone: the faulty container next to it would run on."""
    killed, stop = asyncio.Event(), env.pod.cri_env.cri.stop_container

    async def kills(container_id: ContainerId, *, grace: float) -> None:
        await stop(container_id, grace=grace)
        killed.set()

    async def not_asked(_: Any, outcome: Outcome) -> tuple[Outcome, tuple[()]]:
        return outcome, ()

    monkeypatch.setattr(env.pod.cri_env.cri, "stop_container", kills)
    monkeypatch.setattr(env.restarts._executor._conclusions._verifier, "wait_for_kubelet", not_asked)
    await begin_by_rules(env, reason="Xid31")
    async with recovery(env, patience=60.0) as replay, env.kubelet():
        await replay.run()
        await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, Reason.TRIGGER_ENDED.value)
        theirs = await env.pod.kubelet_starts("trainer", attempt=1)
        await killed.wait()
    assert theirs not in (await env.pod.running()).get("trainer", [])
    assert await env.store.unfinished() == ()
    (begun,) = await env.store.begun_since(0.0)
    assert begun.fault_at == NOW - 32, "it counts once, for its own fault"


async def test_replayed_request_whose_trigger_had_ended_by_itself_is_reported(env: RestartEnv) -> None:
    """A person can ask again."""
    await begin_by_rules(env, reason=REQUESTED)
    async with recovery(env, patience=60.0) as replay, env.kubelet():
        await replay.run()
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].reason == Reason.TRIGGER_ENDED.value
    assert await env.store.unfinished() == ()


async def test_replayed_swap_that_steps_down_is_taken_over_although_another_container_of_its_group_had_ended(
    env: RestartEnv,
) -> None:
    """It counts for the group, and has no intent for the container that had ended."""
    behaviour = env.pod.cri_env.server.runtime.behaviour
    behaviour.is_crio, behaviour.spec_of_new = True, {"cwd": "/elsewhere"}
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    intent = env.pod.cri_env.intent(created_at=NOW - 30, order=intents.SwapOrder.CREATE_FIRST)
    counted = Begun(POD.uid, frozenset({"trainer", "shipper"}), at=NOW - 31, fault_at=NOW - 32)
    await env.store.begin(intent, counted=counted)
    async with env.kubelet(), recovery(env, patience=60.0) as replay:
        await replay.run()
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert condition.reason == "Reset"
    assert "not swap: the successor would differ" in condition.message
    assert "not process" not in condition.message, "it runs no launcher"
    (begun,) = await env.store.begun_since(0.0)
    assert (begun.containers, begun.fault_at) == (frozenset(ROLES), NOW - 32), "it counts once, for its own fault"


async def test_replayed_swap_that_differs_counts_no_more_if_no_other_strategy_may_take_over(env: RestartEnv) -> None:
    """It was undone before anything was stopped."""
    behaviour = env.pod.cri_env.server.runtime.behaviour
    behaviour.is_crio, behaviour.spec_of_new = True, {"cwd": "/elsewhere"}
    view = env.pod.pods.pods()[POD.uid]
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/strategy": "swap"}
    await env.pod.pods.put(replace(view, annotations=annotations))
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 30, order=intents.SwapOrder.CREATE_FIRST))
    async with recovery(env, patience=60.0) as replay:
        await replay.run()
    assert [view.id for view in await env.pod.cri_env.running()] == [env.pod.cri_env.old]
    assert env.restarts._budgets.all() == await env.store.begun_since(0.0) == ()
    assert await env.store.unfinished() == ()


async def test_replayed_fault_is_decided_again_once_the_disk_can_be_used(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the faulty container would run on until the next agent."""
    behaviour, begun_since = env.pod.cri_env.server.runtime.behaviour, env.store.begun_since
    behaviour.is_crio, behaviour.spec_of_new = True, {"cwd": "/elsewhere"}
    failed = list[float]()

    async def fails_once(moment: float) -> tuple[Begun, ...]:
        if not failed:
            failed.append(moment)
            raise JournalError("the disk is full")
        return await begun_since(moment)

    monkeypatch.setattr(env.store, "begun_since", fails_once)
    view = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 30, order=intents.SwapOrder.CREATE_FIRST))
    with capture_logs() as logged:
        async with env.kubelet(), recovery(env, patience=60.0) as replay:
            await replay.run()
    assert failed
    assert env.said.said[POD, conditions.IN_PLACE_RESTART].reason == "Reset"
    assert await env.store.unfinished() == ()
    assert "restart.replay_waits" in {entry["event"] for entry in logged}


async def test_recovery_waits_for_a_replay_that_ends_soon(env: RestartEnv) -> None:
    """Else the exit of the old container could be taken for a new fault."""
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 30))
    async with recovery(env, patience=60.0) as replay:
        assert await replay.run() == 1
        assert await is_restarted(env)
