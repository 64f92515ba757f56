"""Orders for pods and devices that this node does not know, and duplicates that do not end."""

import asyncio

import grpc
import pytest

from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.model.workloads import Allocations
from kubemend.agent.rounds import participant, session
from kubemend.agent.rounds.pod_hold import PodHolder
from kubemend.common import aio
from kubemend.common.coordination import StepPhase
from tests.environments.rounds import RoundEnv
from tests.environments.runtime import POD


@pytest.mark.parametrize(
    ("synced", "lag"), [(True, 60.0), (False, 0.0)], ids=["the watch lags", "the pods are not listed yet"]
)
async def test_order_that_comes_before_its_pod_is_known_waits_for_it(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch, *, synced: bool, lag: float
) -> None:
    """Else the member counts as gone, and the gang waits for another pod."""
    monkeypatch.setattr(participant, "_LAG", lag)
    pods = env.pod.pods
    view = pods.pods()[POD.uid]
    await pods.gone(POD.uid)
    pods.synced = synced
    pods.waited.clear()
    reported = env.order()
    await pods.waited.wait()
    for _ in range(20):  # turns of the loop, in which one that does not wait would go on
        await asyncio.sleep(0)
    await pods.put(view)
    assert (await reported.next()).phase is StepPhase.STOPPED
    env.rounds.release("default/gang-1", [])
    assert (await reported.next()).phase is StepPhase.RUNNING


@pytest.mark.parametrize(
    ("held", "phase"),
    [(Allocations(), StepPhase.STOPPING), (Allocations(known=True), StepPhase.STOPPED)],
    ids=["unknown", "none"],
)
async def test_member_whose_devices_are_unknown_waits_on_a_node_with_an_unusable_one(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch, held: Allocations, phase: StepPhase
) -> None:
    """It may hold that one."""
    monkeypatch.setattr(session, "REPORT_INTERVAL", 0.01)
    env.needs_reset()
    env.holders.allocations = held
    reported = env.order()
    while (step_result := await reported.next()).phase is StepPhase.STOPPING and phase is StepPhase.STOPPED:
        pass
    assert step_result.phase is phase
    assert (await env.newest() == env.pod.old) is (phase is StepPhase.STOPPING)
    env.rounds.abort("default/gang-1", [], reason="over")


@pytest.mark.parametrize(
    ("code", "is_ended"), [(grpc.StatusCode.UNKNOWN, True), (grpc.StatusCode.DEADLINE_EXCEEDED, False)]
)
async def test_duplicate_counts_as_unkillable_only_after_kills_that_time_out(
    env: RoundEnv, monkeypatch: pytest.MonkeyPatch, *, code: grpc.StatusCode, is_ended: bool
) -> None:
    """One that is unkillable has the member recreated; a call that is refused is repeated."""
    monkeypatch.setattr(aio.Backoff, "next_wait", lambda _: 0.0)
    holder = PodHolder(
        POD,
        dependencies=env.restarts._dependencies,
        holding=HoldSet(env.freezer, mark=POD.uid),
        on_deleted=lambda: None,
    )
    env.pod.cri_env.server.fail("StopContainer", code, times=3)
    assert await holder.end(env.pod.old["trainer"]) is is_ended
