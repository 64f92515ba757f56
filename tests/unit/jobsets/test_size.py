"""A JobSet of many Jobs: each is written once, and all are decided in one reconcile."""

import functools

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobsets.queue import Intervals
from tests import eventually
from tests.control_plane import Tenant
from tests.unit.jobsets import rig

JOBS = 200


async def test_many_jobs_are_created_once_and_restarted_once(tenant: Tenant) -> None:
    async with rig.Client(tenant.kubeconfig) as api, rig.Client(tenant.kubeconfig) as own:
        bench = rig.Bench(tenant.server, own, namespace=tenant.namespace)
        leader = rig.Leader(api, intervals=Intervals())
        async with leader.leading():
            await bench.create(rig.jobset("train", rig.replicated("w", JOBS), failurePolicy={"maxRestarts": 1}))
            await bench.until_jobs(JOBS)
            await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
            assert api.calls["create jobs"] == JOBS
            await bench.ends("train-w-7", failed=True)
            await eventually.true(functools.partial(all_deleted, bench), look_again=0.2)
            assert api.calls["delete"] == JOBS
            await bench.collect_garbage()
            await eventually.true(functools.partial(all_anew, bench), look_again=0.2)
            assert api.calls["create jobs"] == 2 * JOBS
            assert api.calls["delete"] == JOBS
            assert (await bench.status())["restarts"] == 1


async def all_deleted(bench: rig.Bench) -> bool:
    return all("deletionTimestamp" in job["metadata"] for job in (await bench.jobs()).values())


async def all_anew(bench: rig.Bench) -> bool:
    jobs = await bench.jobs()
    return len(jobs) == JOBS and all(job["metadata"]["labels"][naming.RESTART_ATTEMPT] == "1" for job in jobs.values())
