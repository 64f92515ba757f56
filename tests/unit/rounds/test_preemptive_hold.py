"""Hold what kubelet starts for a failed member until the controller decides about the gang."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.rounds.order_resolver import NodePolicy
from kubemend.common.coordination import StepPhase
from tests import eventually
from tests.unit.actuator.conftest import POD, rig
from tests.unit.rounds.test_participant import World, world

__all__ = ["rig", "world"]


async def failed(world: World, name: str = "logger") -> ContainerSummary:
    """One container of the pod has failed."""
    await world.exits(name, code=1)
    return next(view for view in world.pod.rig.watch.containers() if view.id == world.pod.old[name])


@contextlib.asynccontextmanager
async def caught(world: World) -> AsyncIterator[ContainerId]:
    """A container has failed, and what kubelet started in its place is held."""
    async with world.rounds.guarding(await failed(world)):
        theirs = await world.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: world.freezer.still() == {theirs})
        yield theirs


async def test_preemptive_hold_lasts_until_hub_answers(world: World) -> None:
    async with caught(world) as theirs:
        assert world.freezer.waiting == set(), "the freezer has taken over"
    assert world.freezer.still() == set()
    assert theirs in (await world.pod.running())["logger"]


async def test_preemptive_hold_taken_over_by_round_never_runs(world: World) -> None:
    view = await failed(world)
    async with world.rounds.guarding(view) as taken_over:
        theirs = await world.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: world.freezer.still() == {theirs})
        told = world.order()
        await eventually.true(taken_over.is_set)
    assert (await told.next()).phase is StepPhase.STOPPED
    newest = await world.newest()
    assert world.freezer.still() == {newest["trainer"], newest["logger"]}
    assert newest["logger"] != theirs
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    assert theirs not in world.freezer.let_go


async def test_preemptive_hold_of_unstarted_container_is_taken_over(world: World) -> None:
    async with world.rounds.guarding(await failed(world)) as taken_over:
        theirs = await world.pod.kubelet_starts("logger", attempt=1, start=False)
        await eventually.true(lambda: world.freezer.waiting == {theirs})
        told = world.order(strategy="no such strategy")
        await eventually.true(taken_over.is_set)
    assert (await told.next()).phase is StepPhase.REFUSED
    assert world.freezer.waiting == set()


async def test_preemptive_hold_ends_when_order_is_refused(world: World) -> None:
    async with caught(world) as theirs:
        told = world.order(strategy="no such strategy")
        assert (await told.next()).phase is StepPhase.REFUSED
        assert world.freezer.still() == set()
        assert theirs in (await world.pod.running())["logger"]


async def test_preemptive_hold_catches_container_started_before_it(world: World) -> None:
    view = await failed(world)
    theirs = await world.pod.kubelet_starts("logger", attempt=1)
    await eventually.true(lambda: any(each.id == theirs for each in world.pod.rig.watch.containers()))
    async with world.rounds.guarding(view):
        await eventually.true(lambda: world.freezer.still() == {theirs})


async def test_preemptive_hold_ignores_other_containers_of_pod(world: World) -> None:
    async with caught(world) as theirs:
        other = await world.pod.kubelet_starts("trainer", attempt=1)
        await eventually.true(lambda: any(view.id == other for view in world.pod.rig.watch.containers()))
        assert world.freezer.ever == [theirs]


async def test_preemptive_hold_ignores_deleted_pod(world: World) -> None:
    async with caught(world):
        await world.pod.pods.put(replace(world.pod.pods.pods()[POD.uid], deleting=True))
        await eventually.true(lambda: world.freezer.still() == set())


async def test_preemptive_hold_requires_opt_in_and_capability(world: World) -> None:
    view = await failed(world)
    await world.annotate()
    async with world.rounds.guarding(view):
        await world.pod.kubelet_starts("logger", attempt=1)
    await world.annotate(restart="InPlace")
    await world.die()
    world.bounds = NodePolicy(obstacle="no cgroup version 2")
    await world.start()
    async with world.rounds.guarding(view):
        await world.pod.kubelet_starts("logger", attempt=2)
    assert world.freezer.ever == []


@pytest.mark.parametrize("has_started", [False, True])
async def test_preemptive_hold_covers_two_containers_that_fail_together(world: World, has_started: bool) -> None:
    """One takes the other down. What kubelet starts is held whether its start event comes before or after."""
    logger, trainer = await failed(world), await failed(world, "trainer")
    async with world.rounds.guarding(logger):
        first = await world.pod.kubelet_starts("logger", attempt=1)
        second = await world.pod.kubelet_starts("trainer", attempt=1) if has_started else None
        await eventually.true(lambda: {first, second or first} <= {view.id for view in started(world)})
        async with world.rounds.guarding(trainer):
            second = second or await world.pod.kubelet_starts("trainer", attempt=1)
            await eventually.true(lambda: world.freezer.still() == {first, second})
    assert world.freezer.still() == set()


async def test_preemptive_hold_of_each_failure_ends_with_its_answer(world: World) -> None:
    logger, trainer = await failed(world), await failed(world, "trainer")
    theirs = {name: await world.pod.kubelet_starts(name, attempt=1) for name in ("logger", "trainer")}
    await eventually.true(lambda: set(theirs.values()) <= {view.id for view in started(world)})
    async with world.rounds.guarding(trainer):
        async with world.rounds.guarding(logger):
            await eventually.true(lambda: world.freezer.still() == set(theirs.values()))
        assert world.freezer.still() == {theirs["trainer"]}


async def test_preemptive_hold_round_takes_over_all_failures(world: World) -> None:
    logger, trainer = await failed(world), await failed(world, "trainer")
    async with world.rounds.guarding(logger) as one, world.rounds.guarding(trainer) as other:
        theirs = {await world.pod.kubelet_starts(name, attempt=1) for name in ("logger", "trainer")}
        await eventually.true(lambda: world.freezer.still() == theirs)
        told = world.order()
        await eventually.true(lambda: one.is_set() and other.is_set())
    assert (await told.next()).phase is StepPhase.STOPPED
    assert len(world.freezer.still()) == len(theirs)
    assert not world.freezer.still() & theirs
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    assert not theirs & world.freezer.let_go.keys()


async def test_preemptive_hold_covers_second_failure_before_answer(world: World) -> None:
    view = await failed(world)
    async with world.rounds.guarding(view):
        async with world.rounds.guarding(view):
            pass
        theirs = await world.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: world.freezer.still() == {theirs})


def started(world: World) -> list[ContainerSummary]:
    """Return the containers that are known to run."""
    return [view for view in world.pod.rig.watch.containers() if view.state is ContainerState.RUNNING]
