"""A JobSet of many Jobs: each is written once, and all are decided in one reconcile."""

import functools

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobsets.queue import Intervals
from tests import eventually
from tests.control_plane import Tenant
from tests.unit.jobsets import builders
from tests.unit.jobsets.env import Client, JobSetEnv, Leader

JOBS = 200


async def test_many_jobs_are_created_once_and_restarted_once(tenant: Tenant) -> None:
    async with Client(tenant.kubeconfig) as api, Client(tenant.kubeconfig) as own:
        env = JobSetEnv(tenant.server, own, namespace=tenant.namespace)
        leader = Leader(api, intervals=Intervals())
        async with leader.leading():
            await env.create(builders.jobset("train", builders.replicated("w", JOBS), failurePolicy={"maxRestarts": 1}))
            await env.until_jobs(JOBS)
            await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
            assert api.calls["create jobs"] == JOBS
            await env.ends("train-w-7", failed=True)
            await eventually.true(functools.partial(all_deleted, env), look_again=0.2)
            assert api.calls["delete"] == JOBS
            await env.collect_garbage()
            await eventually.true(functools.partial(all_anew, env), look_again=0.2)
            assert api.calls["create jobs"] == 2 * JOBS
            assert api.calls["delete"] == JOBS
            assert (await env.status())["restarts"] == 1


async def all_deleted(env: JobSetEnv) -> bool:
    return all("deletionTimestamp" in job["metadata"] for job in (await env.jobs()).values())


async def all_anew(env: JobSetEnv) -> bool:
    jobs = await env.jobs()
    return len(jobs) == JOBS and all(job["metadata"]["labels"][naming.RESTART_ATTEMPT] == "1" for job in jobs.values())
