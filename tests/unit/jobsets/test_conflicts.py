"""A 409 says that something is there only in so many words: quotas and webhooks answer it, too, and it passes."""

import pytest

from common.kube import client
from common.kube.transport import Json
from controller.jobset import naming
from controller.restarts import names
from tests import eventually
from tests.contract.api import restarts
from tests.unit.jobsets import rig
from tests.unit.jobsets.rig import Bench, Leader


@pytest.mark.parametrize("resource", ["services", "persistentvolumeclaims"])
async def test_what_a_quota_was_too_busy_for_is_made_before_its_jobs(
    bench: Bench, leader: Leader, resource: str
) -> None:
    busy = {"status": 409, "method": "POST", "path": f"/{resource}"}
    bench.server.handler.faults.fail_next(2, **busy)  # type: ignore[attr-defined]
    async with leader.leading():
        await bench.create(rig.with_claim())
        await bench.until_jobs(2)
        assert leader.api.calls[f"create {resource}"] == 2 + 1
        assert len((await bench.api.list(f"/api/v1/namespaces/default/{resource}")).items) == 1


@pytest.mark.parametrize("labels", [{}, {naming.JOBSET_NAME: "train"}], ids=["met by a write", "known by its label"])
async def test_a_claim_with_another_spec_is_used_and_told(bench: Bench, leader: Leader, labels: Json) -> None:
    storage = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    await bench.api.create(claims, {"metadata": {"name": "data-train", "labels": labels}, "spec": storage})
    async with leader.leading():
        await bench.create(rig.with_claim())
        await bench.until_jobs(2)
        await bench.until_condition("kubemend.io/ClaimsAsAsked", reason="ClaimHasAnotherSpec", status="False")
        await bench.until_event("ClaimHasAnotherSpec")
        (there,) = (await bench.api.list(claims)).items
        assert there["spec"]["accessModes"] == ["ReadWriteMany"]


async def test_a_job_that_a_quota_was_too_busy_for_is_told_of_and_made(bench: Bench, leader: Leader) -> None:
    bench.server.handler.faults.fail_next(1, status=409, method="POST", path="/batch/v1/")  # type: ignore[attr-defined]
    async with leader.leading():
        await bench.create(rig.jobset("train", rig.replicated("w", 1)))
        await bench.until_jobs(1)
        await bench.until_event("JobCreationFailed")


async def test_a_reset_that_a_quota_was_too_busy_for_is_asked_for_all_the_same(bench: Bench, leader: Leader) -> None:
    await restarts.install(bench.api)
    in_place = {"restartStrategy": "InPlaceRestart", "maxRestarts": 3}
    await bench.create(rig.jobset("train", rig.replicated(), failurePolicy=in_place))
    busy = {"status": 409, "method": "POST", "path": "/restarts"}
    async with leader.leading():
        before = await bench.until_jobs(2)
        for name in before:
            await bench.runs(name)
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
        bench.server.handler.faults.fail_next(2, **busy)  # type: ignore[attr-defined]
        changed = rig.replicated()
        changed["template"]["spec"]["template"]["metadata"] = {"annotations": {"checksum": "2"}}
        patch = {"spec": {"replicatedJobs": [changed]}}
        await bench.api.patch(f"{rig.JOBSETS}/train", patch, content_type=client.Patch.MERGE)

        async def noted() -> bool:
            return all(made_of(job) != made_of(before[name]) for name, job in (await bench.jobs()).items())

        await eventually.true(noted)
        (asked,) = (await bench.api.list(names.collection(rig.NAMESPACE))).items
        assert asked["spec"]["strategy"] == "reset"


async def test_a_finished_jobset_that_somebody_held_on_to_goes_after_all(bench: Bench, leader: Leader) -> None:
    held = {"status": 409, "method": "DELETE", "path": "/jobsets/train"}
    bench.server.handler.faults.fail_next(2, **held)  # type: ignore[attr-defined]
    async with leader.leading():
        await bench.create(rig.jobset(ttlSecondsAfterFinished=0))
        for name in await bench.until_jobs(2):
            await bench.ends(name, failed=False)
        await bench.until_condition("Completed")

        async def is_deleted() -> bool:
            return "deletionTimestamp" in (await bench.jobset())["metadata"]

        await eventually.true(is_deleted)


def made_of(job: Json) -> str:
    return str(job["metadata"]["annotations"][naming.MADE_OF])
