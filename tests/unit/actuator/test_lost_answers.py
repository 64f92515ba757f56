"""Calls that took effect although the answer is an error, with every code, at every call of every strategy.

The runtime is listed again and the rule continues from there: nothing is done twice, and nothing that belongs to a
start is left out.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from kubemend.agent.actuator import plan_runner
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerState, ExecHook
from kubemend.agent.restart import intents
from kubemend.agent.restart.intents import Strategy
from tests.environments import call_errors, pod_env
from tests.environments.pod_env import LASTING, PodEnv
from tests.environments.runtime import CriEnv

CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
HOOK = ExecHook(("touch", "/tmp/started"))

codes = pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)


@pytest.fixture
async def pod(cri_env: CriEnv) -> AsyncIterator[PodEnv]:
    for name in pod_env.ROLES:
        (cri_env.directory / "logs" / name).mkdir(exist_ok=True)
        (cri_env.directory / "logs" / name / "1.log").touch()
    async with pod_env.made(cri_env) as made:
        yield made


async def swapped(cri_env: CriEnv, *, order: intents.SwapOrder = intents.SwapOrder.STOP_FIRST) -> Outcome:
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent, post_start=HOOK)
    cri_env.server.calls.clear()
    return await cri_env.actuator().carry_out(intent, successor_spec=successor_spec)


def hooks_run(cri_env: CriEnv) -> list[Any]:
    return [call.request.container_id for call in cri_env.server.calls if call.method == "ExecSync"]  # type: ignore[attr-defined]


@call_errors.of_swaps(CODES)
async def test_swap_with_a_lost_answer_completes(
    cri_env: CriEnv, method: str, code: grpc.StatusCode, order: intents.SwapOrder
) -> None:
    cri_env.server.fail(method, code, carried_out=True)
    outcome = await swapped(cri_env, order=order)
    assert outcome.result is Result.SWAPPED
    (current,) = await cri_env.running()
    assert (current.attempt, current.restart_id) == (1, "r1")
    assert not [view for view in await cri_env.containers() if view.state is ContainerState.CREATED]
    made = [call.request for call in cri_env.server.calls if call.method == "CreateContainer"]
    assert [request.config.metadata.attempt for request in made].count(1) <= 2  # type: ignore[attr-defined]
    (link,) = cri_env.links.iterdir()
    assert link.name.endswith(f"{current.id}.log")
    assert hooks_run(cri_env) == [current.id]


@pytest.mark.parametrize("method", ["RemoveContainer", "CreateContainer", "StartContainer", "ListContainers"])
@codes
async def test_rerun_with_a_lost_answer_completes(pod: PodEnv, method: str, code: grpc.StatusCode) -> None:
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent, post_start=HOOK)
    pod.cri_env.server.calls.clear()
    pod.cri_env.server.fail(method, code, carried_out=True)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.RERUN
    running = await pod.running()
    assert {name: len(ids) for name, ids in running.items()} == dict.fromkeys(LASTING, 1)
    assert not [view for view in await pod.containers() if view.state is ContainerState.CREATED]
    for (container,) in running.values():
        assert hooks_run(pod.cri_env).count(container) == 1
        assert [link for link in pod.cri_env.links.iterdir() if link.name.endswith(f"{container}.log")]


@pytest.mark.parametrize("method", ["RemoveContainer", "ListContainers"])
@codes
async def test_reset_with_a_lost_answer_completes(pod: PodEnv, method: str, code: grpc.StatusCode) -> None:
    pod.cri_env.server.fail(method, code, carried_out=True)
    outcome = await pod.actuator().carry_out(pod.intent(strategy=Strategy.RESET))
    assert outcome.result is Result.RESET
    assert await pod.containers() == ()


@pytest.mark.parametrize("method", ["StopContainer", "ListContainers"])
@codes
async def test_rules_with_a_lost_answer_kill_the_trigger(pod: PodEnv, method: str, code: grpc.StatusCode) -> None:
    pod.cri_env.server.fail(method, code, carried_out=True)
    outcome = await pod.actuator().carry_out(pod.intent(strategy=Strategy.RULES, trigger=pod.old["trainer"]))
    assert outcome.result is Result.TRIGGERED
    assert set(await pod.running()) == {"shipper", "logger"}


@pytest.mark.parametrize(
    ("method", "order", "result", "left"),
    [
        ("stop_container", intents.SwapOrder.STOP_FIRST, Result.UNDONE, {0: ContainerState.RUNNING}),
        ("stop_container", intents.SwapOrder.CREATE_FIRST, Result.UNDONE, {0: ContainerState.RUNNING}),
        (
            "start_container",
            intents.SwapOrder.STOP_FIRST,
            Result.FAILED,
            {0: ContainerState.EXITED, 1: ContainerState.CREATED},
        ),
    ],
    ids=["stop", "stop-next-to-the-successor", "start"],
)
async def test_call_that_is_reported_as_done_without_effect_is_given_up(
    cri_env: CriEnv,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    order: intents.SwapOrder,
    result: Result,
    left: dict[int, ContainerState],
) -> None:
    """The successor is removed if the old container runs, and otherwise left to kubelet."""
    calls = []

    async def claims(*_: object, **__: object) -> None:
        calls.append(method)

    monkeypatch.setattr(plan_runner, "_MOST_REPEATS", 4)
    monkeypatch.setattr(cri_env.cri, method, claims)
    async with asyncio.timeout(30):
        outcome = await swapped(cri_env, order=order)
    assert (outcome.result, len(calls)) == (result, 5)
    assert outcome.detail.endswith("the runtime reports success, but nothing changes")
    assert {view.attempt: view.state for view in await cri_env.containers()} == left
