"""What owners make of restarts: asked when nobody waits, known beforehand where a gang does."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.model.workloads import OwnerRef, PodRef, PodUid, PodView, RestartPolicy
from agent.restart import admission
from agent.sources.owners import OwnerLookup
from common.kube import errors
from tests import eventually
from tests.fakes import outside


@dataclass
class Listing:
    items: list[dict[str, Any]]


@dataclass
class Api:
    """A Job and its pods. ``hangs``: nothing is answered any more."""

    limit: int = admission.UNLIMITED_BACKOFF
    counts: tuple[int, ...] = (0, 0)
    hangs: bool = False
    fails: bool = False
    asked: list[str] = field(default_factory=list)

    async def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.fails:
            raise errors.ApiUnavailableError("the API server is away", mend="wait")
        return {"spec": {"backoffLimit": self.limit}}

    async def list(self, path: str, *, params: dict[str, str] | None = None) -> Listing:
        statuses = [{"containerStatuses": [{"restartCount": count}]} for count in self.counts]
        return Listing([{"status": {"phase": "Running", **status}} for status in statuses])


def member(**changes: Any) -> PodView:
    defaults: dict[str, Any] = {
        "ref": PodRef("default", "j-0", PodUid("uid-1")),
        "phase": "Running",
        "restart_policy": RestartPolicy.ON_FAILURE,
        "containers": (),
        "labels": {"kubemend.io/gang": "g"},
        "owner": OwnerRef(api_group="batch", kind="Job", name="j"),
    }
    return PodView(**defaults | changes)


@pytest.mark.parametrize("limit", [admission.UNLIMITED_BACKOFF, 1_000_000])
async def test_a_round_learns_what_was_asked_beforehand_without_the_api_server(limit: int) -> None:
    api, pods = Api(limit=limit), outside.Pods()
    owners = OwnerLookup(api)
    running = asyncio.create_task(owners.run(pods))
    await asyncio.sleep(0)
    await pods.put(member())
    await eventually.true(lambda: len(api.asked) == 1)
    api.hangs = True
    answer = await owners.facts(member(), at_once=True)
    assert answer is not None
    assert answer.job_restarts_left == limit
    assert len(api.asked) == 1
    running.cancel()


async def test_a_count_is_never_of_yesterday_and_is_not_waited_for() -> None:
    api = Api(limit=6, counts=(1, 2))
    owners = OwnerLookup(api)
    assert await owners.facts(member()) == admission.OwnerFacts(job_restarts_left=3, job_pods=2)
    api.counts = (2, 2)
    assert await owners.facts(member(), at_once=True) == admission.OwnerFacts(job_restarts_left=2, job_pods=2)
    api.hangs = True
    assert await owners.facts(member(), at_once=True) is None


async def test_what_cannot_be_asked_is_not_known() -> None:
    owners = OwnerLookup(Api(fails=True))
    assert await owners.facts(member()) is None
    assert await owners.facts(member(), at_once=True) is None


@pytest.mark.parametrize("changes", [{"owner": None}, {"restart_policy": RestartPolicy.ALWAYS}])
async def test_who_has_no_such_owner_asks_nobody(changes: dict[str, Any]) -> None:
    api = Api()
    assert await OwnerLookup(api).facts(member(**changes), at_once=True) == admission.OwnerFacts()
    assert api.asked == []


async def test_of_a_pod_that_is_gone_nothing_is_kept() -> None:
    api, pods = Api(), outside.Pods(member())
    owners = OwnerLookup(api)
    running = asyncio.create_task(owners.run(pods))
    await eventually.true(lambda: len(api.asked) == 1)
    pods.drop(PodUid("uid-1"))
    await eventually.true(lambda: owners._known == {})
    running.cancel()
