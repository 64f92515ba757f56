"""The check of a whole pod's restart after its end: it is repeated while two containers of one name may run."""

from typing import Any

import pytest

from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.restart import intents
from kubemend.agent.restarts import planning
from kubemend.agent.restarts.plan_execution import execution_of
from tests.environments.restarts import RestartEnv


@pytest.mark.parametrize("result", [Result.RERUN, Result.RESET])
async def test_check_that_is_repeated_keeps_the_result_of_the_restart(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch, result: Result
) -> None:
    execution = execution_of(env.dependencies, await planning.resume(env.dependencies, env.pod.intent()))
    theirs = await env.pod.kubelet_starts("trainer", attempt=1)
    checks = [Outcome(Result.UNFINISHED), Outcome(Result.RERUN, current={"trainer": theirs})]

    async def checked(intent: intents.PodIntent, **how: Any) -> Outcome:
        return checks.pop(0)

    monkeypatch.setattr(env.dependencies.actuators.pods, "carry_out", checked)
    unfinished = await execution.resolve(Outcome(result))
    assert unfinished.result is Result.UNFINISHED
    finished = await execution.resolve(unfinished)
    assert (finished.result, finished.current) == (result, {"trainer": theirs})


async def test_check_that_only_waits_for_long_is_not_repeated(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    execution = execution_of(env.dependencies, await planning.resume(env.dependencies, env.pod.intent()))

    async def waits(intent: intents.PodIntent, **how: Any) -> Outcome:
        return Outcome(Result.UNFINISHED)

    monkeypatch.setattr(env.dependencies.actuators.pods, "carry_out", waits)
    assert (await execution.resolve(Outcome(Result.RERUN))).result is Result.RERUN
