"""A member that stays behind its gang is told of, and nothing is done to it."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from controller.app.stragglers import CAUGHT_UP, STRAGGLER, Stragglers
from controller.gangs.stragglers import DEFAULT
from controller.model.samples import Sample
from tests.unit.controller import builders
from tests.unit.controller.app.stage import Stage

SIZE = 4


class Clock:
    """Time that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = builders.NOW

    def __call__(self) -> float:
        return self.now


def measured(index: int, *, clock: float) -> Sample:
    return Sample(builders.member(index).pod.uid, f"GPU-{index}", utilization=0.9, clock=clock, power=0.8)


async def test_a_slow_member_is_told_of_once_and_again_when_it_has_caught_up() -> None:
    stage, clock = Stage(builders.gang(SIZE)), Clock()
    watch = Stragglers(outside=replace(stage.outside, now=clock))

    def for_a_while(slow: float) -> None:
        for _ in range(int(DEFAULT.persists / 5) + 2):
            clock.now += 5.0
            watch.take([measured(index, clock=slow if index == 0 else 0.95) for index in range(SIZE)])
            watch.judge()

    for_a_while(0.4)
    assert stage.told.reasons == [STRAGGLER]
    labels = {"namespace": "team", "kind": "Job", "gang": "train"}
    gauge = stage.outside.metrics.stragglers.labels(**labels)
    assert gauge._value.get() == 1
    for_a_while(0.4)
    assert stage.told.reasons == [STRAGGLER]
    for_a_while(0.95)
    assert stage.told.reasons == [STRAGGLER, CAUGHT_UP]
    assert gauge._value.get() == 0
    assert stage.restarts.all == {}


async def test_samples_of_pods_that_nobody_knows_are_of_no_gang() -> None:
    stage = Stage(builders.gang(SIZE))
    stage.members.all.clear()
    watch = Stragglers(outside=stage.outside)
    watch.take([measured(0, clock=0.1)])
    watch.judge()
    assert stage.told.reasons == []


async def test_a_gang_that_is_no_more_leaves_no_series_behind() -> None:
    stage = Stage(builders.gang(SIZE))
    watch = Stragglers(outside=stage.outside)
    watch.take([measured(index, clock=0.9) for index in range(SIZE)])
    watch.judge()
    assert series(stage) == [("team", "Job", "train")]
    stage.members.all.clear()
    watch.judge()
    watch.judge()
    assert series(stage) == []


async def test_who_leads_no_more_shows_no_stragglers() -> None:
    stage = Stage(builders.gang(SIZE))
    watch = Stragglers(outside=stage.outside)
    watch.take([measured(index, clock=0.9) for index in range(SIZE)])
    watch.judge()
    judging = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    judging.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await judging
    assert series(stage) == []


def series(stage: Stage) -> list[tuple[str, ...]]:
    (metric,) = stage.outside.metrics.stragglers.collect()
    return [tuple(sample.labels.values()) for sample in metric.samples]


async def test_a_gang_that_cannot_be_judged_for_a_defect_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(builders.gang(SIZE))
    watch = Stragglers(outside=stage.outside)
    watch.take([measured(index, clock=0.9) for index in range(SIZE)])
    other = replace(builders.GANG, name="other")
    watch._watches = {other: Broken(), **watch._watches}  # type: ignore[dict-item]
    of_gang = stage.members.of_gang
    monkeypatch.setattr(stage.members, "of_gang", lambda key: of_gang(builders.GANG if key == other else key))
    watch.judge()
    assert series(stage) == [("team", "Job", "train")]


class Broken:
    """A watch that cannot judge."""

    def judged(self, *_: object, **__: object) -> None:
        raise IndexError
