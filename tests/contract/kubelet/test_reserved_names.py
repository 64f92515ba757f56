"""The rerun's assumptions: kubelet starts nothing under a reserved name, and frees such names by itself."""

from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from kubemend.agent.restart import reservations
from tests.contract.kubelet.cluster import (
    LOOP,
    Cluster,
    Swapper,
    container,
    is_ready,
    newest,
    restarts,
    runs_again,
    status_of,
    uid,
)

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="package")]

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


async def in_sandbox(cluster: Cluster, pod: dict[str, Any]) -> tuple[ContainerSummary, ...]:
    (sandbox,) = {view.sandbox_id for view in await cluster.containers(pod)}
    async with cluster.runtime() as runtime:
        return await runtime.list_containers(sandbox_id=sandbox)


async def release(cluster: Cluster, *held: ContainerId) -> None:
    async with cluster.runtime() as runtime:
        for each in held:
            await runtime.remove_container(each)


def is_refused(pod: dict[str, Any]) -> bool:
    """Return whether kubelet has failed to create the init container."""
    waiting = status_of(pod, "init").get("state", {}).get("waiting", {})
    ended = status_of(pod, "init").get("lastState", {})
    return waiting.get("reason") == "CreateContainerError" or "CreateContainerError" in str(ended)


async def test_reserved_name_blocks_kubelet_until_it_is_free(cluster: Cluster) -> None:
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


async def test_reservation_does_not_belong_to_the_pod(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Always")
    held = await Swapper(cluster, pod).reserve(attempt=2)
    await cluster.touch(pod)
    swap = Swapper(cluster, pod)
    await swap.stop()
    after = await cluster.wait(pod, runs_again(1))
    successor = newest(await cluster.containers(pod))
    assert status_of(after)["containerID"] == f"containerd://{successor.id}"
    assert successor.attempt == 1, "kubelet does not count from the reserved attempt"
    await release(cluster, held)


@pytest.mark.long
async def test_reservation_of_a_dead_agent_is_freed_within_a_minute(own_cluster: Cluster) -> None:
    """Nothing else is removed with it: kubelet removes all files that begin with a removed container's log path."""
    cluster = own_cluster
    pod = await pod_with_init(cluster)
    init, main = Swapper(cluster, pod, "init"), Swapper(cluster, pod, "main")
    for swapper, attempt in ((main, 1), (init, 1), (init, 2), (main, 2)):
        await swapper.reserve(attempt=attempt)
    logs = logs_of(cluster, pod)
    assert len(logs) == 2
    await init.remove()
    await main.remove()
    after = await cluster.wait(pod, lambda now: runs_again(1)(now) and is_ready(now), timeout=GARBAGE_SECONDS)
    assert restarts(after, "init") == 1
    assert runs_of_init(cluster, pod) == 2
    assert not [view for view in await in_sandbox(cluster, pod) if reservations.reserves(view)]
    assert logs <= logs_of(cluster, pod)


def logs_of(cluster: Cluster, pod: dict[str, Any]) -> set[Path]:
    where = cluster.node.layout.pod_log_dir(namespace="default", name=pod["metadata"]["name"], uid=uid(pod))
    return set(where.rglob("*.log"))


async def test_reservation_does_not_delay_its_pods_deletion(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Always")
    await Swapper(cluster, pod).reserve(attempt=2)
    await cluster.delete(pod)
    await cluster.gone(pod)
