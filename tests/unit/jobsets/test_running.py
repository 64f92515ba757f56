"""JobSets on an API server: their results, and foreign ones that are left alone."""

from kubemend.controller.jobset.children import naming
from tests import eventually
from tests.unit.jobsets import builders
from tests.unit.jobsets.env import JobSetEnv, Leader, background


async def test_jobset_gets_service_and_jobs(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        made = await env.create(
            builders.jobset("train", builders.replicated("lead", 1), builders.replicated("work", 2))
        )
        jobs = await env.until_jobs(3)
        assert sorted(jobs) == ["train-lead-0", "train-work-0", "train-work-1"]
        (owner,) = jobs["train-work-1"]["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        service = await env.api.get(f"/api/v1/namespaces/{env.namespace}/services/train")
        assert service["spec"]["selector"] == {naming.JOBSET_NAME: "train"}


async def test_completed_jobset_is_counted_once(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset())
        for name in await env.until_jobs(2):
            await env.ends(name, failed=False)
        await env.until_condition("Completed", reason="AllJobsCompleted")
        await env.until_event("AllJobsCompleted")
        labels = {"jobset_name": "train", "namespace": env.namespace}
        await eventually.true(lambda: leader.metric("jobset_completed_total", **labels) == 1)
        assert (await env.status())["terminalState"] == "Completed"
        assert leader.metric("jobset_failed_total", **labels) == 0


async def test_suspended_and_resumed_jobs_lose_start_time(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset())
        for name in await env.until_jobs(2):
            await env.runs(name)
        await env.suspend(suspend=True)
        await env.until_condition("Suspended")
        for name, job in (await env.jobs()).items():
            assert job["spec"]["suspend"]
            stopped = {"type": "Suspended", "status": "True", "lastTransitionTime": builders.now()}
            await env.job_status(name, active=0, ready=0, conditions=[stopped])
        await env.suspend(suspend=False)
        await env.until_condition("Suspended", status="False", reason="ResumeJobs")
        jobs = (await env.jobs()).values()
        assert not any(job["spec"]["suspend"] for job in jobs)
        assert not any(job["status"].get("startTime") for job in jobs)


async def test_failed_job_restarts_all_up_to_max_restarts(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading(), background(env.collecting):
        await env.create(builders.jobset(failurePolicy={"maxRestarts": 1}))
        await env.until_jobs(2)
        await env.ends("train-w-0", failed=True)

        async def of_second_attempt() -> bool:
            jobs = await env.jobs()
            attempts = {job["metadata"]["labels"][naming.RESTART_ATTEMPT] for job in jobs.values()}
            return len(jobs) == 2 and attempts == {"1"}

        await eventually.true(of_second_attempt)
        assert (await env.status())["restarts"] == 1
        assert leader.metric("kubemend_jobset_restarts_total", kind="Recreate") == 1
        await env.ends("train-w-1", failed=True)
        await env.until_condition("Failed", reason="ReachedMaxRestarts")
        assert (await env.status())["restarts"] == 1


async def test_finished_jobset_is_deleted_after_ttl(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset(ttlSecondsAfterFinished=1))
        for name in await env.until_jobs(2):
            await env.ends(name, failed=False)
        await env.until_condition("Completed")
        await eventually.true(lambda: is_deleted(env))
        deleted = await env.jobset()
        assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]


async def test_claims_are_created_once_and_existing_ones_used(env: JobSetEnv, leader: Leader) -> None:
    claims = f"/api/v1/namespaces/{env.namespace}/persistentvolumeclaims"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await env.api.create(claims, {"metadata": {"name": "old-train"}, "spec": spec})
    templates = [{"metadata": {"name": name}, "spec": spec} for name in ("old", "new")]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("old", "new")]
    pod = {"containers": [{"name": "main", "image": "train:1", "volumeMounts": mounts}]}
    kept = {"whenDeleted": "Retain"}
    async with leader.leading():
        await env.create(
            builders.jobset(
                "train",
                builders.replicated(pod=pod),
                volumeClaimPolicies=[{"templates": templates, "retentionPolicy": kept}],
            )
        )
        for name in await env.until_jobs(2):
            await env.runs(name)
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        found = await env.api.list(claims)
        assert sorted(each["metadata"]["name"] for each in found.items) == ["new-train", "old-train"]
        assert leader.api.calls["create persistentvolumeclaims"] == 2


async def test_foreign_jobsets_are_not_touched(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        for name, managed_by in (("one", None), ("two", "jobset.sigs.k8s.io/jobset-controller")):
            await env.create(builders.jobset(name, managed_by=managed_by))
        await env.create(builders.jobset("ours"))
        jobs = await env.until_jobs(2)
        assert {name.partition("-")[0] for name in jobs} == {"ours"}
        for name in ("one", "two"):
            assert "status" not in await env.jobset(name)
            assert leader.jobsets.find(env.namespace, name) is None


async def is_deleted(env: JobSetEnv) -> bool:
    return "deletionTimestamp" in (await env.jobset())["metadata"]


async def test_listener_gets_jobsets_but_not_their_jobs(env: JobSetEnv, leader: Leader) -> None:
    changed: list[str] = []
    leader.jobsets.subscribe(lambda namespace, name: changed.append(f"{namespace}/{name}"))
    indexed = {"completionMode": "Indexed", "completions": 5, "backoffLimitPerIndex": 1}
    async with leader.leading() as jobsets:
        made = await env.create(
            builders.jobset("train", builders.replicated(job=indexed, pod={"restartPolicy": "Never"}))
        )
        for name in await env.until_jobs(2):
            await env.runs(name)

        async def all_ready() -> bool:
            return [each["ready"] for each in (await env.status()).get("replicatedJobsStatus", ())] == [2]

        async def is_settled() -> bool:
            return jobsets.is_settled(made["metadata"]["uid"])

        await eventually.true(all_ready)
        await eventually.true(is_settled)
        assert set(changed) == {f"{env.namespace}/train"}
        changed.clear()
        await env.job_status("train-w-0", failedIndexes="3")  # not in its JobSet's status

        async def is_seen() -> bool:
            job = jobsets.job(env.namespace, "train", "train-w-0")
            return job is not None and job.failed_indexes == "3"

        await eventually.true(is_seen)
        await eventually.true(is_settled)
        assert changed == []
        await env.api.delete(f"{env.all_jobsets}/train", options={"propagationPolicy": "Background"})
        await eventually.true(lambda: f"{env.namespace}/train" in changed)
