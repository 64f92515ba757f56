"""A pod that begins to end in the middle of a restart: nothing is started in it, and kubemend leaves nothing there."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kubemend.agent.actuator.pod_strategies import PodActuator
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import PodUid, SandboxId
from kubemend.agent.restart import intents
from kubemend.agent.restart.intents import Strategy, SwapOrder
from tests.environments import pod_env
from tests.environments.runtime import POD, TARGET, CriEnv

DELETED = "it is being deleted"


def ends_at(cri_env: CriEnv, method: str) -> Callable[[PodUid, SandboxId], str]:
    """Return a function that reports the pod as ending from the first call of a method on."""

    def ending(pod: PodUid, sandbox: SandboxId) -> str:
        assert (pod, sandbox) == (POD.uid, cri_env.sandbox_id)
        return DELETED if method in cri_env.server.called() else ""

    return ending


async def swapped(cri_env: CriEnv, order: SwapOrder, *, ends: str) -> Outcome:
    intent = cri_env.intent(order=order)
    actuator = SwapActuator(replace(cri_env.tools(), ending=ends_at(cri_env, ends)))
    outcome = await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.UNDONE
    assert outcome.detail == f"the pod is ending: {DELETED}"
    return outcome


@pytest.mark.parametrize("order", [SwapOrder.CREATE_FIRST, SwapOrder.START_FIRST, SwapOrder.START_ELSE_STOP_FIRST])
async def test_a_successor_that_was_created_is_removed_and_the_old_one_runs_on(
    cri_env: CriEnv, order: SwapOrder
) -> None:
    await swapped(cri_env, order, ends="CreateContainer")
    assert (
        {view.id for view in await cri_env.containers()}
        == {cri_env.old}
        == {view.id for view in await cri_env.running()}
    )
    assert not {"StartContainer", "StopContainer"} & set(cri_env.server.called())


@pytest.mark.parametrize("order", [SwapOrder.START_FIRST, SwapOrder.START_ELSE_STOP_FIRST])
async def test_a_successor_on_standby_is_removed_and_the_old_one_runs_on(cri_env: CriEnv, order: SwapOrder) -> None:
    await swapped(cri_env, order, ends="StartContainer")
    assert (
        {view.id for view in await cri_env.containers()}
        == {cri_env.old}
        == {view.id for view in await cri_env.running()}
    )
    assert "StopContainer" not in cri_env.server.called()


@pytest.mark.parametrize("order", [SwapOrder.START_FIRST, SwapOrder.START_ELSE_STOP_FIRST])
async def test_a_successor_on_standby_is_removed_when_the_old_one_is_dead(cri_env: CriEnv, order: SwapOrder) -> None:
    await swapped(cri_env, order, ends="StopContainer")
    assert await cri_env.running() == []
    assert {view.id for view in await cri_env.containers()} == {cri_env.old}


async def test_no_successor_is_created_for_a_container_that_has_been_stopped(cri_env: CriEnv) -> None:
    await swapped(cri_env, SwapOrder.STOP_FIRST, ends="StopContainer")
    assert await cri_env.running() == []
    assert {view.id for view in await cri_env.containers()} == {cri_env.old}
    assert cri_env.server.called().count("CreateContainer") == 1, "it only reserves the next name"


async def test_a_successor_that_waits_after_the_old_one_has_ended_is_removed_with_its_reservation(
    cri_env: CriEnv,
) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent = cri_env.intent()
    actuator = SwapActuator(replace(cri_env.tools(), ending=ends_at(cri_env, "CreateContainer")))
    outcome = await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.UNDONE
    await actuator.give_back(intent)
    assert {view.id for view in await cri_env.cri.list_containers(sandbox_id=cri_env.sandbox_id)} == {cri_env.old}
    assert "StartContainer" not in cri_env.server.called()


@pytest.mark.parametrize("ends", ["CreateContainer", "RemoveContainer"])
async def test_a_rerun_creates_and_starts_nothing_more_and_gives_its_names_back(cri_env: CriEnv, ends: str) -> None:
    async with pod_env.made(cri_env) as pod:
        intent = pod.intent()
        successor_specs = await pod.successor_specs(intent)
        actuator = PodActuator(replace(cri_env.tools(), ending=ends_at(cri_env, ends)), pods=pod.pods)
        cri_env.server.calls.clear()
        outcome = await actuator.carry_out(intent, successor_specs=successor_specs)
        assert outcome.result is Result.UNDONE
        assert "StartContainer" not in cri_env.server.called()
        assert await pod.reserved() == set()
        assert all(view.restart_id is None for view in await pod.in_sandbox())
        if ends == "CreateContainer":
            assert set(await pod.running()) == set(pod_env.LASTING), "nothing had been taken away"


async def test_a_reset_takes_no_more_away(cri_env: CriEnv) -> None:
    async with pod_env.made(cri_env) as pod:
        intent = pod.intent(strategy=Strategy.RESET, grace_seconds=5.0)
        actuator = PodActuator(replace(cri_env.tools(), ending=ends_at(cri_env, "StopContainer")), pods=pod.pods)
        cri_env.server.calls.clear()
        outcome = await actuator.carry_out(intent)
        assert outcome.result is Result.UNDONE
        assert cri_env.server.called().count("RemoveContainer") == 1, (
            "the init container's, before anything was stopped"
        )
        assert TARGET.name in {view.ref.name for view in await pod.containers()}


async def test_a_replay_in_a_pod_that_is_ending_leaves_one_program(cri_env: CriEnv) -> None:
    """The dead agent had frozen the old container, and its death has released the successor."""
    intent = cri_env.intent(order=intents.SwapOrder.START_FIRST)
    successor_spec = await cri_env.successor_spec(intent)
    successor = await cri_env.cri.create_container(
        sandbox_id=cri_env.sandbox_id,
        config=successor_spec.successor.config,
        sandbox_config=successor_spec.sandbox_config,
    )
    await cri_env.cri.start_container(successor)
    assert cri_env.standbys is not None
    cri_env.standbys.frozen = True
    cri_env.server.calls.clear()
    actuator = SwapActuator(replace(cri_env.tools(), ending=lambda *_: DELETED))
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNDONE
    assert [view.id for view in await cri_env.running()] == [successor]
    assert "CreateContainer" not in cri_env.server.called()


async def test_a_replay_in_a_pod_that_is_ending_removes_what_the_dead_agent_has_created(cri_env: CriEnv) -> None:
    intent = cri_env.intent(order=intents.SwapOrder.CREATE_FIRST)
    successor_spec = await cri_env.successor_spec(intent)
    await cri_env.cri.create_container(
        sandbox_id=cri_env.sandbox_id,
        config=successor_spec.successor.config,
        sandbox_config=successor_spec.sandbox_config,
    )
    actuator = SwapActuator(replace(cri_env.tools(), ending=lambda *_: DELETED))
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNDONE
    assert {view.id for view in await cri_env.containers()} == {cri_env.old}
