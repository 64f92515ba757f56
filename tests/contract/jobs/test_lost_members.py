"""A pod that kubemend force-deletes, because its node is lost, is replaced by its Job."""

import asyncio

from kubemend.controller.model.members import PodRef, PodUid
from kubemend.controller.model.rounds import Recreate
from kubemend.controller.restarts.pod_replacer import Outcome, PodReplacer
from tests import background
from tests.contract.jobs import env as benches
from tests.contract.jobs.env import JobEnv


async def test_force_deleted_pod_counts_as_failed_and_is_replaced(env: JobEnv) -> None:
    await env.create(podReplacementPolicy="Failed")
    live = await env.until_live(0, 1, 2)
    for pod in live.values():
        await env.say(pod, "Running")
    outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
    pod_replacer = PodReplacer(
        api=env.api, on_outcome=lambda _pod, outcome, _ending_reason: outcomes.put_nowait(outcome)
    )
    async with background.running(pod_replacer.run()):
        metadata = live[1]["metadata"]
        lost = PodRef(env.namespace, metadata["name"], PodUid(metadata["uid"]))
        pod_replacer.recreate(Recreate(lost, reason="NodeLost", message="its node is out of service", force=True))
        async with asyncio.timeout(60):
            assert await outcomes.get() is Outcome.DELETED
        again = await env.until_live(0, 1, 2)
    assert again[1]["metadata"]["uid"] != metadata["uid"]
    assert [again[at]["metadata"]["uid"] for at in (0, 2)] == [live[at]["metadata"]["uid"] for at in (0, 2)]
    assert metadata["name"] not in {each["metadata"]["name"] for each in await env.pods()}
    assert all(benches.is_tracked(each) for each in again.values())
