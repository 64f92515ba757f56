"""An MPIJob of mpi-operator: a launcher, which is a Job of its own, and two workers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hack.devnode.cluster import Cluster
from tests.platforms import controllers
from tests.platforms.owned import Kind, Owned
from tests.platforms.story import Story

pytestmark = [pytest.mark.devnode, pytest.mark.long]

LAUNCHER_AND_WORKERS = 3

Json = dict[str, Any]


def launchers_backoff(job: Json, _: Sequence[Json], pods: Sequence[Json]) -> dict[str, Any]:
    """Its backoffLimit is the launcher's Job's, which sums up the launcher's restartCounts; workers are not counted."""
    launchers = [pod for pod in pods if pod["metadata"]["labels"]["training.kubeflow.org/job-role"] == "launcher"]
    counts = [each["restartCount"] for pod in launchers for each in pod["status"].get("containerStatuses") or ()]
    return {"launcher's restarts": sum(counts), "backoffLimit": job["spec"]["runPolicy"]["backoffLimit"]}


KIND = Kind(
    "mpijobs",
    "kubeflow.org",
    "v2beta1",
    selector="training.kubeflow.org/job-name={name}",
    budget=launchers_backoff,
    suspend=("runPolicy", "suspend"),
)


def spec(training: Owned, *, backoff_limit: int) -> Json:
    """Return an MPIJob's spec."""
    template = training.template()
    del template["spec"]["restartPolicy"]
    replica = {"restartPolicy": "OnFailure", "template": template}
    specs = {"Launcher": {"replicas": 1, **replica}, "Worker": {"replicas": LAUNCHER_AND_WORKERS - 1, **replica}}
    return {"runPolicy": {"backoffLimit": backoff_limit, "cleanPodPolicy": "None"}, "mpiReplicaSpecs": specs}


def has(condition: str) -> Callable[[Json], bool]:
    """Return the test of a status for a condition."""
    return lambda status: any(
        each["type"] == condition and each["status"] == "True" for each in status.get("conditions") or ()
    )


async def test_a_job_is_restarted_as_one_with_its_launcher_and_succeeds(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform, size = controllers.MPI_OPERATOR, LAUNCHER_AND_WORKERS
    async with Story.beside(platform, cluster, KIND, size=size, state=tmp_path, tell=tell) as story:
        training = story.training
        # Four rounds add up to eight to the launcher's count, where kubelet is faster each time.
        await training.begin(spec(training, backoff_limit=12))
        await story.a_worker_is_killed("llm-worker-1")
        await story.a_gpu_has_a_fault("llm-worker-0")
        await story.a_pod_is_deleted_in_a_round()
        await story.all_are_suspended_in_a_round()
        await story.a_node_is_lost()
        await story.completes(has("Succeeded"))


async def test_a_job_whose_launcher_one_more_round_would_fail_is_left_to_kubelet(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform, size = controllers.MPI_OPERATOR, LAUNCHER_AND_WORKERS
    async with Story.beside(platform, cluster, KIND, size=size, state=tmp_path, tell=tell) as story:
        training = story.training
        await training.begin(spec(training, backoff_limit=3))
        await story.a_worker_is_killed("llm-worker-1")
        refused = await story.a_round_is_refused("llm-worker-0")
        assert "JobBackoffLimit" in {each["reason"] for each in refused["status"]["failures"]}
        budget = await training.budget()
        assert budget["launcher's restarts"] < budget["backoffLimit"]
        assert not has("Failed")((await training.owner())["status"])
