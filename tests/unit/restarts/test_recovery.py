"""Replay what an agent that died left open, while kubelet works on the same pod."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import grpc
import pytest

from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.event_messages import EventMessage
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, reservations
from kubemend.agent.restart.process import Launcher, State
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.verifier import Timeouts
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET


def recovery(env: RestartEnv, *, timeouts: float = 60.0) -> Recovery:
    """Recovery that waits for kubelet until the test acts as kubelet."""
    seconds = Timeouts(kubelet=timeouts, pod=timeouts)
    return Recovery(dependencies=env.dependencies, store=env.store, now=lambda: NOW, timeouts=seconds)


async def kubelet_shows(env: RestartEnv, container: ContainerId) -> None:
    """Set kubelet's status: the trainer runs in this container."""
    view = env.pod.pods.pods()[POD.uid]
    specs = tuple(
        replace(spec, container_id=container, running=True) if spec.name == TARGET.name else spec
        for spec in view.containers
    )
    await env.pod.pods.put(replace(view, containers=specs))


async def killed_after_the_stop(env: RestartEnv) -> None:
    """An agent has journalled a swap and killed the old container; then it died itself."""
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW))
    await env.pod.cri_env.cri.stop_container(env.pod.cri_env.old, grace=0)


async def reserved(env: RestartEnv) -> list[ContainerSummary]:
    views = await env.pod.cri_env.cri.list_containers(sandbox_id=env.pod.cri_env.sandbox_id)
    return [view for view in views if reservations.reserves(view)]


async def kubelet_collects_reservations(env: RestartEnv) -> None:
    """They look like garbage of a pod that kubelet does not know."""
    for view in await reserved(env):
        await env.pod.cri_env.cri.remove_container(view.id)


@pytest.mark.parametrize("error", ["", "cannot kill"])
async def test_recovery_of_a_restart_that_the_launcher_cannot_finish_is_reported(env: RestartEnv, error: str) -> None:
    if error:
        env.launchers.state = Launcher(State.RUNNING, program=1, order="p1", error=error)
    else:
        env.launchers.left = (4711,)
    cri_env = env.pod.cri_env
    intent = intents.ProcessIntent(
        id="p1",
        target=TARGET,
        sandbox_id=cri_env.sandbox_id,
        container=cri_env.old,
        program=1,
        reason="Xid31",
        created_at=NOW,
    )
    await env.store.begin(intent)
    await recovery(env).run()
    assert await env.store.unfinished() == ()
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "SteppedDown")
    assert condition.message


async def test_recovery_of_a_kill_without_effect_is_reported(env: RestartEnv) -> None:
    events: list[EventMessage] = []
    env.dependencies = replace(env.dependencies, event_recorder=SimpleNamespace(record=events.append))
    env.pod.cri_env.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=99)
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW, order=intents.SwapOrder.STOP_FIRST))
    await recovery(env).run()
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "Stuck")
    assert [(event.reason, event.message) for event in events] == [("InPlaceRestartFailed", condition.message)]


async def test_recovery_of_a_restart_that_is_too_old_is_reported(env: RestartEnv) -> None:
    """The container with the fault runs on."""
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW - 3600.0))
    await recovery(env).run()
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "Undone")
    assert condition.message.endswith(": not finished by the agent that began it, more than a minute ago")


@pytest.mark.parametrize("shown", [True, False])
async def test_recovery_of_a_restart_reports_its_end(env: RestartEnv, *, shown: bool) -> None:
    """Else the condition that the dead agent has left ("being verified") stays until the next restart."""
    await killed_after_the_stop(env)
    async with env.pod.cri_env.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(env, timeouts=60.0 if shown else 0.0).run())
        while (started := await events.get()).kind is not EventKind.STARTED:
            pass
        if shown:
            await kubelet_shows(env, started.container_id)
        await taking_up
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.TRUE, "Swapped")
    assert condition.message.startswith("trainer restart 1 by swap in ")
    assert ("could not verify devices-answer, kubelet-agrees" in condition.message) is not shown
    assert "being verified" not in condition.message


async def test_recovery_reserves_names_until_kubelet_shows_successor(env: RestartEnv) -> None:
    await killed_after_the_stop(env)
    async with env.pod.cri_env.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(env).run())
        while (started := await events.get()).kind is not EventKind.STARTED:
            pass
        assert len(await reserved(env)) == 1
        await kubelet_shows(env, started.container_id)
        await taking_up
    assert await reserved(env) == []


async def test_recovery_releases_the_name_that_the_dead_agent_had_reserved(env: RestartEnv) -> None:
    """It had created the reservation and the successor, and died before kubelet showed that one."""
    cri_env, intent = env.pod.cri_env, env.pod.cri_env.intent(created_at=NOW)
    await killed_after_the_stop(env)
    outcome = await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    (held,) = await reserved(env)
    taking_up = asyncio.create_task(recovery(env).run())
    await env.pod.pods.waited.wait()
    assert [view.id for view in await reserved(env)] == [held.id]
    await kubelet_shows(env, outcome.current[TARGET.name])
    await taking_up
    assert await reserved(env) == []


