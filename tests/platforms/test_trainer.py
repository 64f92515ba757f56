"""A TrainJob of Kubeflow Trainer v2 with three workers: it makes a JobSet for upstream's JobSet controller."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.peers import upstream
from hack.devnode import jobsets
from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import NAMESPACE
from hack.devnode.node import DevNode
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests.platforms import controllers
from tests.platforms.owned import Kind, Owned
from tests.platforms.story import BRIEF, Story

pytestmark = [pytest.mark.devnode, pytest.mark.long]

GROUP, VERSION, SIZE = "trainer.kubeflow.org", "v1alpha1", 3
RUNTIMES = paths.collection("trainingruntimes", namespace=NAMESPACE, group=GROUP, version=VERSION)

Json = dict[str, Any]


def failures(job: Json, _: Sequence[Json], pods: Sequence[Json]) -> dict[str, Any]:
    """It counts the JobSet's Jobs that have failed; a Job counts restartCounts against its own backoffLimit."""
    statuses = (job.get("status") or {}).get("jobsStatus") or ()
    counts = [each["restartCount"] for pod in pods for each in pod["status"].get("containerStatuses") or ()]
    return {"Jobs failed": sum(each.get("failed", 0) for each in statuses), "restarts": sum(counts)}


KIND = Kind(
    "trainjobs",
    GROUP,
    VERSION,
    selector="jobset.sigs.k8s.io/jobset-name={name}",
    budget=failures,
    container="node",
    gang=("JobSet", "{name}"),
)


@contextlib.asynccontextmanager
async def jobset_controller(dev: DevNode, api: kube.KubeClient) -> AsyncIterator[None]:
    """Run upstream's JobSet controller with its webhooks."""
    await upstream.define_jobsets(dev)
    async with upstream.controller(dev, api):
        yield


async def make_runtime(training: Owned) -> None:
    """Create the TrainingRuntime ``busybox``."""
    job = jobsets.job(members=SIZE, pod=training.template())
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = {"name": "node", "replicas": 1, "template": {"metadata": {"labels": labels}, **job}}
    template = {"spec": {"replicatedJobs": [node]}}
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainingRuntime",
        "metadata": {"name": "busybox", "namespace": NAMESPACE},
        "spec": {"mlPolicy": {"numNodes": SIZE}, "template": template},
    }
    await training.api.create(RUNTIMES, body)


def is_complete(status: Json) -> bool:
    """Return whether a TrainJob's status says that it has completed."""
    return any(each["type"] == "Complete" and each["status"] == "True" for each in status.get("conditions") or ())


async def test_a_train_job_is_restarted_as_one_without_a_restart_of_its_jobset(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform = controllers.TRAINER
    async with Story.beside(
        platform, cluster, KIND, size=SIZE, state=tmp_path, tell=tell, upon=jobset_controller
    ) as story:
        training = story.training
        await make_runtime(training)
        await training.begin({"runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": "busybox"}})
        await story.a_worker_is_killed(training.workers[1])
        await story.a_gpu_has_a_fault(training.workers[0])
        await story.a_pod_is_deleted_in_a_round()
        await story.all_are_suspended_in_a_round()
        await story.a_node_is_lost()
        jobset = await training.api.get(f"{jobsets.JOBSETS}/{training.name}")
        assert jobset["status"].get("restarts", 0) == 0
        assert (await training.budget())["Jobs failed"] == 0
        await story.completes(is_complete)


async def test_members_of_a_silent_agent_and_of_a_silent_node_are_replaced_by_the_train_job(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform = controllers.TRAINER
    async with Story.beside(
        platform, cluster, KIND, size=SIZE, state=tmp_path, tell=tell, upon=jobset_controller, patience=BRIEF
    ) as story:
        training = story.training
        await make_runtime(training)
        await training.begin({"runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": "busybox"}})
        for step in (story.an_agent_falls_silent, story.a_node_falls_silent):
            members = (await step())["status"]["members"]
            assert members["inPlace"] + members["recreated"] == SIZE
            assert members["recreated"] > 0
        jobset = await training.api.get(f"{jobsets.JOBSETS}/{training.name}")
        assert jobset["status"].get("restarts", 0) == 0
        assert (await training.budget())["Jobs failed"] == 0
        assert len(await story.rounds.all()) == 2
