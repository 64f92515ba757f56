"""The pod's own rules on the stand-in runtime: one kill, despite any failure."""

from collections.abc import AsyncIterator

import grpc
import pytest

from kubemend.agent.model.outcomes import Result
from kubemend.agent.restart import intents, steps
from kubemend.agent.restart.intents import Strategy
from tests.environments import pod_env
from tests.environments.pod_env import PodEnv
from tests.environments.runtime import CriEnv
from tests.unit.actuator.test_rerun import CODES


@pytest.fixture
async def pod(cri_env: CriEnv) -> AsyncIterator[PodEnv]:
    async with pod_env.made(cri_env) as made:
        yield made


def by_rules(pod: PodEnv) -> intents.PodIntent:
    return pod.intent(strategy=Strategy.RULES, trigger=pod.old["trainer"])


async def test_only_the_trigger_is_killed(pod: PodEnv) -> None:
    outcome = await pod.actuator().carry_out(by_rules(pod))
    assert outcome.result is Result.TRIGGERED
    assert set(await pod.running()) == {"shipper", "logger"}
    assert pod.cri_env.server.called().count("StopContainer") == 1
    assert "RemoveContainer" not in pod.cri_env.server.called()


@pytest.mark.parametrize("method", ["StopContainer", "ListContainers"])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_any_call_error_ends_in_the_kill(pod: PodEnv, method: str, code: grpc.StatusCode) -> None:
    pod.cri_env.server.fail(method, code)
    assert (await pod.actuator().carry_out(by_rules(pod))).result is Result.TRIGGERED
    assert "trainer" not in await pod.running()


@pytest.mark.parametrize("code", [0, 1, 143])
async def test_trigger_that_has_ended_by_itself_has_triggered_nothing(pod: PodEnv, code: int) -> None:
    pod.cri_env.server.runtime.exit(pod.old["trainer"], exit_code=code)
    outcome = await pod.actuator().carry_out(by_rules(pod))
    assert outcome.result is Result.TRIGGER_ENDED
    assert outcome.detail == f"trainer ended with exit code {code}; kubelet does the rest"
    assert "StopContainer" not in pod.cri_env.server.called()


@pytest.mark.parametrize(("code", "result"), [(0, Result.COMPLETED), (1, Result.TRIGGERED)])
async def test_target_that_has_completed_is_not_restarted_with_its_pod(pod: PodEnv, code: int, result: Result) -> None:
    intent = pod.intent(strategy=Strategy.RULES, trigger=pod.old["logger"], completes=True)
    pod.cri_env.server.runtime.exit(pod.old["trainer"], exit_code=code)
    assert (await pod.actuator().carry_out(intent)).result is result
    assert ("logger" in await pod.running()) is (result is Result.COMPLETED)


async def test_target_that_kubelet_has_replaced_is_not_killed(pod: PodEnv) -> None:
    pod.cri_env.server.runtime.exit(pod.old["trainer"], exit_code=1)
    theirs = await pod.kubelet_starts("trainer", attempt=1)
    outcome = await pod.actuator().carry_out(by_rules(pod))
    assert (outcome.result, outcome.current) == (Result.ALREADY_REPLACED, {"trainer": theirs})
    assert "StopContainer" not in pod.cri_env.server.called()


async def test_kill_without_effect_is_reported(pod: PodEnv) -> None:
    pod.cri_env.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=2)
    assert (await pod.actuator().carry_out(by_rules(pod))).result is Result.STUCK


async def test_replay_does_not_kill_the_successor(pod: PodEnv) -> None:
    await pod.actuator().carry_out(by_rules(pod))
    theirs = await pod.kubelet_starts("trainer", attempt=1)
    outcome = await pod.actuator().carry_out(by_rules(pod))
    assert (outcome.result, outcome.current) == (Result.TRIGGERED, {"trainer": theirs})


async def test_expired_intent_is_undone(pod: PodEnv) -> None:
    outcome = await pod.actuator().carry_out(by_rules(pod), resolution=steps.Resolution.UNDO)
    assert outcome.result is Result.UNDONE
    assert "trainer" in await pod.running()
