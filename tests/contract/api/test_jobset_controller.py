"""A controller process runs a JobSet from its creation to its completion, on a real API server.

Kubernetes' own Job controller and garbage collector run, too. Nothing runs pods: their phases are set by hand.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from hack.devnode import kubernetes, layout, processes
from hack.devnode.controllers import Controllers
from hack.devnode.node import DevNode
from kubemend.controller.jobset.children import naming
from tests import eventually
from tests.control_plane import ControlPlane
from tests.unit.jobsets import builders
from tests.unit.jobsets.conftest import env
from tests.unit.jobsets.env import JobSetEnv

__all__ = ["env"]

_MANAGER = "kube-controller-manager"


@dataclass(frozen=True, slots=True)
class Place:
    """The part of a dev node that a controller needs."""

    layout: layout.NodeLayout
    kubeconfig: Path
    name: str = "place"


class Workloads:
    """Set the phases of Jobs' pods; the Job controller reacts."""

    def __init__(self, env: JobSetEnv) -> None:
        self._api = env.api
        self._pods = env.all_pods

    async def start(self, job: str) -> None:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": builders.now()}
        await self._say(job, phase="Running", conditions=[ready], startTime=builders.now())

    async def stop(self, job: str) -> None:
        pass  # the Job controller deletes them

    async def end(self, job: str, *, failed: bool) -> None:
        await self._say(job, phase="Failed" if failed else "Succeeded")

    async def _say(self, job: str, **status: Any) -> None:
        """Set the status of a Job's current single pod."""
        of_job = {"labelSelector": f"batch.kubernetes.io/job-name={job}"}
        names: list[str] = []

        async def one_lives() -> bool:
            found = await self._api.list(self._pods, params=of_job)
            names[:] = [
                each["metadata"]["name"]
                for each in found.items
                if "deletionTimestamp" not in each["metadata"]
                and (each.get("status") or {}).get("phase") not in ("Failed", "Succeeded")
            ]
            return len(names) == 1

        await eventually.true(one_lives)
        await self._api.patch_status(f"{self._pods}/{names[0]}", {"status": status})


@pytest.fixture
async def workloads(control_plane: ControlPlane, env: JobSetEnv, tmp_path: Path) -> AsyncIterator[Workloads]:
    if reason := kubernetes.missing(_MANAGER):
        pytest.fail(reason, pytrace=False)
    binary = kubernetes.program(_MANAGER)
    flags = {
        "kubeconfig": str(control_plane.kubeconfig),
        "controllers": "job-controller,garbage-collector-controller",
        "leader-elect": "false",
        "secure-port": "0",
        "cert-dir": str(tmp_path),
        "use-service-account-credentials": "false",
    }
    manager = processes.Child.start(
        [str(binary), *(f"--{name}={value}" for name, value in flags.items())],
        name=_MANAGER,
        log=tmp_path / "manager.log",
        pid_file=tmp_path / "manager.pid",
    )
    try:
        yield Workloads(env)
    finally:
        await manager.stop(grace=10.0)


@pytest.fixture
async def controllers(control_plane: ControlPlane) -> AsyncIterator[Controllers]:
    with tempfile.TemporaryDirectory(prefix="km-") as root:  # a socket's path below it must be short
        where = layout.NodeLayout(root=Path(root), name="place")
        where.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(control_plane.kubeconfig, where.kubeconfig)
        place = Place(where, where.kubeconfig)
        async with Controllers.on([cast("DevNode", place)], replicas=1) as made:
            yield made


def manifest() -> dict[str, Any]:
    one_failure = {"backoffLimit": 0}
    return builders.jobset(
        "train",
        builders.replicated("lead", 1, job=one_failure),
        builders.replicated("work", 2, job=one_failure),
        failurePolicy={"maxRestarts": 2},
    )


async def test_a_jobset_is_created_suspended_resumed_restarted_and_completed(
    env: JobSetEnv, controllers: Controllers, workloads: Workloads
) -> None:
    names = ["train-lead-0", "train-work-0", "train-work-1"]
    async with controllers.run():
        await env.create(manifest())
        assert sorted(await env.until_jobs(3)) == names
        for name in names:
            await workloads.start(name)
        await eventually.true(lambda: counts(env, "work", ready=2))

        await env.suspend(suspend=True)
        await env.until_condition("Suspended", reason="SuspendedJobs")
        await eventually.true(lambda: all_suspended(env, suspended=True))
        for name in names:
            await workloads.stop(name)
        await eventually.true(lambda: counts(env, "work", ready=0, suspended=2))
        await env.suspend(suspend=False)
        await env.until_condition("Suspended", reason="ResumeJobs", status="False")
        await eventually.true(lambda: all_suspended(env, suspended=False))

        for name in names:
            await workloads.start(name)
        await eventually.true(lambda: counts(env, "work", ready=2))
        before = {name: job["metadata"]["uid"] for name, job in (await env.jobs()).items()}
        await workloads.end("train-work-1", failed=True)
        await env.until_condition("RestartingJobSet")
        await eventually.true(lambda: created_again(env, before))
        status = await env.status()
        assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)

        for name in names:
            await workloads.start(name)
        await env.until_condition("RestartingJobSet", reason="JobsReady", status="False")
        for name in names:
            await workloads.end(name, failed=False)
        await env.until_condition("Completed", reason="AllJobsCompleted")
        await env.until_event("AllJobsCompleted")
        reasons = {reason for reason, _ in await env.events()}
        assert {"SuspendedJobs", "ResumeJobs", "RestartJobSetFailurePolicyAction", "JobsReady"} <= reasons


async def counts(env: JobSetEnv, name: str, **wanted: int) -> bool:
    """Return whether replicatedJobsStatus has these counts."""
    statuses = {each["name"]: each for each in (await env.status()).get("replicatedJobsStatus") or ()}
    return name in statuses and wanted.items() <= statuses[name].items()


async def all_suspended(env: JobSetEnv, *, suspended: bool) -> bool:
    jobs = await env.jobs()
    return all(bool(job["spec"].get("suspend")) is suspended for job in jobs.values())


async def created_again(env: JobSetEnv, before: dict[str, str]) -> bool:
    """Return whether every Job has been replaced, and belongs to the next attempt."""
    jobs = await env.jobs()
    uids = {name: job["metadata"]["uid"] for name, job in jobs.items()}
    attempts = {job["metadata"]["labels"][naming.RESTART_ATTEMPT] for job in jobs.values()}
    return uids.keys() == before.keys() and not set(uids.values()) & set(before.values()) and attempts == {"1"}
