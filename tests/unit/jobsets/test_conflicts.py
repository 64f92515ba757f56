"""A 409 means that an object exists only with that reason: quotas and webhooks return it, too, temporarily."""

from typing import Any

import pytest

from kubemend.common.kube import client
from kubemend.common.kube.transport import Json
from kubemend.controller.jobset.children import naming
from kubemend.controller.restarts import names
from tests import eventually
from tests.unit.jobsets import rig
from tests.unit.jobsets.rig import Bench, Leader


@pytest.mark.parametrize("resource", ["services", "persistentvolumeclaims"])
async def test_quota_conflict_of_prerequisite_is_retried_before_jobs(
    bench: Bench, leader: Leader, resource: str
) -> None:
    busy: dict[str, Any] = {"status": 409, "method": "POST", "path": f"/{resource}"}
    bench.server.fail_next(2, **busy)
    async with leader.leading():
        await bench.create(rig.with_claim())
        await bench.until_jobs(2)
        assert leader.api.calls[f"create {resource}"] == 2 + 1
        assert len((await bench.api.list(f"/api/v1/namespaces/{bench.namespace}/{resource}")).items) == 1


@pytest.mark.parametrize("labels", [{}, {naming.JOBSET_NAME: "train"}], ids=["met by a write", "known by its label"])
async def test_claim_with_other_spec_is_used_and_reported(bench: Bench, leader: Leader, labels: Json) -> None:
    storage = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"/api/v1/namespaces/{bench.namespace}/persistentvolumeclaims"
    await bench.api.create(claims, {"metadata": {"name": "data-train", "labels": labels}, "spec": storage})
    async with leader.leading():
        await bench.create(rig.with_claim())
        await bench.until_jobs(2)
        await bench.until_condition("kubemend.io/ClaimsAsAsked", reason="ClaimHasAnotherSpec", status="False")
        await bench.until_event("ClaimHasAnotherSpec")
        (there,) = (await bench.api.list(claims)).items
        assert there["spec"]["accessModes"] == ["ReadWriteMany"]


async def test_quota_conflict_of_job_is_reported_and_retried(bench: Bench, leader: Leader) -> None:
    bench.server.fail_next(1, status=409, method="POST", path="/batch/v1/")
    async with leader.leading():
        await bench.create(rig.jobset("train", rig.replicated("w", 1)))
        await bench.until_jobs(1)
        await bench.until_event("JobCreationFailed")


async def test_quota_conflict_of_reset_is_retried(bench: Bench, leader: Leader) -> None:
    in_place = {"restartStrategy": "InPlaceRestart", "maxRestarts": 3}
    await bench.create(rig.jobset("train", rig.replicated(), failurePolicy=in_place))
    busy: dict[str, Any] = {"status": 409, "method": "POST", "path": "/restarts"}
    async with leader.leading():
        before = await bench.until_jobs(2)
        for name in before:
            await bench.runs(name)
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
        bench.server.fail_next(2, **busy)
        changed = rig.replicated()
        changed["template"]["spec"]["template"]["metadata"] = {"annotations": {"checksum": "2"}}
        patch = {"spec": {"replicatedJobs": [changed]}}
        await bench.api.patch(f"{bench.all_jobsets}/train", patch, content_type=client.Patch.MERGE)

        async def noted() -> bool:
            return all(made_of(job) != made_of(before[name]) for name, job in (await bench.jobs()).items())

        await eventually.true(noted)
        (asked,) = (await bench.api.list(names.collection(bench.namespace))).items
        assert asked["spec"]["strategy"] == "reset"


async def test_finished_jobset_is_deleted_after_conflicts(bench: Bench, leader: Leader) -> None:
    held: dict[str, Any] = {"status": 409, "method": "DELETE", "path": "/jobsets/train"}
    bench.server.fail_next(2, **held)
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
