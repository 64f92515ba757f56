"""A PyTorchJob of Kubeflow's training-operator: a master and two workers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hack.devnode.cluster import Cluster
from tests.platforms import controllers
from tests.platforms.owned import Kind, Owned
from tests.platforms.story import Story

pytestmark = [pytest.mark.devnode, pytest.mark.long]

Json = dict[str, Any]


def backoff(job: Json, _: Sequence[Json], pods: Sequence[Json]) -> dict[str, Any]:
    """It sums up the restartCounts of its running pods, and fails when the sum reaches runPolicy.backoffLimit."""
    counts = [each["restartCount"] for pod in pods for each in pod["status"].get("containerStatuses") or ()]
    replicas = (job.get("status") or {}).get("replicaStatuses") or {}
    failed = sum(each.get("failed", 0) for each in replicas.values())
    limit = job["spec"]["runPolicy"].get("backoffLimit", "none")
    return {"restarts": sum(counts), "backoffLimit": limit, "pods failed": failed}


KIND = Kind(
    "pytorchjobs",
    "kubeflow.org",
    "v1",
    selector="training.kubeflow.org/job-name={name}",
    budget=backoff,
    container="pytorch",
    suspend=("runPolicy", "suspend"),
)


def spec(training: Owned, **policy: Any) -> Json:
    """Return a PyTorchJob's spec."""
    template = training.template()
    del template["spec"]["restartPolicy"]
    replica = {"restartPolicy": "OnFailure", "template": template}
    specs = {"Master": {"replicas": 1, **replica}, "Worker": {"replicas": 2, **replica}}
    return {"runPolicy": policy, "pytorchReplicaSpecs": specs}


def has(condition: str) -> Callable[[Json], bool]:
    """Return the test of a status for a condition."""
    return lambda status: any(
        each["type"] == condition and each["status"] == "True" for each in status.get("conditions") or ()
    )


async def test_a_job_is_restarted_as_one_and_succeeds(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform = controllers.TRAINING_OPERATOR
    async with Story.beside(platform, cluster, KIND, size=3, state=tmp_path, tell=tell) as story:
        training = story.training
        await training.begin(spec(training))
        await story.a_worker_is_killed("llm-worker-1")
        await story.a_gpu_has_a_fault("llm-master-0")
        await story.a_pod_is_deleted_in_a_round()
        assert (await training.budget())["pods failed"] == 0
        await story.all_are_suspended_in_a_round()
        await story.a_node_is_lost()
        await story.completes(has("Succeeded"), with_member="llm-master-0")


async def test_a_job_that_one_more_round_would_fail_is_left_to_kubelet(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform = controllers.TRAINING_OPERATOR
    async with Story.beside(platform, cluster, KIND, size=3, state=tmp_path, tell=tell) as story:
        training = story.training
        await training.begin(spec(training, backoffLimit=8))
        await story.a_worker_is_killed("llm-worker-1")
        refused = await story.a_round_is_refused("llm-worker-0")
        assert "JobBackoffLimit" in {each["reason"] for each in refused["status"]["failures"]}
        budget = await training.budget()
        assert budget["restarts"] < budget["backoffLimit"]
        assert not has("Failed")((await training.owner())["status"])
