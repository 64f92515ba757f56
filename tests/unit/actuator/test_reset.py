"""Resets on the stand-in runtime: everything is removed, and the agent creates nothing."""

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from kubemend.agent.actuator import progress, whole_pod
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ExecHook
from kubemend.agent.restart import steps
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.successor_spec import PreStopHook
from tests.environments import pod_env
from tests.environments.pod_env import LASTING, PodEnv
from tests.environments.runtime import CriEnv
from tests.unit.actuator.test_rerun import CODES


@pytest.fixture
async def pod(cri_env: CriEnv) -> AsyncIterator[PodEnv]:
    async with pod_env.made(cri_env) as made:
        yield made


async def test_reset_removes_exited_containers_first_and_creates_nothing(pod: PodEnv) -> None:
    outcome = await pod.actuator().carry_out(pod.intent(strategy=Strategy.RESET))
    assert outcome.result is Result.RESET
    assert await pod.containers() == ()
    calls = pod.cri_env.server.calls
    removed = [call.request.container_id for call in calls if call.method == "RemoveContainer"]  # type: ignore[attr-defined]
    assert removed[0] == pod.old["prepare"]
    assert not {"CreateContainer", "StartContainer"} & set(pod.cri_env.server.called())


@pytest.mark.parametrize("method", ["RemoveContainer", "ListContainers"])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_reset_clears_the_pod_despite_any_call_error(pod: PodEnv, method: str, code: grpc.StatusCode) -> None:
    pod.cri_env.server.fail(method, code)
    outcome = await pod.actuator().carry_out(pod.intent(strategy=Strategy.RESET))
    assert outcome.result is Result.RESET
    assert await pod.containers() == ()


@pytest.mark.parametrize("strategy", [Strategy.RESET, Strategy.RERUN])
async def test_pod_whose_target_has_completed_is_left_alone(pod: PodEnv, strategy: Strategy) -> None:
    intent = pod.intent(strategy=strategy, completes=True)
    successor_specs = await pod.successor_specs(intent) if strategy is Strategy.RERUN else None
    pod.cri_env.server.runtime.exit(pod.old["trainer"], exit_code=0)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert (outcome.result, outcome.detail) == (
        Result.COMPLETED,
        "trainer ended with exit code 0; kubelet does the rest",
    )
    assert {view.id for view in await pod.in_sandbox()} == {*pod.old.values()}


@pytest.mark.parametrize(("completes", "code"), [(True, 1), (False, 0)])
async def test_pod_whose_target_has_not_completed_is_reset(pod: PodEnv, *, completes: bool, code: int) -> None:
    pod.cri_env.server.runtime.exit(pod.old["trainer"], exit_code=code)
    outcome = await pod.actuator().carry_out(pod.intent(strategy=Strategy.RESET, completes=completes))
    assert outcome.result is Result.RESET
    assert await pod.containers() == ()


async def test_target_that_completes_during_the_reset_is_not_removed(pod: PodEnv) -> None:
    """Another container is removed only when kubelet has seen it."""
    waiting = Waiting()
    intent = pod.intent(strategy=Strategy.RESET, completes=True)
    await pod.cri_env.cri.remove_container(pod.old["logger"])
    early = await pod.kubelet_starts("logger", attempt=1)
    work = asyncio.create_task(pod.actuator().carry_out(intent, followed=waiting))
    await waiting.waits.wait()
    pod.cri_env.server.runtime.exit(pod.old["trainer"], exit_code=0)
    assert (await work).result is Result.COMPLETED
    left = {view.id for view in await pod.containers()}
    assert {pod.old["trainer"], early} <= left


async def test_early_main_is_removed_once_kubelet_has_seen_it(pod: PodEnv) -> None:
    """Otherwise kubelet would not notice the removal, and leave the pod empty."""
    waiting = Waiting()
    early = await kubelet_starts_too_early(pod)
    work = asyncio.create_task(pod.actuator().carry_out(pod.intent(strategy=Strategy.RESET), followed=waiting))
    await waiting.waits.wait()
    assert early in {view.id for view in await pod.containers()}
    await pod.kubelet_says_running("trainer")
    assert (await work).result is Result.RESET
    assert await pod.containers() == ()


async def test_clock_that_is_set_forward_is_no_sign_that_kubelet_has_seen_a_container(
    pod: PodEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = await kubelet_starts_too_early(pod)
    kubelet, seen = whole_pod.KubeletView(pod.pods, pod.intent()), await pod.containers()
    assert early not in kubelet.noticed(seen)
    later = time.time() + 3600.0
    monkeypatch.setattr(time, "time", lambda: later)
    assert early not in kubelet.noticed(seen)


async def test_old_container_is_removed_whatever_kubelet_shows(pod: PodEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server may be unavailable."""
    monkeypatch.setattr(whole_pod, "NOTICED_AFTER", 0.0)
    await kubelet_starts_too_early(pod)
    outcome = await pod.actuator().carry_out(pod.intent(strategy=Strategy.RESET))
    assert outcome.result is Result.RESET
    assert await pod.containers() == ()


async def kubelet_starts_too_early(pod: PodEnv) -> ContainerId:
    """A main container that has ended is being restarted when the restart of the pod begins."""
    await pod.cri_env.cri.remove_container(pod.old["trainer"])
    return await pod.kubelet_starts("trainer", attempt=1)


class Waiting:
    """Follows a restart. ``waits`` is set when it waits for kubelet and has listed again."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    def notify(self, event: progress.Event) -> None:
        if isinstance(event, progress.StepTaken) and event.step.reason is steps.StepReason.NOT_SHOWN:
            self.waits.set()


async def test_container_started_by_kubelet_in_order_survives(pod: PodEnv) -> None:
    intent = pod.intent(strategy=Strategy.RESET)
    await pod.actuator().carry_out(intent)
    made: dict[str, ContainerId] = {}
    for name in pod_env.ROLES:
        made[name] = await pod.kubelet_starts(name, attempt=1)
        if name == "prepare":
            await pod.cri_env.cri.stop_container(made[name], grace=0)  # ends with 137 unless its own end was first
            pod.cri_env.server.runtime.containers[made[name]].exit_code = 0
    outcome = await pod.actuator().carry_out(intent)
    assert outcome.current == made


async def test_pre_stop_hooks_need_no_config(pod: PodEnv) -> None:
    intent = pod.intent(strategy=Strategy.RESET, grace_seconds=3.0)
    await pod.actuator().carry_out(intent, pre_stop_hooks={"trainer": PreStopHook(ExecHook(("sync",)))})
    (call,) = [call.request for call in pod.cri_env.server.calls if call.method == "ExecSync"]
    assert call.container_id == pod.old["trainer"]  # type: ignore[attr-defined]


async def test_expired_intent_is_undone(pod: PodEnv) -> None:
    intent = pod.intent(strategy=Strategy.RESET)
    outcome = await pod.actuator().carry_out(intent, resolution=steps.Resolution.UNDO)
    assert outcome.result is Result.UNDONE
    assert set(await pod.running()) == set(LASTING)
