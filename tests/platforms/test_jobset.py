"""A JobSet of upstream's controller, alone and next to a JobSet that kubemend's controller runs."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.peers import upstream
from hack.devnode import controlplane, jobsets, node, readyz, watching
from hack.devnode.apiserver import KubeApiServer
from hack.devnode.cluster import Cluster
from hack.devnode.controllers import Controllers
from hack.devnode.gang_objects import Shape
from hack.devnode.layout import NodeLayout
from hack.devnode.rounds import Rounds
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths
from tests.platforms import controllers
from tests.platforms.owned import Kind, Owned
from tests.platforms.story import Story

pytestmark = [pytest.mark.devnode, pytest.mark.long]

SIZE, MOST_RESTARTS = 3, 2
DEADLINE = 120.0

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
        await story.all_are_suspended_in_a_round()
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
        await jobsets.allow_directories(own.api)
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


async def test_a_gang_that_upstreams_sidecars_restart_in_place_is_left_to_them(tmp_path: Path) -> None:
    """Its pods have opted in to kubemend, too. The sidecars reach the API server by the bridge of the pods."""
    async with contextlib.AsyncExitStack() as stack:
        api_server = KubeApiServer(tmp_path / "kube", options=["--bind-address=0.0.0.0"])
        await stack.enter_async_context(api_server)
        options = node.Options(gpus=2)
        layout = NodeLayout.named(f"platforms-{os.getpid()}")
        dev = await stack.enter_async_context(node.DevNode(layout, api=api_server, options=options))
        api = await stack.enter_async_context(kube.connect(kubeconfig=dev.kubeconfig))
        await upstream.define_jobsets(dev)
        await stack.enter_async_context(upstream.controller(dev, api))
        await stack.enter_async_context(controlplane.on(dev.kubeconfig, dev.layout.root / "control-plane"))
        hub = await stack.enter_async_context(Controllers.on([dev], replicas=1))
        await stack.enter_async_context(hub.run())
        agent = await stack.enter_async_context(hub.agent(dev, f"--state-dir={tmp_path / 'state'}"))
        await readyz.until(agent, lambda ready: ready["parts"]["hub"]["state"] == "ready", what="the hub")
        shape = Shape(members=2, annotations={"kubemend.io/restart": "InPlace"})
        gang = await stack.enter_async_context(upstream.UpstreamGang.on([dev], "theirs", shape=shape, timeout=DEADLINE))
        rounds, before = Rounds(api, gang.template.key), await gang.identities()
        fault = await gang.end(0, exit_code=1)
        async with asyncio.timeout(DEADLINE), contextlib.aclosing(watching.collection(api, jobsets.JOBSETS)) as seen:
            async for (jobset,) in seen:
                if (jobset.get("status") or {}).get("currentInPlaceRestartAttempt", 0) >= 1:
                    break
        restarted = {life.began for life in await gang.all_running(since=fault, timeout=DEADLINE)}
        assert await gang.identities() == before
        assert await rounds.all() == []
        await rounds.ask("by-hand")
        path = paths.collection("restarts", namespace="default", group="restarts.kubemend.io", version="v1alpha1")
        async with asyncio.timeout(DEADLINE), contextlib.aclosing(watching.collection(api, path)) as seen:
            async for (asked,) in seen:
                if (status := asked.get("status") or {}).get("phase"):
                    break
        assert (status["phase"], status["decision"]["reason"]) == ("Refused", "JobSetRestartsInPlace")
        assert {life.began for life in await gang.all_running(since=fault, timeout=DEADLINE)} == restarted


async def test_a_webhook_without_restarts_in_place_refuses_them_for_every_jobset(cluster: Cluster) -> None:
    platform, dev = controllers.JOBSET, cluster.first
    if reason := platform.missing():
        pytest.skip(reason)
    async with (
        kube.connect(kubeconfig=dev.kubeconfig) as api,
        controllers.run(platform, dev, api),
        Owned.on(cluster, api, KIND, "own", size=1) as own,
    ):
        with pytest.raises(errors.InvalidError, match="InPlaceRestart feature gate is disabled"):
            await own.begin(ours(own, size=1))