async def test_recovery_resolves_duplicate_of_old_relist(env: RestartEnv) -> None:
    await killed_after_the_stop(env)
    async with env.pod.cri_env.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(env).run())
        while (await events.get()).kind is not EventKind.STARTED:
            pass  # the successor
        await kubelet_collects_reservations(env)
        copy = await env.pod.kubelet_starts(TARGET.name, attempt=2)  # it had seen the successor in CREATED
        await kubelet_shows(env, copy)
        assert await taking_up == 1
    assert [view.id for view in await env.pod.cri_env.running()] == [copy]
    assert await env.store.unfinished() == ()


async def test_recovery_that_undoes_resolves_the_copy_of_a_successor_that_has_waited(env: RestartEnv) -> None:
    """Kubelet acts on a listing from before the removal, and would leave the old container running."""
    cri_env = env.pod.cri_env
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST, created_at=NOW - 600.0)
    await env.store.begin(intent)
    await lost_successor(env)
    async with cri_env.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(env).run())
        while (await events.get()).kind is not EventKind.DELETED:
            pass
        copy = await env.pod.kubelet_starts(TARGET.name, attempt=2)
        await kubelet_shows(env, copy)
        assert await taking_up == 1
    assert [view.id for view in await cri_env.running()] == [copy]
    assert await env.store.unfinished() == ()


async def test_recovery_that_undoes_leaves_the_old_container(env: RestartEnv) -> None:
    cri_env = env.pod.cri_env
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST, created_at=NOW - 600.0)
    await env.store.begin(intent)
    await lost_successor(env)
    assert await recovery(env, timeouts=0.0).run() == 1
    assert [view.id for view in await cri_env.containers()] == [cri_env.old]
    assert [view.id for view in await cri_env.running()] == [cri_env.old]


async def test_recovery_keeps_intent_open_until_kubelet_agrees(env: RestartEnv) -> None:
    await killed_after_the_stop(env)
    async with env.pod.cri_env.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(env).run())
        while (started := await events.get()).kind is not EventKind.STARTED:
            pass
        assert len(await env.store.unfinished()) == 1, "another death now must not forget it"
        await kubelet_shows(env, started.container_id)
        await taking_up
    assert await env.store.unfinished() == ()


async def test_recovery_with_silent_kubelet_times_out(env: RestartEnv) -> None:
    await killed_after_the_stop(env)
    assert await recovery(env, timeouts=0.0).run() == 1
    assert await env.store.unfinished() == ()
    (running,) = await env.pod.cri_env.running()
    assert running.restart_id is not None


@pytest.mark.parametrize("grace", [1e20, float("inf")])
async def test_recovery_carries_out_expired_grace_period(env: RestartEnv, grace: float) -> None:
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW, grace_seconds=grace))
    assert await recovery(env, timeouts=0.0).run() == 1
    assert await env.store.unfinished() == ()
    (running,) = await env.pod.cri_env.running()
    assert running.restart_id is not None


async def test_recovery_does_not_wait_for_exited_successor(env: RestartEnv) -> None:
    """The successor has run and ended: kubelet handles that by the pod's own policy."""
    intent = env.pod.cri_env.intent(created_at=NOW)
    await killed_after_the_stop(env)
    successor_spec = await env.pod.cri_env.successor_spec(intent)
    outcome = await env.pod.cri_env.actuator().carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    env.pod.cri_env.server.runtime.exit(outcome.current[TARGET.name], exit_code=1)
    assert await recovery(env).run() == 1
    assert {view.state for view in await env.pod.cri_env.containers()} == {ContainerState.EXITED}
    assert await env.store.unfinished() == ()
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "SuccessorExited")


async def lost_successor(env: RestartEnv) -> None:
    """A successor waits next to the old container, without a journalled intent."""
    cri_env = env.pod.cri_env
    successor_spec = await cri_env.successor_spec(cri_env.intent())
    await cri_env.cri.create_container(
        sandbox_id=cri_env.sandbox_id,
        config=successor_spec.successor.config,
        sandbox_config=successor_spec.sandbox_config,
    )


async def test_recovery_ignores_orphan_of_another_node(env: RestartEnv) -> None:
    await lost_successor(env)
    env.pod.pods.drop(POD.uid)
    assert await recovery(env).run() == 0
    assert len(await env.pod.cri_env.containers()) == 2


async def test_recovery_removes_orphan_while_api_server_is_down(env: RestartEnv) -> None:
    await lost_successor(env)
    env.pod.pods.drop(POD.uid)
    env.pod.pods.synced = False
    assert await recovery(env).run() == 1
    assert [view.id for view in await env.pod.cri_env.containers()] == [env.pod.cri_env.old]


async def test_recovery_leaves_the_new_successor_of_a_rounds_member(env: RestartEnv) -> None:
    """Members resume while the journal is read: their next restarts are not in it yet."""
    await lost_successor(env)
    spared = Recovery(dependencies=env.dependencies, store=env.store, now=lambda: NOW, spared={POD.uid})
    assert await spared.run() == 0
    assert len(await env.pod.cri_env.containers()) == 2
