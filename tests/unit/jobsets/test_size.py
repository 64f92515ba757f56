"""A JobSet of a thousand Jobs: each is written once, and all is decided in one look."""

from pathlib import Path

from common.kube.transport import Json
from controller.jobset import naming
from controller.jobsets.queue import Pace
from hack.devnode.api import standin
from tests import eventually
from tests.unit.jobsets import rig

JOBS = 1000


async def test_a_thousand_jobs_are_made_once_and_restarted_once(tmp_path: Path) -> None:
    async with (
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig", history=100_000) as server,
        rig.Client(server.kubeconfig) as api,
        rig.Client(server.kubeconfig) as own,
    ):
        await rig.install(own)
        bench, leader = rig.Bench(server, own), rig.Leader(api, pace=Pace())
        async with leader.leading():
            await bench.create(rig.jobset("train", rig.replicated("w", JOBS), failurePolicy={"maxRestarts": 1}))
            await bench.until_jobs(JOBS)
            await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
            assert api.calls["create jobs"] == JOBS
            await bench.ends("train-w-7", failed=True)
            await eventually.true(lambda: all_deleted(server))
            assert api.calls["delete"] == JOBS
            await bench.collect_garbage()
            await eventually.true(lambda: all_anew(server))
            assert api.calls["create jobs"] == 2 * JOBS
            assert api.calls["delete"] == JOBS
            assert (await bench.status())["restarts"] == 1


def all_deleted(server: standin.StandIn) -> bool:
    return all("deletionTimestamp" in job["metadata"] for job in stored(server))


def all_anew(server: standin.StandIn) -> bool:
    jobs = stored(server)
    return len(jobs) == JOBS and all(job["metadata"]["labels"][naming.RESTART_ATTEMPT] == "1" for job in jobs)


def stored(server: standin.StandIn) -> list[Json]:
    """All Jobs, without asking for them: a list of a thousand takes its time."""
    jobs = server.handler.place(rig.JOBS)
    assert jobs is not None
    return server.handler.store.select(jobs.resource, namespace=rig.NAMESPACE)
