"""Run a JobSet under kubemend, with real containers, from its creation to its completion, through all kinds of faults.

On a real control plane and real kubelets. One cluster and one JobSet for all of it: later steps must work after earlier
ones.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import cluster as devnode_cluster
from hack.devnode import jobsets, node, patience
from hack.devnode.cluster import Cluster
from hack.devnode.rounds import Rounds
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests import clusters
from tests.devnode.jobsets_training import DRIVER, Training
from tests.scenarios.gang.product import Product

pytestmark = [pytest.mark.devnode, pytest.mark.timeout(600)]

KEPT_OFF = "kubemend.io/device-failure"

Json = dict[str, Any]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes, one of which is lost in the end."""
    with clusters.running(f"e2e-{os.getpid()}", nodes=3, options=node.Options(gpus=4)) as made:
        yield made


class Story:
    """The JobSet, and its reports so far."""

    def __init__(self, cluster: Cluster, training: Training, api: kube.KubeClient) -> None:
        self.cluster = cluster
        self.training = training
        self.api = api
        self.rounds = Rounds(api, training.gang)
        self.count = 0

    async def restarted(self, *, because: str, recreated: set[str], before: dict[str, str]) -> Json:
        """Wait for the next round, and check its result; all train afterwards, from their checkpoints."""
        self.count += 1
        restart = await self.rounds.finished(self.count, timeout=180.0)
        status = restart["status"]
        assert status["phase"] == "Done", status
        assert status["trigger"]["kind"] == because, status
        assert status["decision"]["kind"] == ("InPlaceAndRecreate" if recreated else "InPlace"), status
        await self.training.trains()
        after = await self.training.uids()
        assert {member for member in before if after[member] != before[member]} == recreated
        await self.training.until(self._is_counted, what=f"a status with {self.count} restarts")
        reported = await self.training.condition("kubemend.io/InPlaceRestart")
        assert (reported["status"], reported["reason"]) == ("False", "Restarted"), reported
        return dict(restart)

    async def _is_counted(self) -> bool:
        status = (await self.training.jobset())["status"]
        reported = (status.get("currentInPlaceRestartAttempt"), status.get("restartsCountTowardsMax"))
        condition = await self.training.condition("kubemend.io/InPlaceRestart")
        is_over = condition.get("status") == "False" and f"attempt {self.count}:" in condition["message"]
        return reported == (self.count, self.count) and is_over


async def test_a_jobset_trains_through_a_killed_worker_a_faulted_gpu_and_a_lost_node_to_its_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with (
        Product.on(cluster, state=tmp_path) as product,
        kube.connect(kubeconfig=cluster.first.kubeconfig, deadlines=patience.API) as api,
        jobsets.run_on(cluster.first),
    ):
        await product.start(nodes=3)
        async with Training.on(cluster, api, "llm") as training:
            story = Story(cluster, training, api)
            await begins(story)
            await a_worker_is_killed(story)
            broken, lost = await two_workers_to_lose(story)
            await a_gpu_has_a_passing_fault(story, broken)
            await a_gpu_is_broken(story, broken)
            await a_node_is_lost(story, product, lost)
            await completes(story)


async def begins(story: Story) -> None:
    """Each worker is on a node of its own, and all members are counted as ready."""
    training = story.training
    pods = await training.pods()
    assert len({pods[member]["spec"]["nodeName"] for member in training.workers}) == 3
    for pod in pods.values():
        annotations = pod["metadata"]["annotations"]
        assert annotations["kubemend.io/restart"] == "InPlace"
        assert annotations["jobset.sigs.k8s.io/coordinator"] == "llm-driver-0-0.llm"

    async def all_ready() -> bool:
        reported = (await training.jobset()).get("status", {}).get("replicatedJobsStatus", ())
        return {each["name"]: each["ready"] for each in reported} == {"driver": 1, "workers": 1}

    await training.until(all_ready, what="replicatedJobsStatus with all Jobs ready")


