"""The plan of a restart empties the cache of a container that failed early twice in a row, and so does its replay."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.actuator.cache_cleanup import Emptying, Result
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.restart import admission, cache
from kubemend.agent.restart.counts import Begun
from kubemend.agent.restart.overrides import RestartOverrides
from kubemend.agent.restarts import planning
from kubemend.agent.restarts.requests import Request
from kubemend.common import cache_volume
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET

PATH = f"{POD.uid}/volumes/kubernetes.io~empty-dir/{cache_volume.NAME}"
OPTED_IN = {"kubemend.io/restart": "InPlace"}
BOTH = frozenset({"trainer", "logger"})
EMPTIED = "cache of trainer emptied after 2 early failures (7 files removed)"


class FakeCleaner:
    """Records what it was asked to empty."""

    def __init__(self) -> None:
        self.used: list[cache.Place] = []

    async def empty(self, place: cache.Place) -> Emptying:
        self.used.append(place)
        return Emptying(Result.EMPTIED, "7 files removed")


@pytest.fixture
def cleaner(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> FakeCleaner:
    """Have every container mount the cache volume."""
    for container in env.pod.old.values():
        mount = api_pb2.Mount(container_path=cache_volume.PATH, host_path=f"/var/lib/kubelet/pods/{PATH}")
        env.pod.cri_env.server.runtime.containers[container].config.mounts.append(mount)
    fake = FakeCleaner()
    monkeypatch.setattr(env.dependencies.actuators.tools.caches, "empty", fake.empty)
    return fake


async def died_young(env: RestartEnv, *, times: int, names: frozenset[str] = frozenset({TARGET.name})) -> None:
    for number in range(times):
        at = NOW - 10.0 * (times - number)
        counted = Begun(POD.uid, names, at=at, fault_at=at - 0.1)
        intent = env.pod.cri_env.intent(id=f"earlier-{number}", created_at=at)
        await env.store.begin(intent, counted=counted)
        await env.store.finish(intent.id, outcome="Swapped", now=at)


@pytest.mark.parametrize("strategy", ["swap", "rerun"])
async def test_second_young_death_in_a_row_empties_cache(env: RestartEnv, cleaner: FakeCleaner, strategy: str) -> None:
    await died_young(env, times=2)
    condition = await env.ask(strategy=strategy)
    assert condition.status is ConditionStatus.TRUE
    assert f"; {EMPTIED}; " in condition.message
    assert cleaner.used == [cache.Place(cache.Volume("/var/lib/kubelet/pods", PATH), "trainer")]


@pytest.mark.parametrize(
    ("times", "annotations"),
    [(0, {}), (1, {}), (2, {"keep-cache": "true"}), (2, {"cache": "Off"})],
    ids=["first", "second", "opted out", "without volume"],
)
async def test_cache_is_kept_otherwise(
    env: RestartEnv, cleaner: FakeCleaner, times: int, annotations: dict[str, str]
) -> None:
    await died_young(env, times=times)
    condition = await env.ask(strategy="swap", **annotations)
    assert condition.status is ConditionStatus.TRUE
    assert "cache" not in condition.message
    assert cleaner.used == []


@pytest.mark.parametrize(
    ("asked", "containers"),
    [(RestartOverrides(), set()), (RestartOverrides(by_round=True, containers=frozenset({"trainer", "logger"})), BOTH)],
    ids=["a person", "a round"],
)
async def test_requested_restart_keeps_the_cache_and_a_rounds_restart_empties_all_that_died(
    env: RestartEnv, cleaner: FakeCleaner, asked: RestartOverrides, containers: set[str]
) -> None:
    """A round does not know which container was at fault."""
    await died_young(env, times=2, names=BOTH)
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], annotations=OPTED_IN))
    cause = admission.Cause(code="Round", message="a round", happened_at=NOW)
    async with env.kubelet():
        await env.restarts.submit(Request(target=TARGET, cause=lambda: cause, devices=frozenset(), asked=asked))
    assert {place.container for place in cleaner.used} == containers


async def test_container_that_is_swapped_along_keeps_its_cache(env: RestartEnv, cleaner: FakeCleaner) -> None:
    await died_young(env, times=2, names=BOTH)
    await env.ask(strategy="swap", containers="trainer,logger")
    assert {place.container for place in cleaner.used} == {"trainer"}


@pytest.mark.parametrize("after", [0, 2])
async def test_resumed_swap_empties_as_it_was_decided(env: RestartEnv, cleaner: FakeCleaner, after: int) -> None:
    """Whatever the annotations and the counts are by now."""
    del cleaner
    plan = await planning.resume(env.dependencies, env.pod.cri_env.intent(created_at=NOW, empty_cache_after=after))
    emptyings = [spec.emptying for spec in plan.specs.values() if spec.emptying is not None]
    assert [emptying.early_failures for emptying in emptyings] == ([after] if after else [])
    assert plan.bare().specs == {}


async def test_decision_is_in_the_journal(env: RestartEnv, cleaner: FakeCleaner) -> None:
    """So that the next agent empties the cache if this one dies."""
    del cleaner
    await died_young(env, times=2)
    begun: list[Any] = []
    begin = env.store.begin

    async def noted(*intents: Any, **named: Any) -> None:
        begun.extend(intents)
        await begin(*intents, **named)

    env.store.begin = noted  # type: ignore[method-assign]
    await env.ask(strategy="swap")
    assert [each.empty_cache_after for each in begun] == [2]
