"""A Job that Kueue places by topology, next to a spare node, which takes the place of a node that fails."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import jobsets, node
from hack.devnode.cluster import Cluster
from hack.devnode.gang_objects import NAMESPACE
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests import clusters
from tests.platforms import controllers
from tests.platforms import test_kueue as kueue
from tests.platforms.owned import Kind, Owned
from tests.platforms.story import Story

pytestmark = [pytest.mark.devnode, pytest.mark.long]

BLOCK, HOST = "example.com/block", "kubernetes.io/hostname"
GPUS_PER_NODE, MEMBERS = 2, 4

Json = dict[str, Any]


def failed(job: Json, events: Sequence[Json], pods: Sequence[Json]) -> dict[str, Any]:
    """The Job counts failed pods, those of a lost node, too."""
    return {"pods failed": kueue.requeues(job, events, pods)["pods failed"]}


KIND = Kind("jobs", "batch", "v1", selector="batch.kubernetes.io/job-name={name}", budget=failed)


@pytest.fixture
def block() -> Iterator[Cluster]:
    """Three nodes of one block: the gang fills two of them."""
    options = node.Options(gpus=GPUS_PER_NODE)
    with clusters.running(f"topology-{os.getpid()}", nodes=3, options=options) as made:
        yield made


async def make_queue(api: kube.KubeClient, cluster: Cluster) -> None:
    """Create a queue whose flavor has the topology block, node; its quota is all GPUs, but no Job takes the spare."""
    for each in cluster.nodes:
        await api.patch(f"{paths.NODES}/{each.name}", {"metadata": {"labels": {BLOCK: "first"}}})
    levels = [{"nodeLabel": BLOCK}, {"nodeLabel": HOST}]
    flavor = {"nodeLabels": {BLOCK: "first"}, "topologyName": "blocks"}
    quota = {"name": kueue.GPU, "nominalQuota": GPUS_PER_NODE * len(cluster.nodes)}
    resources = {"coveredResources": [kueue.GPU], "flavors": [{"name": "default", "resources": [quota]}]}
    await kueue.create(api, "topologies", "Topology", "blocks", spec={"levels": levels})
    await kueue.create(api, "resourceflavors", "ResourceFlavor", "default", spec=flavor)
    cluster_queue = {"namespaceSelector": {}, "resourceGroups": [resources]}
    await kueue.create(api, "clusterqueues", "ClusterQueue", "all", spec=cluster_queue)
    await kueue.create(api, "localqueues", "LocalQueue", "queue", namespace=NAMESPACE, spec={"clusterQueue": "all"})


def spec(training: Owned) -> Json:
    """Return the spec of a Job whose pods must all be in one block; Kueue chooses their nodes."""
    template = training.template(annotations={"kueue.x-k8s.io/podset-required-topology": BLOCK})
    del template["spec"]["topologySpreadConstraints"]
    return dict(jobsets.job(members=MEMBERS, pod=template)["spec"], suspend=True)


async def workload(api: kube.KubeClient) -> Json:
    """Return Kueue's only Workload."""
    path = paths.collection("workloads", namespace=NAMESPACE, group=kueue.GROUP, version=kueue.VERSION)
    found: Json
    (found,) = (await api.list(path)).items
    return found


def was_evicted(found: Json) -> bool:
    """Return whether Kueue has ever taken the Workload's quota away."""
    return any(each["type"] == "Evicted" for each in found["status"]["conditions"])


async def chosen(training: Owned) -> set[str]:
    """Return the nodes that Kueue has chosen for the pods, before the scheduler saw them."""
    return {each["spec"]["nodeSelector"][HOST] for each in (await training.pods()).values()}


async def test_a_spare_node_takes_a_failed_ones_place_in_a_round(
    block: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    async with Story.beside(controllers.KUEUE, block, KIND, size=MEMBERS, state=tmp_path, tell=tell) as story:
        training = story.training
        await make_queue(training.api, block)
        await training.begin(spec(training), labels=kueue.QUEUE)
        first, lost, spare = block.nodes
        assert await chosen(training) == {first.name, lost.name}
        admitted = await workload(training.api)
        await story.a_worker_is_killed(training.workers[0])
        await story.a_pod_is_deleted_in_a_round()
        await story.a_node_is_lost()
        assert await chosen(training) == {first.name, spare.name}
        await story.a_worker_is_killed(training.workers[0])
        now = await workload(training.api)
        assert (now["metadata"]["uid"], was_evicted(now)) == (admitted["metadata"]["uid"], False)
        await story.completes(lambda status: status.get("succeeded") == MEMBERS)
