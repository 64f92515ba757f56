"""Clean shared memory before a successor runs: prepared for every strategy, and always reported."""

from dataclasses import replace

import pytest

from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.restart import intents
from kubemend.agent.restarts import planning, restart_plan
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET

_UNKNOWN_PLACE = "/dev/shm: not emptied: the runtime does not report its path"
_KUBELET_FIRST = "/dev/shm: not emptied: kubelet's container has run already"


@pytest.mark.parametrize(
    ("strategy", "notes"),
    [
        ("swap", [_UNKNOWN_PLACE]),
        ("rerun", [_UNKNOWN_PLACE, _KUBELET_FIRST]),  # in a rerun kubelet may be first
        ("reset", ["/dev/shm: not emptied: the successor did not wait for it"]),
    ],
)
async def test_cleanup_failed_does_not_block_start_and_is_reported(
    env: RestartEnv, strategy: str, notes: list[str]
) -> None:
    condition = await env.ask(strategy=strategy, clean="shm")
    assert condition.status is ConditionStatus.TRUE
    assert "because Xid 31; " in condition.message
    # kubelet may have run an init container, too, which is noted as well
    assert any(f"; {note}; " in condition.message for note in notes), condition.message
    assert condition.message.endswith("; verified")


async def test_cleanup_not_requested_leaves_no_note(env: RestartEnv) -> None:
    assert "/dev/shm" not in (await env.ask(strategy="swap")).message


async def resumed(env: RestartEnv, **annotations: str) -> restart_plan.RestartPlan:
    """Return the plan of an open swap that a previous agent left."""
    written = {f"kubemend.io/{key}": text for key, text in annotations.items()}
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], annotations=written))
    intent = env.pod.cri_env.intent(created_at=NOW, order=intents.SwapOrder.CREATE_FIRST)
    return await planning.resume(env.dependencies, intent)


async def test_cleanup_of_resumed_restart_runs(env: RestartEnv) -> None:
    assert (await resumed(env, clean="shm")).shm_cleanup is not None
    assert (await resumed(env)).shm_cleanup is None


@pytest.mark.parametrize("annotations", [{"containers": "trainer,logger"}, {"strategy": "of-tomorrow"}])
async def test_cleanup_of_resumed_restart_with_other_containers_is_skipped(
    env: RestartEnv, annotations: dict[str, str]
) -> None:
    assert (await resumed(env, clean="shm", **annotations)).shm_cleanup is None


async def test_cleanup_of_unlisted_pod_uses_sandbox_annotations(env: RestartEnv) -> None:
    sandboxes = env.pod.cri_env.server.runtime.sandboxes
    sandboxes[env.pod.cri_env.sandbox_id].config.annotations["kubemend.io/clean"] = "shm"
    env.pod.pods._pods.clear()
    plan = await planning.resume(env.dependencies, env.pod.cri_env.intent(created_at=NOW))
    assert plan.shm_cleanup is not None


async def test_cleanup_of_resumed_swaps_waits_for_all_of_them(env: RestartEnv) -> None:
    """One may be finished already: its successor's files are in the same directory."""
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], annotations={"kubemend.io/clean": "shm"}))
    opened = [
        env.pod.cri_env.intent(created_at=NOW, id=name, target=replace(TARGET, name=name), old=env.pod.old[name])
        for name in ("trainer", "logger")
    ]
    plan = await planning.plan_from_journal(env.dependencies, opened)
    assert plan.shm_cleanup is not None
    assert plan.shm_cleanup.waits_for == ("trainer", "logger")
