"""Resets on the stand-in runtime: everything goes, nothing of ours comes."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from agent.actuator import progress, whole_pod
from agent.actuator.outcomes import Result
from agent.actuator.tools import LastWish
from agent.model.workloads import ContainerId, ExecHook
from agent.restart import steps
from agent.restart.intents import Strategy
from tests.unit.actuator import pod_rig
from tests.unit.actuator.conftest import Rig
from tests.unit.actuator.pod_rig import LASTING, PodRig
from tests.unit.actuator.test_rerun import CODES


@pytest.fixture
async def pod(rig: Rig) -> AsyncIterator[PodRig]:
    async with pod_rig.made(rig) as made:
        yield made


async def test_everything_goes_exited_ones_first_and_nothing_is_created(pod: PodRig) -> None:
    outcome = await pod.reset().carry_out(pod.intent(strategy=Strategy.RESET), last_wishes={})
    assert outcome.result is Result.RESET
    assert await pod.containers() == ()
    calls = pod.rig.server.calls
    removed = [call.request.container_id for call in calls if call.method == "RemoveContainer"]  # type: ignore[attr-defined]
    assert removed[0] == pod.old["prepare"]
    assert not {"CreateContainer", "StartContainer"} & set(pod.rig.server.called())


@pytest.mark.parametrize("method", ["RemoveContainer", "ListContainers"])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
async def test_any_error_of_any_call_still_clears_the_pod(pod: PodRig, method: str, code: grpc.StatusCode) -> None:
    pod.rig.server.fail(method, code)
    outcome = await pod.reset().carry_out(pod.intent(strategy=Strategy.RESET), last_wishes={})
    assert outcome.result is Result.RESET
    assert await pod.containers() == ()


async def test_a_main_that_kubelet_starts_too_early_goes_when_kubelet_has_seen_it(pod: PodRig) -> None:
    """Else kubelet would hear nothing of that, and leave the pod empty."""
    waiting = Waiting()
    early = await kubelet_starts_too_early(pod)
    work = asyncio.create_task(
        pod.reset().carry_out(pod.intent(strategy=Strategy.RESET), last_wishes={}, followed=waiting)
    )
    await waiting.waits.wait()
    assert early in {view.id for view in await pod.containers()}
    await pod.kubelet_says_running("trainer")
    assert (await work).result is Result.RESET
    assert await pod.containers() == ()


async def test_what_was_there_for_long_goes_whatever_kubelet_shows(
    pod: PodRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server may be away."""
    monkeypatch.setattr(whole_pod, "NOTICED_AFTER", 0.0)
    await kubelet_starts_too_early(pod)
    outcome = await pod.reset().carry_out(pod.intent(strategy=Strategy.RESET), last_wishes={})
    assert outcome.result is Result.RESET
    assert await pod.containers() == ()


async def kubelet_starts_too_early(pod: PodRig) -> ContainerId:
    """A main that has ended is restarted, while the restart of the pod begins."""
    await pod.rig.cri.remove_container(pod.old["trainer"])
    return await pod.kubelet_starts("trainer", attempt=1)


class Waiting:
    """Follows a restart. ``waits`` is set when it has begun to wait for kubelet, and looked again."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    def tell(self, event: progress.Event) -> None:
        if isinstance(event, progress.StepTaken) and event.step.why is steps.Why.NOT_SHOWN:
            self.waits.set()


async def test_what_kubelet_has_started_in_order_is_a_survivor(pod: PodRig) -> None:
    intent = pod.intent(strategy=Strategy.RESET)
    await pod.reset().carry_out(intent, last_wishes={})
    made: dict[str, ContainerId] = {}
    for name in pod_rig.ROLES:
        made[name] = await pod.kubelet_starts(name, attempt=1)
        if name == "prepare":
            await pod.rig.cri.stop_container(made[name], grace=0)  # ends with 137 unless its own end was first
            pod.rig.server.runtime.containers[made[name]].exit_code = 0
    outcome = await pod.reset().carry_out(intent, last_wishes={})
    assert outcome.survivors == made


async def test_pre_stop_hooks_need_no_config(pod: PodRig) -> None:
    intent = pod.intent(strategy=Strategy.RESET, grace_seconds=3.0)
    await pod.reset().carry_out(intent, last_wishes={"trainer": LastWish(ExecHook(("sync",)))})
    (call,) = [call.request for call in pod.rig.server.calls if call.method == "ExecSync"]
    assert call.container_id == pod.old["trainer"]  # type: ignore[attr-defined]


async def test_one_that_is_too_old_is_left_undone(pod: PodRig) -> None:
    intent = pod.intent(strategy=Strategy.RESET)
    outcome = await pod.reset().carry_out(intent, last_wishes={}, resolution=steps.Resolution.UNDO)
    assert outcome.result is Result.UNDONE
    assert set(await pod.running()) == set(LASTING)
