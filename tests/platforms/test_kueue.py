"""An Indexed Job in a queue of Kueue, which suspends it in the middle of a round for a Job of higher priority."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import images, jobsets
from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import NAMESPACE
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests.platforms import controllers
from tests.platforms.owned import Kind, Owned
from tests.platforms.story import Story

pytestmark = [pytest.mark.devnode, pytest.mark.long]

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
GPU = "nvidia.com/gpu"
MEMBERS = 3

Json = dict[str, Any]


def requeues(job: Json, _: Sequence[Json], pods: Sequence[Json]) -> dict[str, Any]:
    """The Job counts failed pods; Kueue counts nothing of a Job that it has preempted."""
    return {"pods failed": (job.get("status") or {}).get("failed", 0), "suspended": job["spec"]["suspend"]}


KIND = Kind("jobs", "batch", "v1", selector="batch.kubernetes.io/job-name={name}", budget=requeues)


async def make_queue(api: kube.KubeClient) -> None:
    """Create a queue with as many GPUs as the gang needs, in which higher priorities preempt lower ones."""
    quota = {"name": GPU, "nominalQuota": MEMBERS}
    resources = {"coveredResources": [GPU], "flavors": [{"name": "default", "resources": [quota]}]}
    cluster_queue = {
        "namespaceSelector": {},
        "resourceGroups": [resources],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    await create(api, "resourceflavors", "ResourceFlavor", "default")
    await create(api, "clusterqueues", "ClusterQueue", "all", spec=cluster_queue)
    await create(api, "workloadpriorityclasses", "WorkloadPriorityClass", "high", value=1000)
    await create(api, "localqueues", "LocalQueue", "queue", namespace=NAMESPACE, spec={"clusterQueue": "all"})


async def create(api: kube.KubeClient, plural: str, kind: str, name: str, *, namespace: str = "", **rest: Any) -> None:
    """Create one of Kueue's objects."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": metadata, **rest}
    await api.create(paths.collection(plural, namespace=namespace or None, group=GROUP, version=VERSION), body)


def spec(training: Owned) -> Json:
    """Return the Job's spec."""
    return dict(jobsets.job(members=MEMBERS, pod=training.template())["spec"], suspend=True)


class Urgent:
    """A Job of higher priority that needs all GPUs, and sleeps."""

    def __init__(self, api: kube.KubeClient) -> None:
        self._api = api

    async def begin(self) -> None:
        """Create it."""
        container = {
            "name": "sleep",
            "image": images.BUSYBOX,
            "imagePullPolicy": "Never",
            "command": ["sleep", "1000"],
            "resources": {"limits": {GPU: str(MEMBERS)}},
        }
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
        labels = {**QUEUE, "kueue.x-k8s.io/priority-class": "high"}
        metadata = {"name": "urgent", "namespace": NAMESPACE, "labels": labels}
        job = {"suspend": True, "template": {"spec": {**pod, "automountServiceAccountToken": False}}}
        await self._api.create(KIND.path, {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job})

    async def end(self) -> None:
        """Delete it."""
        await self._api.delete(f"{KIND.path}/urgent", options={"propagationPolicy": "Background"})


async def test_a_queued_job_is_restarted_as_one_and_a_preemption_ends_its_round(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    async with Story.beside(controllers.KUEUE, cluster, KIND, size=MEMBERS, state=tmp_path, tell=tell) as story:
        training, urgent = story.training, Urgent(story.training.api)
        await make_queue(training.api)
        await training.begin(spec(training), labels=QUEUE)
        await story.a_worker_is_killed(training.workers[0])
        await story.a_gpu_has_a_fault(training.workers[1])
        await story.all_are_suspended_in_a_round(urgent.begin, urgent.end)
        await story.a_worker_is_killed(training.workers[0])
        await story.completes(lambda status: status.get("succeeded") == MEMBERS)
