"""The results of a pod's request that its successor imports while the old program dies."""

import pytest

from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.restart import overlap
from kubemend.agent.restart.overlap import Obstacle
from kubemend.agent.restarts import planning
from tests.environments.restarts import NOW, RestartEnv


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, Obstacle.NO_STANDBY),
        ({"keep": "/a"}, Obstacle.CLEANS),
        ({"clean": "shm"}, Obstacle.CLEANS),
        ({"containers": "trainer,logger"}, Obstacle.SEVERAL_CONTAINERS),
    ],
    ids=["alone", "keeps", "cleans", "several"],
)
async def test_condition_has_the_reason_why_nothing_overlaps(
    env: RestartEnv, annotations: dict[str, str], expected: Obstacle
) -> None:
    condition = await env.ask(strategy="swap", overlap="imports", **annotations)
    assert condition.status is ConditionStatus.TRUE
    assert overlap.note("trainer", expected) in condition.message


async def test_condition_of_a_pod_without_the_annotation_has_no_overlap(env: RestartEnv) -> None:
    condition = await env.ask(strategy="swap")
    assert "import" not in condition.message


async def test_other_value_refuses_the_restart(env: RestartEnv) -> None:
    condition = await env.ask(strategy="swap", overlap="everything")
    assert condition.status is ConditionStatus.FALSE
    assert "kubemend.io/overlap" in condition.message


async def test_resumed_swap_overlaps_nothing(env: RestartEnv) -> None:
    plan = await planning.resume(env.dependencies, env.pod.cri_env.intent(created_at=NOW))
    (spec,) = plan.specs.values()
    assert spec.overlap_request is None
