"""Failures between a decision and the API server: nothing is created or counted twice."""

import asyncio
import functools
from typing import Any

import pytest

from hack.devnode.apiproxy import ApiProxy
from kubemend.common.components import ComponentState
from kubemend.common.kube import client, errors
from kubemend.common.kube.transport import Json
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobsets import views
from tests import eventually
from tests.unit.jobsets import builders
from tests.unit.jobsets.env import Client, JobSetEnv, Leader, background


async def test_conflicting_status_is_decided_again(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset())
        for name in await env.until_jobs(2):
            await env.runs(name)
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        late = leader.api.hold_back(views.JOBSETS)
        await env.api.patch(
            f"{env.all_jobsets}/train", {"metadata": {"labels": {"x": "y"}}}, content_type=client.Patch.MERGE
        )
        for name in await env.jobs():
            await env.ends(name, failed=False)
        await env.until_condition("Completed")
        assert leader.metric("kubemend_jobset_writes_total", write="status", result="conflict") >= 1
        labels = {"jobset_name": "train", "namespace": env.namespace}
        await eventually.true(lambda: leader.metric("jobset_completed_total", **labels) == 1)
        late.set()
    assert leader.metric("jobset_completed_total", **labels) == 1


async def test_new_leader_without_a_right_is_reported(env: JobSetEnv, leader: Leader, server: ApiProxy) -> None:
    """The alert KubemendJobSetsWait fires for that."""
    await env.create(builders.jobset())
    server.fail_next(10**6, method="GET", path="/persistentvolumeclaims", status=403)
    async with leader.leading():
        await eventually.true(lambda: leader.reports[-1].state is ComponentState.DEGRADED)


