"""A RayCluster: a head, and a group of two workers that train together."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hack.devnode.cluster import Cluster
from kubemend.common import gangs
from tests.devnode.workload import SHARED
from tests.platforms import controllers
from tests.platforms.owned import Kind, Owned
from tests.platforms.story import Story

pytestmark = [pytest.mark.devnode, pytest.mark.long]

_RAY = "#!/bin/sh\nexit 0\n"
_BASH = '#!/bin/sh\nexec /bin/busybox sh "$@"\n'
_WGET = "#!/bin/sh\necho success\n"
"""Stand-ins of what a Ray image has and the init container and the probes that KubeRay adds to pods call."""

Json = dict[str, Any]


def deletions(_: Json, events: Sequence[Json], __: Sequence[Json]) -> dict[str, Any]:
    """It counts nothing; it records each pod that it deletes because its program has ended."""
    return {"pods deleted": sum(each["reason"] in ("DeletedWorkerPod", "DeletedHeadPod") for each in events)}


KIND = Kind(
    "rayclusters",
    "ray.io",
    "v1",
    selector="ray.io/cluster={name},ray.io/node-type=worker",
    budget=deletions,
)


def spec(training: Owned) -> Json:
    """Return a RayCluster's spec whose containers run our trainer in place of ``ray start``."""
    bash, *_ = [training.program(*each) for each in (("bash", _BASH), ("ray", _RAY))]
    worker = training.template(restart_policy="Always", annotations={"ray.io/overwrite-container-cmd": "true"})
    (container,) = worker["spec"]["containers"]
    container["env"].append({"name": "PATH", "value": f"{SHARED}/bin:/bin"})
    container["volumeMounts"].append({"name": "bash", "mountPath": "/bin/bash"})
    worker["spec"]["volumes"].append({"name": "bash", "hostPath": {"path": str(bash), "type": "File"}})
    head = {**worker, "metadata": {**worker["metadata"], "labels": {gangs.GANG: gangs.ALONE}}}
    group = {"groupName": "trainers", "replicas": 2, "minReplicas": 2, "maxReplicas": 2, "rayStartParams": {}}
    return {
        "headGroupSpec": {"rayStartParams": {}, "template": head},
        "workerGroupSpecs": [{**group, "template": worker}],
    }


async def test_a_group_of_workers_is_restarted_as_one_and_the_head_is_not(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    async with Story.beside(controllers.KUBERAY, cluster, KIND, size=2, state=tmp_path, tell=tell) as story:
        training = story.training
        await training.begin(spec(training))
        (head,) = await training.others("ray.io/node-type=head")
        first, second = training.workers
        await story.a_worker_is_killed(first)
        await story.a_gpu_has_a_fault(second)
        assert await training.budget() == {"pods deleted": 0}
        await story.a_pod_is_deleted_in_a_round()  # KubeRay deletes a pod once more that ends while it is deleted
        assert await training.others("ray.io/node-type=head") == [head]
        await story.all_are_suspended_in_a_round()
        await story.a_node_is_lost()
