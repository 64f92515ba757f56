"""What kubelet does about containers that somebody else stops, creates, starts or removes: design.md, section 3."""

import pytest

from agent.model.workloads import ContainerState
from common.kube import client
from tests.contract.kubelet.cluster import (
    LOOP,
    Cluster,
    Swapper,
    conditions,
    container,
    is_ready,
    newest,
    path,
    restarts,
    runs_again,
    states,
    status_of,
)

pytestmark = pytest.mark.devnode

FOREIGN = "kubemend.io/DevicesHealthy"
HASH = "io.kubernetes.container.hash"


async def test_a_swapped_container_is_adopted(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="OnFailure")
    await cluster.condition(pod, FOREIGN, "False")
    swap = Swapper(cluster, pod)
    async with cluster.between_looks():
        await swap.stop()
        successor = await swap.create_next()
        await swap.start(successor)
    after = await cluster.wait(pod, lambda now: runs_again(1)(now) and is_ready(now))
    assert status_of(after)["containerID"] == f"containerd://{successor}"
    assert status_of(after)["lastState"]["terminated"]["exitCode"] == 137
    assert conditions(after)[FOREIGN] == "False"
    assert states(await cluster.containers(pod)) == [(0, ContainerState.EXITED), (1, ContainerState.RUNNING)]
    assert after["status"]["podIP"] == pod["status"]["podIP"]


async def test_swaps_in_a_row_meet_no_backoff(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="OnFailure")
    swap = Swapper(cluster, pod)
    for count in range(1, 5):
        async with cluster.between_looks():
            await swap.stop()
            await swap.start(await swap.create_next())
        await cluster.wait(pod, runs_again(count), timeout=9)


async def test_create_before_stop_keeps_a_never_pod_alive(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    swap = Swapper(cluster, pod)
    async with cluster.between_looks():
        successor = await swap.create_next()
        await swap.stop()
        await swap.start(successor)
    after = await cluster.wait(pod, runs_again(1))
    assert after["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("policy", "sidecar", "phase"),
    [
        pytest.param("Never", False, "Failed", id="never-alone-fails"),
        pytest.param("Never", True, "Running", id="never-with-a-sidecar-gets-a-copy"),
        pytest.param("OnFailure", False, "Running", id="on-failure-gets-a-copy"),
    ],
)
async def test_a_look_between_stop_and_start_although_the_successor_is_created(
    cluster: Cluster, policy: str, sidecar: bool, phase: str
) -> None:
    """The swapper stands still after the stop until kubelet has looked, as a slow runtime would make it."""
    inits = [container("side", LOOP, restartPolicy="Always")] if sidecar else []
    pod = await cluster.running(container("main", LOOP), inits=inits, policy=policy)
    swap = Swapper(cluster, pod)
    await swap.create_next()
    await swap.stop()
    if phase == "Failed":
        await cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")
        return
    after = await cluster.wait(pod, runs_again(2))
    assert after["status"]["phase"] == "Running"
    assert states(await cluster.containers(pod))[1:] == [(1, ContainerState.CREATED), (2, ContainerState.RUNNING)]


async def test_a_successor_left_created_gets_a_copy_started_beside_the_running_one(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    await Swapper(cluster, pod).create_next()
    await _resync(cluster, pod)
    await cluster.wait(pod, runs_again(2), timeout=55)
    found = states(await cluster.containers(pod))
    assert [attempt for attempt, state in found if state is ContainerState.RUNNING] == [0, 2]


async def test_a_duplicate_of_an_older_attempt_is_never_killed(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="OnFailure")
    swap = Swapper(cluster, pod)
    await swap.start(await swap.create_next())
    await cluster.wait(pod, runs_again(1))
    await cluster.condition(pod, FOREIGN, "True")
    await _resync(cluster, pod)
    assert states(await cluster.containers(pod)) == [(0, ContainerState.RUNNING), (1, ContainerState.RUNNING)]


async def test_a_removed_container_is_started_again_without_backoff(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="OnFailure")
    for count in (1, 2, 3):
        await Swapper(cluster, pod).remove()
        after = await cluster.wait(pod, runs_again(count), timeout=8)
        last = status_of(after)["lastState"]["terminated"]
        assert (last["reason"], last["exitCode"]) == ("ContainerStatusUnknown", 137)


async def test_a_removed_container_fails_a_never_pod(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    await Swapper(cluster, pod).remove()
    await cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")


async def test_all_containers_removed_runs_the_init_container_again(cluster: Cluster) -> None:
    mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
    pod = await cluster.running(
        container("main", LOOP),
        inits=[container("init", "echo ran >> /d/init", **mount)],
        policy="Always",
        volumes=[{"name": "d", "emptyDir": {}}],
    )
    await Swapper(cluster, pod, "init").remove()
    await Swapper(cluster, pod, "main").remove()
    await cluster.wait(pod, runs_again(1))
    assert cluster.volume(pod, "d").joinpath("init").read_text().split() == ["ran", "ran"]


async def test_a_container_with_another_hash_is_replaced(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    swap = Swapper(cluster, pod)
    async with cluster.between_looks():
        successor = await swap.create_next(annotations={HASH: "1"})
        await swap.stop()
        await swap.start(successor)
    await cluster.wait(pod, runs_again(2))
    assert newest(await cluster.containers(pod)).attempt == 2


async def test_a_kubelet_that_starts_again_adopts_what_runs(own_cluster: Cluster) -> None:
    pod = await own_cluster.running(container("main", LOOP), policy="Never")
    before = status_of(pod)["containerID"]
    await own_cluster.node.kubelet.kill()
    swap = Swapper(own_cluster, pod)
    await swap.stop()
    successor = await swap.create_next()
    await swap.start(successor)
    await own_cluster.node.kubelet.start()
    after = await own_cluster.wait(pod, lambda now: status_of(now).get("containerID") != before and is_ready(now))
    assert status_of(after)["containerID"] == f"containerd://{successor}"
    assert restarts(after) == 1
    assert states(await own_cluster.containers(pod)) == [(0, ContainerState.EXITED), (1, ContainerState.RUNNING)]


async def _resync(cluster: Cluster, pod: dict[str, object]) -> None:
    """Have kubelet sync the pod by its own timer: at once in the stand-in; a real one has a timer of a few seconds.

    A label is a change of the pod, which makes either of them sync it.
    """
    await cluster.kube.patch(path(pod), {"metadata": {"labels": {"touched": "yes"}}}, content_type=client.Patch.MERGE)
    if cluster.node.kubelet.control is not None:
        await cluster.control.resync()
