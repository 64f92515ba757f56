"""A JobSet of upstream's controller, alone and beside a JobSet that kubemend's controller runs."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import jobsets
from hack.devnode.cluster import Cluster
from hack.devnode.rounds import Rounds
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors
from tests.platforms import controllers
from tests.platforms.owned import Kind, Owned
from tests.platforms.story import Story

pytestmark = [pytest.mark.devnode, pytest.mark.long]

SIZE, MOST_RESTARTS = 3, 2

Json = dict[str, Any]


def restarts(jobset: Json, _: Sequence[Json], __: Sequence[Json]) -> dict[str, Any]:
    """It counts how often it has created all Jobs again, against maxRestarts."""
    return {"restarts": (jobset.get("status") or {}).get("restarts", 0), "maxRestarts": MOST_RESTARTS}


KIND = Kind(
    "jobsets",
    "jobset.x-k8s.io",
    "v1alpha2",
    selector="jobset.sigs.k8s.io/jobset-name={name}",
    budget=restarts,
    gang=("JobSet", "{name}"),
)


def spec(training: Owned, *, size: int, **policy: Any) -> Json:
    """Return a JobSet's spec with one Job."""
    workers = {"name": "workers", "replicas": 1, "template": jobsets.job(members=size, pod=training.template())}
    return {"failurePolicy": {"maxRestarts": MOST_RESTARTS, **policy}, "replicatedJobs": [workers]}


def ours(training: Owned, *, size: int) -> Json:
    """Return the spec of a JobSet that kubemend's controller runs."""
    return {**spec(training, size=size, restartStrategy="InPlaceRestart"), "managedBy": jobsets.MANAGED_BY}


def suspended(training: Owned, value: bool) -> Callable[[], Awaitable[None]]:
    """Return the call that sets the JobSet's ``suspend``."""

    async def call() -> None:
        change = {"spec": {"suspend": value}}
        await training.api.patch(f"{KIND.path}/{training.name}", change, content_type=kube.Patch.MERGE)

    return call


def is_completed(status: Json) -> bool:
    """Return whether a JobSet's status says that it has completed."""
    return any(each["type"] == "Completed" and each["status"] == "True" for each in status.get("conditions") or ())


async def test_a_jobset_is_restarted_as_one_and_counts_no_restart(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    async with Story.beside(controllers.JOBSET, cluster, KIND, size=SIZE, state=tmp_path, tell=tell) as story:
        training = story.training
        await training.begin(spec(training, size=SIZE))
        await story.a_worker_is_killed(training.workers[1])
        await story.a_gpu_has_a_fault(training.workers[0])
        await story.a_pod_is_deleted_in_a_round()
        await story.all_are_suspended_in_a_round(suspended(training, True), suspended(training, False))
        await story.a_node_is_lost()
        assert (await training.budget())["restarts"] == 0
        await story.completes(is_completed)


async def test_a_jobset_of_either_controller_is_restarted_and_the_other_one_trains_on(
    cluster: Cluster, tmp_path: Path, tell: Callable[[Json], None]
) -> None:
    """Upstream's webhook has to allow restarts in place: its feature gate must be on, also for JobSets of others."""
    platform = controllers.JOBSET_WITH_RESTARTS
    async with (
        Story.beside(platform, cluster, KIND, size=SIZE, state=tmp_path, tell=tell) as story,
        Owned.on(cluster, story.training.api, KIND, "own", size=2) as own,
    ):
        training, rounds = story.training, Rounds(own.api, own.gang)
        await training.begin(spec(training, size=SIZE))
        await own.begin(ours(own, size=2))
        await story.a_worker_is_killed(training.workers[0])
        assert await rounds.all() == []
        lives = {member: len(training.lives(member)) for member in training.members}
        await own.kill(own.workers[0])
        assert (await rounds.finished(1, timeout=120.0))["status"]["phase"] == "Done"
        await own.all_train()
        assert {member: len(training.lives(member)) for member in training.members} == lives
        status = (await own.owner())["status"]
        assert (status["restartsCountTowardsMax"], status["currentInPlaceRestartAttempt"]) == (1, 1)
        assert (await training.budget())["restarts"] == 0


async def test_a_webhook_without_restarts_in_place_refuses_them_for_every_jobset(cluster: Cluster) -> None:
    platform, dev = controllers.JOBSET, cluster.first
    if why := platform.missing():
        pytest.skip(why)
    async with (
        kube.connect(kubeconfig=dev.kubeconfig) as api,
        controllers.run(platform, dev, api),
        Owned.on(cluster, api, KIND, "own", size=1) as own,
    ):
        with pytest.raises(errors.InvalidError, match="InPlaceRestart feature gate is disabled"):
            await own.begin(ours(own, size=1))
