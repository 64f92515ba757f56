"""Hold what kubelet starts for a failed member until the controller decides about the gang."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.rounds.order_resolver import NodePolicy
from kubemend.common.coordination import StepPhase
from tests import eventually
from tests.environments.rounds import RoundEnv
from tests.environments.runtime import POD


async def failed(env: RoundEnv, name: str = "logger") -> ContainerSummary:
    """One container of the pod has failed."""
    await env.exits(name, code=1)
    return next(view for view in env.pod.cri_env.watch.containers() if view.id == env.pod.old[name])


@contextlib.asynccontextmanager
async def caught(env: RoundEnv) -> AsyncIterator[ContainerId]:
    """A container has failed, and what kubelet started in its place is held."""
    async with env.rounds.guarding(await failed(env)):
        theirs = await env.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: env.freezer.still() == {theirs})
        yield theirs


async def test_preemptive_hold_lasts_until_hub_answers(env: RoundEnv) -> None:
    async with caught(env) as theirs:
        assert env.freezer.waiting == set(), "the freezer has taken over"
    assert env.freezer.still() == set()
    assert theirs in (await env.pod.running())["logger"]


async def test_preemptive_hold_taken_over_by_round_never_runs(env: RoundEnv) -> None:
    view = await failed(env)
    async with env.rounds.guarding(view) as taken_over:
        theirs = await env.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: env.freezer.still() == {theirs})
        reported = env.order()
        await eventually.true(taken_over.is_set)
    assert (await reported.next()).phase is StepPhase.STOPPED
    newest = await env.newest()
    assert env.freezer.still() == {newest["trainer"], newest["logger"]}
    assert newest["logger"] != theirs
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert theirs not in env.freezer.released


async def test_preemptive_hold_of_unstarted_container_is_taken_over(env: RoundEnv) -> None:
    async with env.rounds.guarding(await failed(env)) as taken_over:
        theirs = await env.pod.kubelet_starts("logger", attempt=1, start=False)
        await eventually.true(lambda: env.freezer.waiting == {theirs})
        reported = env.order(strategy="no such strategy")
        await eventually.true(taken_over.is_set)
    assert (await reported.next()).phase is StepPhase.REFUSED
    assert env.freezer.waiting == set()


async def test_preemptive_hold_ends_when_order_is_refused(env: RoundEnv) -> None:
    async with caught(env) as theirs:
        reported = env.order(strategy="no such strategy")
        assert (await reported.next()).phase is StepPhase.REFUSED
        assert env.freezer.still() == set()
        assert theirs in (await env.pod.running())["logger"]


async def test_preemptive_hold_catches_container_started_before_it(env: RoundEnv) -> None:
    view = await failed(env)
    theirs = await env.pod.kubelet_starts("logger", attempt=1)
    await eventually.true(lambda: any(each.id == theirs for each in env.pod.cri_env.watch.containers()))
    async with env.rounds.guarding(view):
        await eventually.true(lambda: env.freezer.still() == {theirs})


async def test_preemptive_hold_ignores_other_containers_of_pod(env: RoundEnv) -> None:
    async with caught(env) as theirs:
        other = await env.pod.kubelet_starts("trainer", attempt=1)
        await eventually.true(lambda: any(view.id == other for view in env.pod.cri_env.watch.containers()))
        assert env.freezer.ever == [theirs]


async def test_preemptive_hold_ignores_deleted_pod(env: RoundEnv) -> None:
    async with caught(env):
        await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], deleting=True))
        await eventually.true(lambda: env.freezer.still() == set())


async def test_preemptive_hold_requires_opt_in_and_capability(env: RoundEnv) -> None:
    view = await failed(env)
    await env.annotate()
    async with env.rounds.guarding(view):
        await env.pod.kubelet_starts("logger", attempt=1)
    await env.annotate(restart="InPlace")
    await env.die()
    env.bounds = NodePolicy(obstacle="no cgroup version 2")
    await env.start()
    async with env.rounds.guarding(view):
        await env.pod.kubelet_starts("logger", attempt=2)
    assert env.freezer.ever == []


@pytest.mark.parametrize("has_started", [False, True])
async def test_preemptive_hold_covers_two_containers_that_fail_together(env: RoundEnv, has_started: bool) -> None:
    """One takes the other down. What kubelet starts is held whether its start event comes before or after."""
    logger, trainer = await failed(env), await failed(env, "trainer")
    async with env.rounds.guarding(logger):
        first = await env.pod.kubelet_starts("logger", attempt=1)
        second = await env.pod.kubelet_starts("trainer", attempt=1) if has_started else None
        await eventually.true(lambda: {first, second or first} <= {view.id for view in started(env)})
        async with env.rounds.guarding(trainer):
            second = second or await env.pod.kubelet_starts("trainer", attempt=1)
            await eventually.true(lambda: env.freezer.still() == {first, second})
    assert env.freezer.still() == set()


async def test_preemptive_hold_of_each_failure_ends_with_its_answer(env: RoundEnv) -> None:
    logger, trainer = await failed(env), await failed(env, "trainer")
    theirs = {name: await env.pod.kubelet_starts(name, attempt=1) for name in ("logger", "trainer")}
    await eventually.true(lambda: set(theirs.values()) <= {view.id for view in started(env)})
    async with env.rounds.guarding(trainer):
        async with env.rounds.guarding(logger):
            await eventually.true(lambda: env.freezer.still() == set(theirs.values()))
        assert env.freezer.still() == {theirs["trainer"]}


async def test_preemptive_hold_round_takes_over_all_failures(env: RoundEnv) -> None:
    logger, trainer = await failed(env), await failed(env, "trainer")
    async with env.rounds.guarding(logger) as one, env.rounds.guarding(trainer) as other:
        theirs = {await env.pod.kubelet_starts(name, attempt=1) for name in ("logger", "trainer")}
        await eventually.true(lambda: env.freezer.still() == theirs)
        reported = env.order()
        await eventually.true(lambda: one.is_set() and other.is_set())
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert len(env.freezer.still()) == len(theirs)
    assert not env.freezer.still() & theirs
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING
    assert not theirs & env.freezer.released.keys()


async def test_preemptive_hold_covers_second_failure_before_answer(env: RoundEnv) -> None:
    view = await failed(env)
    async with env.rounds.guarding(view):
        async with env.rounds.guarding(view):
            pass
        theirs = await env.pod.kubelet_starts("logger", attempt=1)
        await eventually.true(lambda: env.freezer.still() == {theirs})


def started(env: RoundEnv) -> list[ContainerSummary]:
    """Return the containers that are known to run."""
    return [view for view in env.pod.cri_env.watch.containers() if view.state is ContainerState.RUNNING]
