"""What kubelet starts in the place of a member that has failed, before anybody has said what becomes of the gang."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agent.engine.orders import Bounds
from agent.model.rounds import Phase
from agent.model.workloads import ContainerId, ContainerState, ContainerView
from tests import eventually
from tests.unit.actuator.conftest import POD, rig
from tests.unit.engine.test_rounds import World, world

__all__ = ["rig", "world"]


async def failed(world: World, name: str = "logger") -> ContainerView:
    """One container of the pod has failed."""
    await world.exits(name, code=1)
    return next(view for view in world.pod.rig.watch.containers() if view.id == world.pod.old[name])


@contextlib.asynccontextmanager
async def caught(world: World) -> AsyncIterator[ContainerId]:
    """A container has failed, and what kubelet has started in its place stands still."""
    async with world.rounds.guarding(await failed(world)):
        theirs = await world.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: world.freezer.still() == {theirs})
        yield theirs


async def test_it_stands_still_until_somebody_has_said_what_becomes_of_it(world: World) -> None:
    async with caught(world) as theirs:
        assert world.freezer.waiting == set(), "the freezer has taken over"
    assert world.freezer.still() == set()
    assert theirs in (await world.pod.running())["logger"]


async def test_a_round_takes_it_over_and_it_never_runs(world: World) -> None:
    view = await failed(world)
    async with world.rounds.guarding(view) as taken_over:
        theirs = await world.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: world.freezer.still() == {theirs})
        told = world.order()
        await eventually.true(taken_over.is_set)
    assert (await told.next()).phase is Phase.STOPPED
    newest = await world.newest()
    assert world.freezer.still() == {newest["trainer"], newest["logger"]}
    assert newest["logger"] != theirs
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING
    assert theirs not in world.freezer.let_go


async def test_one_that_has_yet_to_start_is_taken_over_as_well(world: World) -> None:
    async with world.rounds.guarding(await failed(world)) as taken_over:
        theirs = await world.pod.kubelet_starts("logger", attempt=1, start=False)
        await eventually.true(lambda: world.freezer.waiting == {theirs})
        told = world.order(strategy="no such strategy")
        await eventually.true(taken_over.is_set)
    assert (await told.next()).phase is Phase.REFUSED
    assert world.freezer.waiting == set()


async def test_an_order_that_is_refused_lets_it_go(world: World) -> None:
    async with caught(world) as theirs:
        told = world.order(strategy="no such strategy")
        assert (await told.next()).phase is Phase.REFUSED
        assert world.freezer.still() == set()
        assert theirs in (await world.pod.running())["logger"]


async def test_one_that_was_started_before_anybody_looked_is_caught_up_with(world: World) -> None:
    view = await failed(world)
    theirs = await world.pod.kubelet_starts("logger", attempt=1)
    await eventually.true(lambda: any(each.id == theirs for each in world.pod.rig.watch.containers()))
    async with world.rounds.guarding(view):
        await eventually.true(lambda: world.freezer.still() == {theirs})


async def test_what_else_runs_in_the_pod_is_left_alone(world: World) -> None:
    async with caught(world) as theirs:
        other = await world.pod.kubelet_starts("trainer", attempt=1)
        await eventually.true(lambda: any(view.id == other for view in world.pod.rig.watch.containers()))
        assert world.freezer.ever == [theirs]


async def test_of_a_pod_that_is_being_deleted_nothing_is_held(world: World) -> None:
    async with caught(world):
        await world.pod.pods.put(replace(world.pod.pods.pods()[POD.uid], deleting=True))
        await eventually.true(lambda: world.freezer.still() == set())


async def test_nothing_is_held_of_a_pod_that_has_not_opted_in_or_where_nothing_can_be(world: World) -> None:
    view = await failed(world)
    await world.annotate()
    async with world.rounds.guarding(view):
        await world.pod.kubelet_starts("logger", attempt=1)
    await world.annotate(restart="InPlace")
    await world.die()
    world.bounds = Bounds(obstacle="no cgroup version 2")
    await world.start()
    async with world.rounds.guarding(view):
        await world.pod.kubelet_starts("logger", attempt=2)
    assert world.freezer.ever == []


@pytest.mark.parametrize("has_started", [False, True])
async def test_of_two_containers_of_a_pod_that_fail_together_neither_runs(world: World, has_started: bool) -> None:
    """One takes the other down. What kubelet starts is held whether its start is told before or after."""
    logger, trainer = await failed(world), await failed(world, "trainer")
    async with world.rounds.guarding(logger):
        first = await world.pod.kubelet_starts("logger", attempt=1)
        second = await world.pod.kubelet_starts("trainer", attempt=1) if has_started else None
        await eventually.true(lambda: {first, second or first} <= {view.id for view in started(world)})
        async with world.rounds.guarding(trainer):
            second = second or await world.pod.kubelet_starts("trainer", attempt=1)
            await eventually.true(lambda: world.freezer.still() == {first, second})
    assert world.freezer.still() == set()


async def test_of_two_that_fail_each_is_let_go_by_its_own_answer(world: World) -> None:
    logger, trainer = await failed(world), await failed(world, "trainer")
    theirs = {name: await world.pod.kubelet_starts(name, attempt=1) for name in ("logger", "trainer")}
    await eventually.true(lambda: set(theirs.values()) <= {view.id for view in started(world)})
    async with world.rounds.guarding(trainer):
        async with world.rounds.guarding(logger):
            await eventually.true(lambda: world.freezer.still() == set(theirs.values()))
        assert world.freezer.still() == {theirs["trainer"]}


async def test_a_round_takes_over_all_that_have_failed(world: World) -> None:
    logger, trainer = await failed(world), await failed(world, "trainer")
    async with world.rounds.guarding(logger) as one, world.rounds.guarding(trainer) as other:
        theirs = {await world.pod.kubelet_starts(name, attempt=1) for name in ("logger", "trainer")}
        await eventually.true(lambda: world.freezer.still() == theirs)
        told = world.order()
        await eventually.true(lambda: one.is_set() and other.is_set())
    assert (await told.next()).phase is Phase.STOPPED
    assert len(world.freezer.still()) == len(theirs)
    assert not world.freezer.still() & theirs
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING
    assert not theirs & world.freezer.let_go.keys()


async def test_one_that_fails_again_before_there_is_an_answer_is_held_already(world: World) -> None:
    view = await failed(world)
    async with world.rounds.guarding(view):
        async with world.rounds.guarding(view):
            pass
        theirs = await world.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: world.freezer.still() == {theirs})


def started(world: World) -> list[ContainerView]:
    """Return what is known to run."""
    return [view for view in world.pod.rig.watch.containers() if view.state is ContainerState.RUNNING]
