"""What an agent that died has left is brought to its end, with kubelet at work on the same pod."""

import asyncio
from dataclasses import replace

import pytest

from agent.actuator.outcomes import Result
from agent.cri.events import EventKind
from agent.engine.aftermath import Patience
from agent.engine.recovery import Recovery
from agent.model.workloads import ContainerId, ContainerState
from tests.unit.actuator.conftest import POD, TARGET, rig
from tests.unit.engine.test_restarts import NOW, World, world

__all__ = ["rig", "world"]


def recovery(world: World, *, patience: float = 60.0) -> Recovery:
    """Recovery that waits for kubelet until the test says what kubelet does."""
    seconds = Patience(kubelet=patience, pod=patience)
    return Recovery(outside=world.outside, store=world.store, now=lambda: NOW, patience=seconds)


async def kubelet_shows(world: World, container: ContainerId) -> None:
    """Kubelet's status has the trainer running in this container."""
    view = world.pod.pods.pods()[POD.uid]
    specs = tuple(
        replace(spec, container_id=container, running=True) if spec.name == TARGET.name else spec
        for spec in view.containers
    )
    await world.pod.pods.put(replace(view, containers=specs))


async def killed_after_the_stop(world: World) -> None:
    """An agent has journalled a swap and killed the old container; then it died itself."""
    await world.store.begin(world.pod.rig.intent(created_at=NOW))
    await world.pod.rig.cri.stop_container(world.pod.rig.old, grace=0)


async def test_a_copy_that_kubelet_starts_on_an_old_look_is_resolved(world: World) -> None:
    await killed_after_the_stop(world)
    async with world.pod.rig.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(world).run())
        while (await events.get()).kind is not EventKind.STARTED:
            pass  # our successor
        copy = await world.pod.kubelet_starts(TARGET.name, attempt=2)  # it had seen our successor CREATED
        await kubelet_shows(world, copy)
        assert await taking_up == 1
    assert [view.id for view in await world.pod.rig.running()] == [copy]
    assert await world.store.unfinished() == ()


async def test_the_intent_stays_open_until_kubelet_agrees(world: World) -> None:
    await killed_after_the_stop(world)
    async with world.pod.rig.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(world).run())
        while (started := await events.get()).kind is not EventKind.STARTED:
            pass
        assert len(await world.store.unfinished()) == 1, "another death now must not forget it"
        await kubelet_shows(world, started.container_id)
        await taking_up
    assert await world.store.unfinished() == ()


async def test_a_kubelet_that_is_away_does_not_hold_up_the_agent_for_ever(world: World) -> None:
    await killed_after_the_stop(world)
    assert await recovery(world, patience=0.0).run() == 1
    assert await world.store.unfinished() == ()
    (running,) = await world.pod.rig.running()
    assert running.restart_id is not None


@pytest.mark.parametrize("grace", [1e20, float("inf")])
async def test_a_grace_period_that_an_older_agent_has_let_pass_is_carried_out(world: World, grace: float) -> None:
    await world.store.begin(world.pod.rig.intent(created_at=NOW, grace_seconds=grace))
    assert await recovery(world, patience=0.0).run() == 1
    assert await world.store.unfinished() == ()
    (running,) = await world.pod.rig.running()
    assert running.restart_id is not None


async def test_what_could_not_be_restarted_is_not_waited_for(world: World) -> None:
    """The successor has run and ended: that is kubelet's to handle, by the pod's own policy."""
    intent = world.pod.rig.intent(created_at=NOW)
    await killed_after_the_stop(world)
    material = await world.pod.rig.material(intent)
    outcome = await world.pod.rig.actuator().carry_out(intent, material=material)
    assert outcome.result is Result.SWAPPED
    world.pod.rig.server.runtime.exit(outcome.survivors[TARGET.name], exit_code=1)
    assert await recovery(world).run() == 1
    assert {view.state for view in await world.pod.rig.containers()} == {ContainerState.EXITED}
    assert await world.store.unfinished() == ()


async def lost_successor(world: World) -> None:
    """A successor waits beside the old container, and no journal knows of it."""
    rig = world.pod.rig
    material = await rig.material(rig.intent())
    await rig.cri.create_container(
        sandbox_id=rig.sandbox_id, config=material.successor.config, sandbox_config=material.sandbox_config
    )


async def test_a_successor_of_a_pod_of_another_node_is_left_alone(world: World) -> None:
    await lost_successor(world)
    world.pod.pods.drop(POD.uid)
    assert await recovery(world).run() == 0
    assert len(await world.pod.rig.containers()) == 2


async def test_a_lost_successor_is_cleared_up_though_the_api_server_is_away(world: World) -> None:
    await lost_successor(world)
    world.pod.pods.drop(POD.uid)
    world.pod.pods.synced = False
    assert await recovery(world).run() == 1
    assert [view.id for view in await world.pod.rig.containers()] == [world.pod.rig.old]
