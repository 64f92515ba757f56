"""A LeaderWorkerSet of two groups, each of a leader and two workers; the faults are in the first one."""

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


def recreations(_: Json, events: Sequence[Json], __: Sequence[Json]) -> dict[str, Any]:
    """It has no limit: it recreates a group, and records that, each time that a container of it was restarted."""
    return {"groups recreated": sum(each["reason"] == "RecreateGroupOnPodRestart" for each in events)}


OTHER_GROUP = "leaderworkerset.sigs.k8s.io/group-index=1"
KIND = Kind(
    "leaderworkersets",
    "leaderworkerset.x-k8s.io",
    "v1",
    selector="leaderworkerset.sigs.k8s.io/name={name},leaderworkerset.sigs.k8s.io/group-index=0",
    gang=("LeaderWorkerSet", "{name}-0"),
    budget=recreations,
)


def spec(training: Owned, *, policy: str, groups: int = 2) -> Json:
    """Return a LeaderWorkerSet's spec; its pods' restartPolicy must be Always, as for every StatefulSet.

    The leaders run on the first node: the workers' StatefulSet belongs to the leader's pod, and is lost with it.
    """
    template = training.template(restart_policy="Always")
    first = {"kubernetes.io/hostname": training.cluster.first.name}
    leader = {**template, "spec": {**template["spec"], "nodeSelector": first}}
    group = {"size": 3, "restartPolicy": policy, "leaderTemplate": leader, "workerTemplate": template}
    return {"replicas": groups, "leaderWorkerTemplate": group}


async def test_a_group_is_restarted_as_one_and_never_recreated(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform = controllers.LEADER_WORKER_SET
    async with Story.beside(platform, cluster, KIND, size=3, state=tmp_path, tell=tell) as story:
        await story.training.begin(spec(story.training, policy="None"))
        other = await story.training.others(OTHER_GROUP)
        await story.a_worker_is_killed("llm-0-1")
        await story.a_gpu_has_a_fault("llm-0")
        await story.a_pod_is_deleted_in_a_round()
        assert await story.training.budget() == {"groups recreated": 0}
        assert await story.training.others(OTHER_GROUP) == other


async def test_a_group_is_restarted_with_new_workers_for_those_of_a_lost_node(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform = controllers.LEADER_WORKER_SET
    async with Story.beside(platform, cluster, KIND, size=3, state=tmp_path, tell=tell) as story:
        await story.training.begin(spec(story.training, policy="None", groups=1))
        await story.a_node_is_lost()
        assert await story.training.budget() == {"groups recreated": 0}


async def test_a_group_that_it_recreates_by_itself_is_left_to_it(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    platform = controllers.LEADER_WORKER_SET
    async with Story.beside(platform, cluster, KIND, size=3, state=tmp_path, tell=tell) as story:
        training = story.training
        await training.begin(spec(training, policy="RecreateGroupOnPodRestart"))
        before = await training.uids()
        await training.kill("llm-0-1")

        async def all_are_new() -> bool:
            after = await training.uids()
            return after.keys() == before.keys() and not set(after.values()) & set(before.values())

        await training.until(all_are_new, what="the group recreated by its controller")
        await training.trains()
        assert await training.budget() == {"groups recreated": 1}
        (refused,) = await story.rounds.all()
        assert refused["status"]["phase"] == "Failed"
        assert "LeaderWorkerSetRecreatesGroup" in {each["reason"] for each in refused["status"]["failures"]}