async def test_status_with_lost_answer_is_recorded_and_counted_once(
    env: JobSetEnv, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = leader.api._exchange  # sends a request and receives its answer
    lost = asyncio.Event()

    async def losing(request: object) -> Json:
        answer = await whole(request)  # type: ignore[arg-type]
        if getattr(request, "method", "") == "PUT" and "Completed" in str(answer.get("status")) and not lost.is_set():
            lost.set()
            raise errors.ApiUnavailableError("the answer is lost")
        return answer

    monkeypatch.setattr(leader.api, "_exchange", losing)
    async with leader.leading():
        await env.create(builders.jobset())
        for name in await env.until_jobs(2):
            await env.ends(name, failed=False)
        await env.until_event("AllJobsCompleted")
        assert lost.is_set()
        labels = {"jobset_name": "train", "namespace": env.namespace}
        await eventually.true(lambda: leader.metric("jobset_completed_total", **labels) == 1)
        assert [reason for reason, _ in await env.events()].count("AllJobsCompleted") == 1


async def test_jobs_not_yet_watched_are_not_created_again(env: JobSetEnv, leader: Leader) -> None:
    late = leader.api.hold_back(views.JOBS)
    async with leader.leading():
        await env.create(builders.jobset("train", builders.replicated("w", 5)))
        await env.until_jobs(5)
        before = reconciles(leader)
        for number in range(3):  # each causes a reconcile
            change = {"metadata": {"labels": {"x": str(number)}}}
            await env.api.patch(f"{env.all_jobsets}/train", change, content_type=client.Patch.MERGE)
            await eventually.true(functools.partial(has_reconciled, leader, before + number))
        assert leader.api.calls["create jobs"] == 5
        late.set()
        await env.runs("train-w-0")
        await eventually.true(lambda: ready(env, 1))
        assert leader.api.calls["create jobs"] == 5


async def test_job_with_lost_create_answer_is_recognized(
    env: JobSetEnv, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = leader.api._exchange
    lost: list[str] = []

    async def losing(request: object) -> Json:
        answer = await whole(request)  # type: ignore[arg-type]
        if answer.get("kind") == "Job" and getattr(request, "method", "") == "POST" and not lost:
            lost.append(answer["metadata"]["name"])
            raise errors.ApiUnavailableError("the answer is lost")
        return answer

    monkeypatch.setattr(leader.api, "_exchange", losing)
    leader.api.hold_back(views.JOBS)
    async with leader.leading():
        await env.create(builders.jobset("train", builders.replicated("w", 3)))
        await env.until_jobs(3)
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        assert leader.api.calls["create jobs"] <= 3 + 3


async def test_foreign_job_with_name_is_reported_and_kept(env: JobSetEnv, leader: Leader) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}
    await env.api.create(env.all_jobs, {"metadata": {"name": "train-w-1"}, "spec": {"template": template}})
    async with leader.leading():
        await env.create(builders.jobset())
        await env.until_event("JobCreationFailed")
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        jobs = await env.jobs()
        assert naming.JOBSET_NAME not in (jobs["train-w-1"]["metadata"].get("labels") or {})
        assert "ownerReferences" not in jobs["train-w-1"]["metadata"]
        await env.api.delete(f"{env.all_jobs}/train-w-1", options={"propagationPolicy": "Background"})
        await eventually.true(lambda: owned(env, "train-w-1"))


async def test_many_refused_jobs_give_one_event(env: JobSetEnv, leader: Leader) -> None:
    message = "jobs.batch is forbidden: exceeded quota: few, requested: count/jobs.batch=1"
    refused: dict[str, Any] = {"status": 403, "method": "POST", "path": "/batch/v1/", "message": message}
    env.server.fail_next(8, **refused)
    async with leader.leading():
        await env.create(builders.jobset("train", builders.replicated("w", 8)))
        await env.until_jobs(8)
        await env.until_event("JobCreationFailed")
        (note,) = [note for reason, note in await env.events() if reason == "JobCreationFailed"]
        assert note == f'job "train-w-0" creation failed with error: {message} (and 7 more)'


@pytest.mark.parametrize(
    ("resource", "reason"),
    [("services", "HeadlessServiceCreationFailed"), ("persistentvolumeclaims", "PVCCreationFailed")],
)
async def test_refused_prerequisite_has_servers_message(
    env: JobSetEnv, leader: Leader, resource: str, reason: str
) -> None:
    refused: dict[str, Any] = {
        "status": 403,
        "method": "POST",
        "path": f"/{resource}",
        "message": "exceeded quota: few",
    }
    env.server.fail_next(1, **refused)
    async with leader.leading():
        await env.create(builders.with_claim())
        await env.until_event(reason)
        assert (reason, "exceeded quota: few") in await env.events()


async def test_rounds_do_not_wait_for_prerequisites(env: JobSetEnv, leader: Leader) -> None:
    env.server.fail_next(10_000, status=403, method="GET", path="/api/v1/services")
    await env.create(builders.jobset())
    async with leader.leading() as jobsets:
        async with asyncio.timeout(60.0):
            await jobsets.wait_known()
        assert jobsets.find(env.namespace, "train") is not None
        await eventually.true(lambda: ComponentState.DEGRADED in {each.state for each in leader.reports})
        assert leader.api.calls["create jobs"] == 0


async def test_outage_within_plan_is_completed_later(env: JobSetEnv, server: ApiProxy) -> None:
    async with Client(server.kubeconfig) as api:
        leader = Leader(api, parallel=2)
        server.fail_next(6, method="POST", path="/batch/v1/")
        async with leader.leading():
            await env.create(builders.jobset("train", builders.replicated("w", 20)))
            await env.until_jobs(20)
            for name in await env.jobs():
                await env.runs(name)
            await eventually.true(lambda: ready(env, 20))
        assert leader.metric("kubemend_jobset_writes_total", write="CreateJob", result="failed") >= 1
        assert api.calls["create jobs"] <= 20 + 6 + 2
        assert "JobCreationFailed" not in {reason for reason, _ in await env.events()}


async def test_new_leader_continues_within_plan(env: JobSetEnv, server: ApiProxy) -> None:
    async with Client(server.kubeconfig) as first_api, Client(server.kubeconfig) as second_api:
        first, second = Leader(first_api, parallel=1, name="one"), Leader(second_api, name="two")
        async with first.leading():
            await env.create(builders.jobset("train", builders.replicated("w", 40)))
            await eventually.true(lambda: some_jobs(env))
        begun = len(await env.jobs())
        async with second.leading():
            jobs = await env.until_jobs(40)
            for name in jobs:
                await env.runs(name)
            await eventually.true(lambda: ready(env, 40))
        assert 0 < begun <= 40
        assert second_api.calls["create jobs"] <= 40 - begun + 1  # one of the first's may have been on its way
        assert len({job["metadata"]["uid"] for job in jobs.values()}) == 40


async def test_late_status_of_previous_leader_is_rejected(env: JobSetEnv, server: ApiProxy) -> None:
    async with Client(server.kubeconfig) as first_api, Client(server.kubeconfig) as second_api:
        first, second = Leader(first_api, name="one"), Leader(second_api, name="two")
        async with first.leading(), second.leading(), background(env.collecting):  # each believes to lead
            await env.create(builders.jobset(failurePolicy={"maxRestarts": 5}))
            for attempt in range(3):
                await eventually.true(functools.partial(of_attempt, env, attempt))
                await env.ends("train-w-0", failed=True)
            await eventually.true(lambda: of_attempt(env, 3))
            status = await env.status()
            assert (status["restarts"], status["restartsCountTowardsMax"]) == (3, 3)
            await eventually.true(lambda: restarts_of(first) + restarts_of(second) == 3)


async def test_missing_definition_is_reported_and_awaited(env: JobSetEnv, leader: Leader) -> None:
    missing = env.server.fail_next(10_000, status=404, path="/apis/jobset.x-k8s.io/", message="404 page not found")
    async with leader.leading() as jobsets:
        await jobsets.wait_known()
        assert leader.reports[-1].state is ComponentState.IDLE
        assert "kubectl apply -k daemonset/jobset" in leader.reports[-1].hint
        env.server.rules.remove(missing)
        await env.create(builders.jobset())
        await env.until_jobs(2)
        await eventually.true(lambda: leader.reports[-1].state is ComponentState.READY)


async def test_forbidden_list_is_reported_and_no_jobsets_known(env: JobSetEnv, leader: Leader) -> None:
    env.server.fail_next(1000, status=403, method="GET", path="/jobsets")
    async with leader.leading() as jobsets:
        await jobsets.wait_known()
        assert leader.reports[-1].state is ComponentState.DEGRADED


async def test_invalid_jobset_is_reported_and_others_run(env: JobSetEnv, leader: Leader) -> None:
    env.server.rewrite = with_an_unknown_suspension
    async with leader.leading() as jobsets:
        await env.create(builders.jobset("broken", suspend=True))
        await env.create(builders.jobset("train"))
        await env.until_event("Invalid")
        assert {name.partition("-")[0] for name in await env.until_jobs(2)} == {"train"}
        assert jobsets.is_invalid(env.namespace, "broken")
        assert not jobsets.is_invalid(env.namespace, "train")
        assert not jobsets.is_invalid("other", "broken")


def with_an_unknown_suspension(text: bytes) -> bytes:
    """Return JobSets with a value of another version."""
    return text.replace(b'"suspend":true', b'"suspend":"perhaps"') if b'"JobSet"' in text else text


async def test_foreign_service_is_not_created_repeatedly(env: JobSetEnv, leader: Leader) -> None:
    service = {"metadata": {"name": "train"}, "spec": {"clusterIP": "None"}}
    await env.api.create(f"/api/v1/namespaces/{env.namespace}/services", service)
    async with leader.leading():
        await env.create(builders.jobset())
        for name in await env.until_jobs(2):
            await env.runs(name)
        await eventually.true(lambda: ready(env, 2))
        assert leader.api.calls["create services"] == 1


async def test_deleted_service_is_created_again(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset())
        await env.until_jobs(2)
        await env.api.delete(f"/api/v1/namespaces/{env.namespace}/services/train")
        await eventually.true(lambda: has_service(env))


def reconciles(leader: Leader) -> float:
    return leader.metric("kubemend_jobset_reconcile_seconds_count", step="whole")


def restarts_of(leader: Leader) -> float:
    return leader.metric("kubemend_jobset_restarts_total", kind="Recreate")


def has_reconciled(leader: Leader, more_than: float) -> bool:
    return reconciles(leader) > more_than


async def ready(env: JobSetEnv, count: int) -> bool:
    statuses = (await env.status()).get("replicatedJobsStatus") or ()
    return any(each["ready"] == count for each in statuses)


async def owned(env: JobSetEnv, name: str) -> bool:
    job = (await env.jobs()).get(name)
    return job is not None and bool(job["metadata"].get("ownerReferences"))


async def some_jobs(env: JobSetEnv) -> bool:
    return bool(await env.jobs())


async def has_service(env: JobSetEnv) -> bool:
    found = await env.api.list(f"/api/v1/namespaces/{env.namespace}/services")
    return any(each["metadata"]["name"] == "train" for each in found.items)


async def of_attempt(env: JobSetEnv, attempt: int) -> bool:
    jobs = await env.jobs()
    return len(jobs) == 2 and all(
        job["metadata"]["labels"][naming.RESTART_ATTEMPT] == str(attempt) and "deletionTimestamp" not in job["metadata"]
        for job in jobs.values()
    )
