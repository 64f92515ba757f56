"""A 409 means that an object exists only with that reason: quotas and webhooks return it, too, temporarily."""

from typing import Any

import pytest

from kubemend.common.kube import client
from kubemend.common.kube.transport import Json
from kubemend.controller.jobset.children import naming
from kubemend.controller.restarts import names
from tests import eventually
from tests.unit.jobsets import builders
from tests.unit.jobsets.env import JobSetEnv, Leader


@pytest.mark.parametrize("resource", ["services", "persistentvolumeclaims"])
async def test_quota_conflict_of_prerequisite_is_retried_before_jobs(
    env: JobSetEnv, leader: Leader, resource: str
) -> None:
    busy: dict[str, Any] = {"status": 409, "method": "POST", "path": f"/{resource}"}
    env.server.fail_next(2, **busy)
    async with leader.leading():
        await env.create(builders.with_claim())
        await env.until_jobs(2)
        assert leader.api.calls[f"create {resource}"] == 2 + 1
        assert len((await env.api.list(f"/api/v1/namespaces/{env.namespace}/{resource}")).items) == 1


@pytest.mark.parametrize("labels", [{}, {naming.JOBSET_NAME: "train"}], ids=["met by a write", "known by its label"])
async def test_claim_with_other_spec_is_used_and_reported(env: JobSetEnv, leader: Leader, labels: Json) -> None:
    storage = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"/api/v1/namespaces/{env.namespace}/persistentvolumeclaims"
    await env.api.create(claims, {"metadata": {"name": "data-train", "labels": labels}, "spec": storage})
    async with leader.leading():
        await env.create(builders.with_claim())
        await env.until_jobs(2)
        await env.until_condition("kubemend.io/VolumeClaimsMatch", reason="ClaimHasAnotherSpec", status="False")
        await env.until_event("ClaimHasAnotherSpec")
        (there,) = (await env.api.list(claims)).items
        assert there["spec"]["accessModes"] == ["ReadWriteMany"]


async def test_quota_conflict_of_job_is_reported_and_retried(env: JobSetEnv, leader: Leader) -> None:
    env.server.fail_next(1, status=409, method="POST", path="/batch/v1/")
    async with leader.leading():
        await env.create(builders.jobset("train", builders.replicated("w", 1)))
        await env.until_jobs(1)
        await env.until_event("JobCreationFailed")


async def test_quota_conflict_of_reset_is_retried(env: JobSetEnv, leader: Leader) -> None:
    in_place = {"restartStrategy": "InPlaceRestart", "maxRestarts": 3}
    await env.create(builders.jobset("train", builders.replicated(), failurePolicy=in_place))
    busy: dict[str, Any] = {"status": 409, "method": "POST", "path": "/restarts"}
    async with leader.leading():
        before = await env.until_jobs(2)
        for name in before:
            await env.runs(name)
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        env.server.fail_next(2, **busy)
        changed = builders.replicated()
        changed["template"]["spec"]["template"]["metadata"] = {"annotations": {"checksum": "2"}}
        patch = {"spec": {"replicatedJobs": [changed]}}
        await env.api.patch(f"{env.all_jobsets}/train", patch, content_type=client.Patch.MERGE)

        async def noted() -> bool:
            return all(made_of(job) != made_of(before[name]) for name, job in (await env.jobs()).items())

        await eventually.true(noted)
        (asked,) = (await env.api.list(names.collection(env.namespace))).items
        assert asked["spec"]["strategy"] == "reset"


async def test_finished_jobset_is_deleted_after_conflicts(env: JobSetEnv, leader: Leader) -> None:
    held: dict[str, Any] = {"status": 409, "method": "DELETE", "path": "/jobsets/train"}
    env.server.fail_next(2, **held)
    async with leader.leading():
        await env.create(builders.jobset(ttlSecondsAfterFinished=0))
        for name in await env.until_jobs(2):
            await env.ends(name, failed=False)
        await env.until_condition("Completed")

        async def is_deleted() -> bool:
            return "deletionTimestamp" in (await env.jobset())["metadata"]

        await eventually.true(is_deleted)


def made_of(job: Json) -> str:
    return str(job["metadata"]["annotations"][naming.MADE_OF])
