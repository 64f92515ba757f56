"""What a rerun builds on: kubelet starts nothing under a name that is taken, and gives such names back by itself."""

from pathlib import Path
from typing import Any

import pytest

from agent.model.workloads import ContainerId, ContainerView
from agent.restart import reservations
from common.kube import client
from tests.contract.kubelet.cluster import (
    LOOP,
    Cluster,
    Swapper,
    container,
    is_ready,
    newest,
    path,
    restarts,
    runs_again,
    status_of,
    uid,
)

pytestmark = pytest.mark.devnode

VOLUME: dict[str, Any] = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
GARBAGE_SECONDS = 90.0
"""Kubelet collects garbage once a minute (``ContainerGCPeriod``)."""


async def pod_with_init(cluster: Cluster) -> dict[str, Any]:
    return await cluster.running(
        container("main", LOOP),
        inits=[container("init", "echo ran >> /d/init", **VOLUME)],
        policy="Always",
        volumes=[{"name": "d", "emptyDir": {}}],
    )


def runs_of_init(cluster: Cluster, pod: dict[str, Any]) -> int:
    return len(cluster.volume(pod, "d").joinpath("init").read_text().split())


async def in_sandbox(cluster: Cluster, pod: dict[str, Any]) -> tuple[ContainerView, ...]:
    (sandbox,) = {view.sandbox_id for view in await cluster.containers(pod)}
    async with cluster.runtime() as runtime:
        return await runtime.list_containers(sandbox_id=sandbox)


async def release(cluster: Cluster, *held: ContainerId) -> None:
    async with cluster.runtime() as runtime:
        for each in held:
            await runtime.remove_container(each)


def is_refused(pod: dict[str, Any]) -> bool:
    """Whether kubelet has tried to create the init container, and could not."""
    waiting = status_of(pod, "init").get("state", {}).get("waiting", {})
    ended = status_of(pod, "init").get("lastState", {})
    return waiting.get("reason") == "CreateContainerError" or "CreateContainerError" in str(ended)


async def test_kubelet_runs_nothing_under_a_name_that_is_taken_and_goes_on_when_it_is_free(cluster: Cluster) -> None:
    pod = await pod_with_init(cluster)
    init, main = Swapper(cluster, pod, "init"), Swapper(cluster, pod, "main")
    held = [await init.reserve(attempt=1), await main.reserve(attempt=1)]
    await init.remove()
    await main.remove()
    await cluster.wait(pod, is_refused)
    assert runs_of_init(cluster, pod) == 1
    assert await cluster.containers(pod, "init") == ()
    assert await cluster.containers(pod, "main") == ()
    await release(cluster, *held)
    after = await cluster.wait(pod, lambda now: runs_again(1)(now) and is_ready(now))
    assert restarts(after, "init") == 1
    assert runs_of_init(cluster, pod) == 2


async def test_a_reservation_is_none_of_the_pods_containers(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Always")
    held = await Swapper(cluster, pod).reserve(attempt=2)
    await cluster.kube.patch(path(pod), {"metadata": {"labels": {"touched": "yes"}}}, content_type=client.Patch.MERGE)
    if cluster.node.kubelet.control is not None:
        await cluster.control.resync()
    swap = Swapper(cluster, pod)
    await swap.stop()
    after = await cluster.wait(pod, runs_again(1))
    assert status_of(after)["containerID"] == f"containerd://{newest(await cluster.containers(pod)).id}"
    assert held in {view.id for view in await in_sandbox(cluster, pod)}
    await release(cluster, held)


async def test_what_an_agent_that_died_for_good_has_reserved_is_free_again_within_a_minute(cluster: Cluster) -> None:
    """Nothing else is removed with it: kubelet removes all files that begin with the log path of what it removes."""
    pod = await pod_with_init(cluster)
    init, main = Swapper(cluster, pod, "init"), Swapper(cluster, pod, "main")
    for swapper, attempt in ((main, 1), (init, 1), (init, 2), (main, 2)):
        await swapper.reserve(attempt=attempt)
    logs = logs_of(cluster, pod)
    assert len(logs) == 2
    await init.remove()
    await main.remove()
    if cluster.node.kubelet.control is not None:
        await cluster.wait(pod, is_refused)
        await cluster.control.gc()
        await cluster.control.resync()
    after = await cluster.wait(pod, lambda now: runs_again(1)(now) and is_ready(now), timeout=GARBAGE_SECONDS)
    assert restarts(after, "init") == 1
    assert runs_of_init(cluster, pod) == 2
    assert not [view for view in await in_sandbox(cluster, pod) if reservations.reserves(view)]
    assert logs <= logs_of(cluster, pod)


def logs_of(cluster: Cluster, pod: dict[str, Any]) -> set[Path]:
    where = cluster.node.layout.pod_log_dir(namespace="default", name=pod["metadata"]["name"], uid=uid(pod))
    return set(where.rglob("*.log"))


async def test_a_reservation_does_not_hold_up_the_deletion_of_its_pod(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Always")
    await Swapper(cluster, pod).reserve(attempt=2)
    await cluster.delete(pod)
    await cluster.gone(pod)