async def a_worker_is_killed(story: Story) -> None:
    training, before = story.training, await story.training.uids()
    steps = training.steps()
    await training.kill("workers-0-0")
    restart = await story.restarted(because="Exit", recreated=set(), before=before)
    (held,) = [each for each in restart["status"]["conditions"] if each["type"] == "HeldTogether"]
    assert held["reason"] in ("AllHeld", "HeldAfterMilliseconds"), held
    for member in training.members:
        first, *others = training.lives(member)
        # One may have lived a moment before it was held, and then the round reports it; in the failed member's place
        # kubelet may have started one before there was a round.
        a_moment = member == "workers-0-0" or held["reason"] == "HeldAfterMilliseconds"
        assert 1 <= len(others) <= 1 + a_moment, (member, held)
        assert first.step == 0
        for each in others:
            assert each.step >= steps[member], f"{member} did not resume from its checkpoint"
            assert each.node == first.node


async def two_workers_to_lose(story: Story) -> tuple[str, str]:
    """Return a worker whose GPU may break, and one whose node may be lost: neither the first one nor the driver's."""
    driver = await story.training.node_of(DRIVER)
    nodes = {member: await story.training.node_of(member) for member in story.training.workers}
    elsewhere = [member for member, each in nodes.items() if each is not story.cluster.first]
    lost = next(member for member in elsewhere if nodes[member] is not driver)
    return next(member for member in elsewhere if member != lost), lost


async def a_gpu_has_a_passing_fault(story: Story, member: str) -> None:
    """Xid 31 is the program's: it is restarted, with all others, in place."""
    before = await story.training.uids()
    await story.training.write_xid(member, 31)
    restart = await story.restarted(because="Device", recreated=set(), before=before)
    assert restart["status"]["trigger"]["code"] == "Xid31"


async def a_gpu_is_broken(story: Story, member: str) -> None:
    """Xid 79 is the device's: its member moves to another node, no new pod comes to this one, the others stay.

    Its program does not end: it ignores the fault, as one that hangs in a collective.
    """
    training, before = story.training, await story.training.uids()
    broken, gpu = await training.node_of(member), await training.gpu(member)
    await training.write_xid(member, 79)
    restart = await story.restarted(because="Device", recreated={member}, before=before)
    trigger = restart["status"]["trigger"]
    assert trigger["code"] == "Xid79", trigger
    assert broken.gpu_uuids[gpu] in trigger["message"], trigger
    assert (await training.node_of(member)).name != broken.name

    async def is_kept_off() -> bool:
        taints = (await story.api.get(f"{paths.NODES}/{broken.name}"))["spec"].get("taints", ())
        kept_off = [(each["value"], each["effect"]) for each in taints if each["key"] == KEPT_OFF]
        return kept_off == [("Xid79", "NoSchedule")]

    await training.until(is_kept_off, what="the taint of the node with the broken GPU")
    assert training.lives(member)[-1].step > 0


async def a_node_is_lost(story: Story, product: Product, member: str) -> None:
    """Its members move, once the driver's collective has timed out; the others wait for them in place."""
    training, before = story.training, await story.training.uids()
    lost = await training.node_of(member)
    gone = {each for each, pod in (await training.pods()).items() if pod["spec"]["nodeName"] == lost.name}
    await product.kill_agent(story.cluster.nodes.index(lost))
    await devnode_cluster.power_off(lost)
    await devnode_cluster.out_of_service(story.api, lost.name)
    training.lose_peer()
    restart = await story.restarted(because="Exit", recreated=gone, before=before)
    assert restart["status"]["trigger"]["member"] == (await training.pods())[DRIVER]["metadata"]["name"]
    assert (await training.node_of(member)).name != lost.name


async def completes(story: Story) -> None:
    """All workers reach the goal, the driver notices it, and everything is reported as upstream does."""
    training = story.training
    goal = training.set_goal(further=20)

    async def is_over() -> bool:
        return (await training.condition("Completed")).get("status") == "True"

    await training.until(is_over, what="the completion")
    assert [training.step(member) for member in training.workers] == [goal] * 3
    status = (await training.jobset())["status"]
    assert (await training.condition("Completed"))["reason"] == "AllJobsCompleted"
    assert status["terminalState"] == "Completed"
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (0, story.count)
    assert (status["previousInPlaceRestartAttempt"], status["currentInPlaceRestartAttempt"]) == (3, 4)
    assert {each["name"]: each["succeeded"] for each in status["replicatedJobsStatus"]} == {"driver": 1, "workers": 1}
    assert len(await story.rounds.all()) == story.count == 4
