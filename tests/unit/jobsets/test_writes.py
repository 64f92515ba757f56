"""Creations that the API server refuses are tried again after growing waits, and all other writes at once."""

from collections import Counter
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from kubemend.common import aio
from kubemend.common.kube import client, errors
from kubemend.controller.jobset import plan
from kubemend.controller.jobsets import writes
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.jobsets.writes import FailedWrite, Writer
from tests.unit.jobset import builders

JOBSET = builders.jobset()
LONG = 600.0


class Views:
    """Views that record nothing."""

    def wrote_job(self, obj: Any) -> None:
        return


class Api:
    """An API server that refuses to create some objects; ``calls`` counts all requests for an object."""

    def __init__(self, *refused: str, error: errors.KubeError | None = None) -> None:
        self.refused = {*refused}
        self.error = error or errors.ForbiddenError("exceeded quota")
        self.calls: Counter[str] = Counter()

    async def create(self, path: str, body: Any) -> Any:
        self.calls[body["name"]] += 1
        if body["name"] in self.refused:
            raise self.error
        return {}

    async def patch(self, path: str, body: Any, *, content_type: client.Patch) -> Any:
        self.calls[path.rpartition("/")[2]] += 1
        return {}


def writer(api: Any, *, wait: float = LONG) -> Writer:
    views: Any = Views()
    metrics = JobSetMetrics(CollectorRegistry())
    return Writer(
        api=api, views=views, metrics=metrics, parallel=2, backoff=lambda: aio.Backoff(first=wait, limit=wait)
    )


def job(name: str) -> plan.CreateJob:
    return plan.CreateJob(name, {"name": name})


def names(failed_writes: list[FailedWrite]) -> set[str]:
    return {each.write.name for each in failed_writes if isinstance(each.write, plan.CreateJob)}


async def test_refused_creations_wait_and_other_writes_do_not() -> None:
    """Each change of a running Job repeated all creations that a quota refused, once a second."""
    api = Api("w-1", "w-2")
    writes_them = writer(api)
    for number in range(5):
        suspend = plan.SuspendJob(f"w-{number}-running", "uid")
        failed = await writes_them.write(JOBSET, [[suspend], [job("w-1"), job("w-2"), job(f"new-{number}")]])
        assert names(failed) == {"w-1", "w-2"}, "the reconcile fails as before"
        assert bool(writes.events(failed)) is (number == 0), "what was not tried again is no new Event"
        assert (api.calls[f"new-{number}"], api.calls[f"w-{number}-running"]) == (1, 1)
    assert (api.calls["w-1"], api.calls["w-2"]) == (1, 1)


async def test_creation_of_a_changed_jobset_or_another_one_is_tried_at_once() -> None:
    api = Api("w-1")
    writes_them = writer(api)
    await writes_them.write(JOBSET, [[job("w-1")]])
    await writes_them.write(replace(JOBSET, generation=JOBSET.generation + 1), [[job("w-1")]])
    await writes_them.write(replace(JOBSET, uid="uid-other"), [[job("w-1")]])
    assert api.calls["w-1"] == 3


async def test_refused_creation_is_tried_again_after_its_wait_and_then_forgotten() -> None:
    api = Api("w-1")
    writes_them = writer(api, wait=0.0)
    assert names(await writes_them.write(JOBSET, [[job("w-1")]])) == {"w-1"}
    api.refused.clear()
    assert await writes_them.write(JOBSET, [[job("w-1")]]) == []
    assert api.calls["w-1"] == 2
    assert writes_them._refused == {}


async def test_creation_that_met_a_conflict_is_tried_again_at_once() -> None:
    api = Api("w-1", error=errors.ConflictError("the quota was changed by another request"))
    writes_them = writer(api)
    for _ in range(2):
        assert names(await writes_them.write(JOBSET, [[job("w-1")]])) == {"w-1"}
    assert api.calls["w-1"] == 2


async def test_nothing_is_kept_of_jobsets_that_are_refused_no_more() -> None:
    api = Api("w-1")
    writes_them = writer(api, wait=-2 * writes._LAPSED_SECONDS)
    for number in range(3):
        await writes_them.write(replace(JOBSET, uid=f"uid-{number}"), [[job("w-1")]])
    assert [*writes_them._refused] == ["uid-2"]
