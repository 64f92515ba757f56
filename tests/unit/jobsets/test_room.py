"""Oversized JobSets and pods to place are kept in a reduced form."""

from typing import Any

import pytest

from kubemend.common import gangs
from kubemend.common.kube import paths, shares
from kubemend.controller.jobset import children
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import exclusive, reading
from kubemend.controller.jobset.placement.model import Needs, Pod
from kubemend.controller.jobset.spec import model
from kubemend.controller.jobsets import invalid_objects, placement_reconciler, views
from kubemend.controller.jobsets.invalid_objects import InvalidObject, Others
from tests import eventually
from tests.fakes.listing_api import ListingApi
from tests.unit.jobset import builders
from tests.unit.reporters.running import started


def test_oversized_jobset_is_reported_as_invalid() -> None:
    jobset = builders.jobset()
    found = invalid_objects.bare(jobset)
    assert isinstance(found, InvalidObject)
    assert (found.namespace, found.name, found.uid) == (jobset.namespace, jobset.name, jobset.uid)
    assert "take more than 64 MiB" in found.reason
    assert invalid_objects.bare(found) is found


def test_foreign_jobsets_are_never_too_large() -> None:
    found = invalid_objects.jobset(
        {
            "metadata": {"namespace": "n", "name": "js", "resourceVersion": "7"},
            "spec": {"managedBy": f"not-{model.MANAGED_BY}"},
        }
    )
    assert isinstance(found, Others)
    assert invalid_objects.bare(found) is found


IN_PLACE = {"failurePolicy": {"restartStrategy": "InPlaceRestart"}}


@pytest.mark.parametrize(
    ("spec", "annotations", "in_place"),
    [
        (IN_PLACE, {}, True),
        (IN_PLACE, None, True),
        (
            {"failurePolicy": {"restartStrategy": "InPlaceRestart"}},
            {"jobset.sigs.k8s.io/disable-in-place-restart": ""},
            False,
        ),
        ({"failurePolicy": {"restartStrategy": "Recreate"}}, {}, False),
        ({"failurePolicy": {"maxRestarts": 3}}, {}, False),
        ({"failurePolicy": None}, {}, False),
        (None, {}, False),
    ],
)
def test_foreign_jobset_that_is_restarted_in_place_is_known(
    spec: dict[str, Any] | None, annotations: dict[str, str] | None, in_place: bool
) -> None:
    meta = {"namespace": "n", "name": "js", "resourceVersion": "7", "annotations": annotations}
    assert invalid_objects.jobset({"metadata": meta, "spec": spec}) == Others("n", "js", "7", in_place)


def test_oversized_pod_keeps_waiting_and_occupying() -> None:
    selector = (("rack", "r1"), *((f"label-{number}", "x") for number in range(10_000)))
    waiting = Pod("team", "a", "u1", "job", topology="rack", gates=(exclusive.GATE,), needs=Needs(selector=selector))
    assert exclusive.waits(waiting)
    found = reading.bare(waiting)
    assert not exclusive.waits(found)
    assert (found.uid, found.job, found.needs) == ("u1", "job", Needs(selector=(("rack", "r1"),)))


def ignore(*_: Any) -> None:
    """Ignore everything."""


def job_of(jobset: model.JobSet, name: str, *, tolerations: int) -> dict[str, Any]:
    """Return a suspended Job that the JobSet owns, as far as labels and owner references show."""
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": jobset.name, "uid": jobset.uid}
    keys = ({"key": f"example.com/{number}", "operator": "Exists"} for number in range(tolerations))
    return {
        "metadata": {
            "namespace": jobset.namespace,
            "name": name,
            "uid": f"uid-of-{name}",
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"suspend": True, "template": {"spec": {"tolerations": list(keys)}}},
    }


async def test_oversized_suspended_jobs_take_no_room_and_stay_suspended() -> None:
    jobset = builders.jobset()
    jobs = [job_of(jobset, "usual", tolerations=3), *(job_of(jobset, f"j{n}", tolerations=9_000) for n in range(5))]
    kept = views.Views(api=ListingApi({views.JOBS: jobs}), report=ignore, changed=ignore, jobset_changed=ignore)
    async with started(kept):
        await kept.wait_synced()
        found = {job.name: job for job in kept.jobs(jobset)}
    assert len(found) == len(jobs)
    assert all(shares.weight(job) < 16_384 for job in found.values())
    resumed = children.resume(jobset.spec.replicated_jobs[0], found.values())
    assert [write.name for write in resumed] == ["usual"]


async def test_oversized_jobset_is_kept_by_its_identity_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invalid_objects, "MOST_OF_A_JOBSET", 2**20)
    env = [{"name": f"A{number}", "value": "b"} for number in range(10_000)]
    pod = {"spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}
    about = {"namespace": "ml", "name": "huge", "uid": "u1"}
    jobs = [{"name": "w", "replicas": 1, "template": {"spec": {"template": pod}}}]
    huge = {"metadata": about, "spec": {"managedBy": model.MANAGED_BY, "replicatedJobs": jobs}}
    kept = views.Views(api=ListingApi({views.JOBSETS: [huge]}), report=ignore, changed=ignore, jobset_changed=ignore)
    async with started(kept):
        await kept.wait_synced()
        found = kept.jobset("u1")
    assert isinstance(found, InvalidObject)
    assert shares.weight(found) < 5000


async def test_oversized_pod_to_place_is_kept_by_its_place_alone() -> None:
    tolerations = [{"key": f"example.com/{number}"} for number in range(5_000)]
    labels = {gangs.JOB_NAME: "train-w-0", naming.JOB_KEY: "x"}
    huge = {
        "metadata": {"namespace": "ml", "name": "huge", "uid": "u1", "labels": labels},
        "spec": {"schedulingGates": [exclusive.GATE_ENTRY], "tolerations": tolerations},
    }
    board = placement_reconciler._Board(api=ListingApi({paths.PODS: [huge]}), report=ignore, news=lambda: None)
    async with board.watching():
        (pod,) = board._pods.items().values()
    assert pod.name == "huge"
    assert shares.weight(pod) < 5000


async def test_only_metadata_of_services_and_claims_is_read() -> None:
    api = ListingApi()
    kept = views.Views(api=api, report=ignore, changed=ignore, jobset_changed=ignore)
    async with started(kept):
        await eventually.true(lambda: len(api.asked) == 8)
    by_path = {views.JOBSETS: False, views.JOBS: False, views.SERVICES: True, views.CLAIMS: True}
    assert api.asked == {(verb, path): only for path, only in by_path.items() for verb in ("list", "watch")}
