"""Replay what an agent that died left open, while kubelet works on the same pod."""

import asyncio
from dataclasses import replace

import pytest

from kubemend.agent.actuator.outcomes import Result
from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import reservations
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.verifier import Patience
from tests.unit.actuator.conftest import POD, TARGET, rig
from tests.unit.restarts.test_scheduler import NOW, World, world

__all__ = ["rig", "world"]


def recovery(world: World, *, patience: float = 60.0) -> Recovery:
    """Recovery that waits for kubelet until the test acts as kubelet."""
    seconds = Patience(kubelet=patience, pod=patience)
    return Recovery(outside=world.outside, store=world.store, now=lambda: NOW, patience=seconds)


async def kubelet_shows(world: World, container: ContainerId) -> None:
    """Set kubelet's status: the trainer runs in this container."""
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


async def reserved(world: World) -> list[ContainerSummary]:
    views = await world.pod.rig.cri.list_containers(sandbox_id=world.pod.rig.sandbox_id)
    return [view for view in views if reservations.reserves(view)]


async def kubelet_collects_reservations(world: World) -> None:
    """They look like garbage of a pod that kubelet does not know."""
    for view in await reserved(world):
        await world.pod.rig.cri.remove_container(view.id)


async def test_recovery_reserves_names_until_kubelet_shows_successor(world: World) -> None:
    await killed_after_the_stop(world)
    async with world.pod.rig.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(world).run())
        while (started := await events.get()).kind is not EventKind.STARTED:
            pass
        assert len(await reserved(world)) == 1
        await kubelet_shows(world, started.container_id)
        await taking_up
    assert await reserved(world) == []


async def test_recovery_resolves_duplicate_of_old_relist(world: World) -> None:
    await killed_after_the_stop(world)
    async with world.pod.rig.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(world).run())
        while (await events.get()).kind is not EventKind.STARTED:
            pass  # the successor
        await kubelet_collects_reservations(world)
        copy = await world.pod.kubelet_starts(TARGET.name, attempt=2)  # it had seen the successor in CREATED
        await kubelet_shows(world, copy)
        assert await taking_up == 1
    assert [view.id for view in await world.pod.rig.running()] == [copy]
    assert await world.store.unfinished() == ()


async def test_recovery_keeps_intent_open_until_kubelet_agrees(world: World) -> None:
    await killed_after_the_stop(world)
    async with world.pod.rig.watch.subscribe(POD.uid) as events:
        taking_up = asyncio.create_task(recovery(world).run())
        while (started := await events.get()).kind is not EventKind.STARTED:
            pass
        assert len(await world.store.unfinished()) == 1, "another death now must not forget it"
        await kubelet_shows(world, started.container_id)
        await taking_up
    assert await world.store.unfinished() == ()


async def test_recovery_with_silent_kubelet_times_out(world: World) -> None:
    await killed_after_the_stop(world)
    assert await recovery(world, patience=0.0).run() == 1
    assert await world.store.unfinished() == ()
    (running,) = await world.pod.rig.running()
    assert running.restart_id is not None


@pytest.mark.parametrize("grace", [1e20, float("inf")])
async def test_recovery_carries_out_expired_grace_period(world: World, grace: float) -> None:
    await world.store.begin(world.pod.rig.intent(created_at=NOW, grace_seconds=grace))
    assert await recovery(world, patience=0.0).run() == 1
    assert await world.store.unfinished() == ()
    (running,) = await world.pod.rig.running()
    assert running.restart_id is not None


async def test_recovery_does_not_wait_for_exited_successor(world: World) -> None:
    """The successor has run and ended: kubelet handles that by the pod's own policy."""
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
    """A successor waits next to the old container, without a journalled intent."""
    rig = world.pod.rig
    material = await rig.material(rig.intent())
    await rig.cri.create_container(
        sandbox_id=rig.sandbox_id, config=material.successor.config, sandbox_config=material.sandbox_config
    )


async def test_recovery_ignores_orphan_of_another_node(world: World) -> None:
    await lost_successor(world)
    world.pod.pods.drop(POD.uid)
    assert await recovery(world).run() == 0
    assert len(await world.pod.rig.containers()) == 2


async def test_recovery_removes_orphan_while_api_server_is_down(world: World) -> None:
    await lost_successor(world)
    world.pod.pods.drop(POD.uid)
    world.pod.pods.synced = False
    assert await recovery(world).run() == 1
    assert [view.id for view in await world.pod.rig.containers()] == [world.pod.rig.old]
