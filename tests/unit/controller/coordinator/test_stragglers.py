"""A member that lags behind its gang is only reported."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kubemend.controller.coordinator.stragglers import CAUGHT_UP, STRAGGLER, Stragglers
from kubemend.controller.gangs.stragglers import DEFAULT, Reading, Watch
from kubemend.controller.model.members import PodUid, Sample
from tests.unit.controller import builders
from tests.unit.controller.coordinator.env import CoordinatorEnv

SIZE = 4


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = builders.NOW

    def __call__(self) -> float:
        return self.now


def measured(index: int, *, clock: float) -> Sample:
    return Sample(builders.member(index).pod.uid, f"GPU-{index}", utilization=0.9, clock=clock, power=0.8)


async def test_slow_member_is_reported_once_and_when_caught_up() -> None:
    env, clock = CoordinatorEnv(builders.gang(SIZE)), Clock()
    watch = Stragglers(dependencies=replace(env.dependencies, now=clock))

    def for_a_while(slow: float) -> None:
        for _ in range(int(DEFAULT.persists / 5) + 2):
            clock.now += 5.0
            watch.record([measured(index, clock=slow if index == 0 else 0.95) for index in range(SIZE)])
            watch.judge()

    for_a_while(0.4)
    assert env.events.reasons == [STRAGGLER]
    labels = {"namespace": "team", "kind": "Job", "gang": "train"}
    gauge = env.dependencies.metrics.stragglers.labels(**labels)
    assert gauge._value.get() == 1
    for_a_while(0.4)
    assert env.events.reasons == [STRAGGLER]
    for_a_while(0.95)
    assert env.events.reasons == [STRAGGLER, CAUGHT_UP]
    assert gauge._value.get() == 0
    assert env.restarts.all == {}


async def test_measurements_of_all_agents_are_taken_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, those of five thousand agents in one gang took four of every five seconds."""
    env = CoordinatorEnv(builders.gang(SIZE))
    watch = Stragglers(dependencies=env.dependencies)
    taken: list[int] = []
    seen = Watch.seen

    def counted(self: Watch, fresh: Mapping[PodUid, Reading]) -> Watch:
        taken.append(len(fresh))
        return seen(self, fresh)

    monkeypatch.setattr(Watch, "seen", counted)
    for index in range(SIZE):
        watch.record([measured(index, clock=0.9)])
    assert taken == []
    watch.judge()
    assert taken == [SIZE]


async def test_samples_of_unknown_pods_are_ignored() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    env.members.all.clear()
    watch = Stragglers(dependencies=env.dependencies)
    watch.record([measured(0, clock=0.1)])
    watch.judge()
    assert env.events.reasons == []


async def test_gang_without_members_leaves_no_series() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    watch = Stragglers(dependencies=env.dependencies)
    watch.record([measured(index, clock=0.9) for index in range(SIZE)])
    watch.judge()
    assert series(env) == [("team", "Job", "train")]
    env.members.all.clear()
    watch.judge()
    watch.judge()
    assert series(env) == []


async def test_replica_without_leadership_exports_no_stragglers() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    watch = Stragglers(dependencies=env.dependencies)
    watch.record([measured(index, clock=0.9) for index in range(SIZE)])
    watch.judge()
    judging = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    judging.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await judging
    assert series(env) == []


def series(env: CoordinatorEnv) -> list[tuple[str, ...]]:
    (metric,) = env.dependencies.metrics.stragglers.collect()
    return [tuple(sample.labels.values()) for sample in metric.samples]


async def test_internal_error_in_one_gang_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    watch = Stragglers(dependencies=env.dependencies)
    watch.record([measured(index, clock=0.9) for index in range(SIZE)])
    other = replace(builders.GANG, name="other")
    watch._watches = {other: Broken(), **watch._watches}  # type: ignore[dict-item]
    of_gang = env.members.of_gang
    monkeypatch.setattr(env.members, "of_gang", lambda key: of_gang(builders.GANG if key == other else key))
    watch.judge()
    assert series(env) == [("team", "Job", "train")]


class Broken:
    """A watch that raises when it judges."""

    def judged(self, *_: object, **__: object) -> None:
        raise IndexError
