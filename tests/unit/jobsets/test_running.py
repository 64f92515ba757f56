"""JobSets on an API server: their results, and foreign ones that are left alone."""

from kubemend.controller.jobset.children import naming
from tests import eventually
from tests.unit.jobsets import rig
from tests.unit.jobsets.rig import Bench, Leader


async def test_jobset_gets_service_and_jobs(bench: Bench, leader: Leader) -> None:
    async with leader.leading():
        made = await bench.create(rig.jobset("train", rig.replicated("lead", 1), rig.replicated("work", 2)))
        jobs = await bench.until_jobs(3)
        assert sorted(jobs) == ["train-lead-0", "train-work-0", "train-work-1"]
        (owner,) = jobs["train-work-1"]["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
        service = await bench.api.get(f"/api/v1/namespaces/{bench.namespace}/services/train")
        assert service["spec"]["selector"] == {naming.JOBSET_NAME: "train"}


async def test_completed_jobset_is_counted_once(bench: Bench, leader: Leader) -> None:
    async with leader.leading():
        await bench.create(rig.jobset())
        for name in await bench.until_jobs(2):
            await bench.ends(name, failed=False)
        await bench.until_condition("Completed", reason="AllJobsCompleted")
        await bench.until_event("AllJobsCompleted")
        labels = {"jobset_name": "train", "namespace": bench.namespace}
        await eventually.true(lambda: leader.metric("jobset_completed_total", **labels) == 1)
        assert (await bench.status())["terminalState"] == "Completed"
        assert leader.metric("jobset_failed_total", **labels) == 0


async def test_suspended_and_resumed_jobs_lose_start_time(bench: Bench, leader: Leader) -> None:
    async with leader.leading():
        await bench.create(rig.jobset())
        for name in await bench.until_jobs(2):
            await bench.runs(name)
        await bench.suspend(suspend=True)
        await bench.until_condition("Suspended")
        for name, job in (await bench.jobs()).items():
            assert job["spec"]["suspend"]
            stopped = {"type": "Suspended", "status": "True", "lastTransitionTime": rig.now()}
            await bench.job_status(name, active=0, ready=0, conditions=[stopped])
        await bench.suspend(suspend=False)
        await bench.until_condition("Suspended", status="False", reason="ResumeJobs")
        jobs = (await bench.jobs()).values()
        assert not any(job["spec"]["suspend"] for job in jobs)
        assert not any(job["status"].get("startTime") for job in jobs)


async def test_failed_job_restarts_all_up_to_max_restarts(bench: Bench, leader: Leader) -> None:
    async with leader.leading(), rig.background(bench.collecting):
        await bench.create(rig.jobset(failurePolicy={"maxRestarts": 1}))
        await bench.until_jobs(2)
        await bench.ends("train-w-0", failed=True)

        async def of_second_attempt() -> bool:
            jobs = await bench.jobs()
            attempts = {job["metadata"]["labels"][naming.RESTART_ATTEMPT] for job in jobs.values()}
            return len(jobs) == 2 and attempts == {"1"}

        await eventually.true(of_second_attempt)
        assert (await bench.status())["restarts"] == 1
        assert leader.metric("kubemend_jobset_restarts_total", kind="Recreate") == 1
        await bench.ends("train-w-1", failed=True)
        await bench.until_condition("Failed", reason="ReachedMaxRestarts")
        assert (await bench.status())["restarts"] == 1


async def test_finished_jobset_is_deleted_after_ttl(bench: Bench, leader: Leader) -> None:
    async with leader.leading():
        await bench.create(rig.jobset(ttlSecondsAfterFinished=1))
        for name in await bench.until_jobs(2):
            await bench.ends(name, failed=False)
        await bench.until_condition("Completed")
        await eventually.true(lambda: is_deleted(bench))
        deleted = await bench.jobset()
        assert deleted["metadata"]["finalizers"] == ["foregroundDeletion"]


async def test_claims_are_created_once_and_existing_ones_used(bench: Bench, leader: Leader) -> None:
    claims = f"/api/v1/namespaces/{bench.namespace}/persistentvolumeclaims"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await bench.api.create(claims, {"metadata": {"name": "old-train"}, "spec": spec})
    templates = [{"metadata": {"name": name}, "spec": spec} for name in ("old", "new")]
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("old", "new")]
    pod = {"containers": [{"name": "main", "image": "train:1", "volumeMounts": mounts}]}
    kept = {"whenDeleted": "Retain"}
    async with leader.leading():
        await bench.create(
            rig.jobset(
                "train",
                rig.replicated(pod=pod),
                volumeClaimPolicies=[{"templates": templates, "retentionPolicy": kept}],
            )
        )
        for name in await bench.until_jobs(2):
            await bench.runs(name)
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
        found = await bench.api.list(claims)
        assert sorted(each["metadata"]["name"] for each in found.items) == ["new-train", "old-train"]
        assert leader.api.calls["create persistentvolumeclaims"] == 2


async def test_foreign_jobsets_are_not_touched(bench: Bench, leader: Leader) -> None:
    async with leader.leading():
        for name, managed_by in (("one", None), ("two", "jobset.sigs.k8s.io/jobset-controller")):
            await bench.create(rig.jobset(name, managed_by=managed_by))
        await bench.create(rig.jobset("ours"))
        jobs = await bench.until_jobs(2)
        assert {name.partition("-")[0] for name in jobs} == {"ours"}
        for name in ("one", "two"):
            assert "status" not in await bench.jobset(name)
            assert leader.jobsets.find(bench.namespace, name) is None


async def is_deleted(bench: Bench) -> bool:
    return "deletionTimestamp" in (await bench.jobset())["metadata"]


async def test_listener_gets_jobsets_but_not_their_jobs(bench: Bench, leader: Leader) -> None:
    changed: list[str] = []
    leader.jobsets.subscribe(lambda namespace, name: changed.append(f"{namespace}/{name}"))
    indexed = {"completionMode": "Indexed", "completions": 5, "backoffLimitPerIndex": 1}
    async with leader.leading() as jobsets:
        made = await bench.create(rig.jobset("train", rig.replicated(job=indexed, pod={"restartPolicy": "Never"})))
        for name in await bench.until_jobs(2):
            await bench.runs(name)

        async def all_ready() -> bool:
            return [each["ready"] for each in (await bench.status()).get("replicatedJobsStatus", ())] == [2]

        async def is_settled() -> bool:
            return jobsets.is_settled(made["metadata"]["uid"])

        await eventually.true(all_ready)
        await eventually.true(is_settled)
        assert set(changed) == {f"{bench.namespace}/train"}
        changed.clear()
        await bench.job_status("train-w-0", failedIndexes="3")  # not in its JobSet's status

        async def is_seen() -> bool:
            job = jobsets.job(bench.namespace, "train", "train-w-0")
            return job is not None and job.failed_indexes == "3"

        await eventually.true(is_seen)
        await eventually.true(is_settled)
        assert changed == []
        await bench.api.delete(f"{bench.all_jobsets}/train", options={"propagationPolicy": "Background"})
        await eventually.true(lambda: f"{bench.namespace}/train" in changed)
