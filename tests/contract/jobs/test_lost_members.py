"""What the real Job controller makes of pods that kubemend replaces: new ones at once, and none that failed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from kubemend.common.kube import client
from kubemend.controller.model.members import PodRef, PodUid
from kubemend.controller.model.rounds import Recreate
from kubemend.controller.restarts.pod_replacer import Outcome, PodReplacer
from tests import background, eventually
from tests.contract.jobs import env as benches
from tests.contract.jobs.env import JobEnv, Json

IGNORED = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
FAILS_JOB = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}


class Replacing:
    """A pod replacer that runs."""

    def __init__(self, env: JobEnv, api: client.KubeClient) -> None:
        self._env = env
        self._outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self.pod_replacer = PodReplacer(
            api=api, on_outcome=lambda _pod, outcome, _why: self._outcomes.put_nowait(outcome)
        )

    async def replace(self, pods: Sequence[Json], *, force: bool = True) -> list[Outcome]:
        """Replace pods, and return the outcomes."""
        for pod in pods:
            self.pod_replacer.recreate(Recreate(self.ref(pod), "NodeLost", "node-1 is out of service", force=force))
        async with asyncio.timeout(60):
            return [await self._outcomes.get() for _ in pods]

    def ref(self, pod: Json) -> PodRef:
        return PodRef(self._env.namespace, pod["metadata"]["name"], PodUid(pod["metadata"]["uid"]))


@pytest.fixture
async def replacing(env: JobEnv) -> AsyncIterator[Replacing]:
    found = Replacing(env, env.api)
    async with background.running(found.pod_replacer.run()):
        yield found


async def running(env: JobEnv) -> dict[int, Json]:
    live = await env.until_live(0, 1, 2)
    for pod in live.values():
        await env.say(pod, "Running")
    return live


@pytest.mark.parametrize(
    "spec",
    [
        {"podReplacementPolicy": "Failed"},
        {"podReplacementPolicy": "TerminatingOrFailed"},
        {"podFailurePolicy": IGNORED},
    ],
    ids=["after the failure", "at the deletion", "disruptions ignored"],
)
async def test_replaced_pods_are_created_at_once_and_none_has_failed(
    env: JobEnv, replacing: Replacing, spec: dict[str, Any]
) -> None:
    """A Job that counts three failed pods waits 40 s, and 320 s after six: longer than this test waits."""
    await env.create(backoffLimit=0, **spec)
    live = await running(env)
    for _ in range(2):
        assert await replacing.replace([*live.values()]) == [Outcome.DELETED] * 3
        again = await running(env)
        assert not {each["metadata"]["uid"] for each in live.values()} & {
            each["metadata"]["uid"] for each in again.values()
        }
        live = again
    status = await env.status()
    assert status.get("failed", 0) == 0
    assert not benches.conditions(status)
    assert all(benches.is_tracked(each) for each in live.values())


async def test_pod_that_kubelet_must_end_is_replaced_when_it_has_ended(env: JobEnv, replacing: Replacing) -> None:
    await env.create(backoffLimit=0, podReplacementPolicy="Failed")
    live = await running(env)
    assert await replacing.replace([live[1]], force=False) == [Outcome.DELETED]
    await env.until(lambda reported: reported.get("terminating") == 1)
    assert sorted(await env.live()) == [0, 2]
    await env.end(live[1])
    await env.until_live(0, 1, 2)
    assert (await env.status()).get("failed", 0) == 0


async def test_failed_pod_whose_index_the_job_has_given_up_is_left_for_inspection(
    env: JobEnv, replacing: Replacing
) -> None:
    await env.create(backoffLimitPerIndex=0)
    live = await running(env)
    await env.say(live[1], "Failed", exit_code=1)
    await env.until(lambda reported: reported.get("failedIndexes") == "1")
    assert await replacing.replace([live[1]], force=False) == [Outcome.GIVEN_UP]
    assert (await env.pod(live[1]))["metadata"].get("deletionTimestamp") is None


async def test_failed_pod_whose_index_the_job_retries_is_deleted(env: JobEnv, replacing: Replacing) -> None:
    await env.create(backoffLimitPerIndex=1)
    live = await running(env)
    await env.say(live[1], "Failed", exit_code=1)
    await env.until(lambda reported: reported.get("failed") == 1)
    assert await replacing.replace([live[1]], force=False) == [Outcome.DELETED]


async def test_rule_that_fails_the_job_is_obeyed(env: JobEnv, replacing: Replacing) -> None:
    await env.create(podFailurePolicy=FAILS_JOB)
    live = await running(env)
    assert await replacing.replace([live[1]]) == [Outcome.DELETED]
    status = await env.until(lambda reported: "FailureTarget" in benches.conditions(reported))
    assert benches.conditions(status)["FailureTarget"] == ("True", "PodFailurePolicy")


async def test_pod_that_succeeds_just_before_its_replacement_is_counted(env: JobEnv) -> None:
    await env.create()
    live = await running(env)
    replacing = Replacing(env, env.api)
    patch_status, succeeded = env.api.patch_status, asyncio.Event()

    async def after_its_success(path: str, body: Json, **more: Any) -> Json:
        if not succeeded.is_set():
            succeeded.set()
            await patch_status(path, {"status": {"phase": "Succeeded"}})
        return await patch_status(path, body, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(env.api, "patch_status", after_its_success)
        async with background.running(replacing.pod_replacer.run()):
            assert (await replacing.replace([live[1]], force=False))[0] in (Outcome.DELETED, Outcome.GONE)
    assert succeeded.is_set()
    status = await env.until(lambda reported: reported.get("succeeded") == 1)
    assert status["completedIndexes"] == "1"


async def test_pod_that_a_previous_leader_did_not_delete_is_counted_again(env: JobEnv, replacing: Replacing) -> None:
    await env.create(backoffLimit=0)
    live = await running(env)
    await env.disrupt(live[1])
    await env.api.patch_status(
        f"{env.pods_path}/{live[1]['metadata']['name']}",
        {"metadata": {"$deleteFromPrimitiveList/finalizers": [benches.FINALIZER]}},
    )
    assert not benches.is_tracked(await env.pod(live[1]))
    replacing.pod_replacer.restore(replacing.ref(live[1]))

    async def tracked() -> bool:
        return benches.is_tracked(await env.pod(live[1]))

    await eventually.true(tracked)
    await env.say(live[1], "Succeeded", exit_code=0)
    status = await env.until(lambda reported: reported.get("succeeded") == 1)
    assert status["completedIndexes"] == "1"
