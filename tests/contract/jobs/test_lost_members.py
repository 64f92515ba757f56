"""A pod that kubemend forces to go, because its node is lost, is replaced by its Job."""

import asyncio

from controller.model.members import PodRef, PodUid
from controller.model.rounds import Recreate
from controller.restarts.recreate import Outcome, Recreator
from hack.devnode.jobcontroller import pods
from tests import background
from tests.contract.jobs.bench import Bench


async def test_a_pod_that_is_forced_to_go_is_told_as_failed_so_that_its_job_replaces_it(bench: Bench) -> None:
    await bench.create(podReplacementPolicy="Failed")
    live = await bench.until_live(0, 1, 2)
    for pod in live.values():
        await bench.say(pod, "Running")
    outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
    recreator = Recreator(api=bench.api, on_outcome=lambda _pod, outcome, _why: outcomes.put_nowait(outcome))
    async with background.running(recreator.run()):
        metadata = live[1]["metadata"]
        lost = PodRef(bench.namespace, metadata["name"], PodUid(metadata["uid"]))
        recreator.recreate(Recreate(lost, reason="NodeLost", message="its node is out of service", force=True))
        async with asyncio.timeout(60):
            assert await outcomes.get() is Outcome.DELETED
        again = await bench.until_live(0, 1, 2)
    assert again[1]["metadata"]["uid"] != metadata["uid"]
    assert [again[at]["metadata"]["uid"] for at in (0, 2)] == [live[at]["metadata"]["uid"] for at in (0, 2)]
    assert metadata["name"] not in {each["metadata"]["name"] for each in await bench.pods()}
    assert all(pods.is_tracked(each) for each in again.values())
