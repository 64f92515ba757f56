"""Kubelet's reaction to containers that another program stops, creates, starts or removes."""

import pytest

from kubemend.agent.model.workloads import ContainerState
from tests import eventually
from tests.contract.kubelet.cluster import (
    LOOP,
    Cluster,
    Swapper,
    conditions,
    container,
    is_ready,
    newest,
    obeying,
    restarts,
    runs_again,
    runs_again_at_once,
    states,
    status_of,
)

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="package")]

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
        await cluster.wait(pod, runs_again_at_once(count))


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
async def test_relist_between_stop_and_start_with_a_created_successor(
    cluster: Cluster, policy: str, sidecar: bool, phase: str
) -> None:
    """The swapper pauses after the stop until kubelet has relisted, as a slow runtime would make it."""
    inits = [container("side", LOOP, restartPolicy="Always")] if sidecar else []
    pod = await cluster.running(container("main", LOOP), inits=inits, policy=policy)
    swap = Swapper(cluster, pod)
    async with cluster.between_looks():  # a sync before the stop that knows of the successor starts one more container
        await swap.create_next()
        await swap.stop()
    if phase == "Failed":
        await cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")
        return
    after = await cluster.wait(pod, runs_again(2))
    assert after["status"]["phase"] == "Running"
    assert states(await cluster.containers(pod))[1:] == [(1, ContainerState.CREATED), (2, ContainerState.RUNNING)]


async def test_created_successor_makes_kubelet_start_a_duplicate(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    await cluster.looks.hold()
    await Swapper(cluster, pod).create_next()
    await cluster.looks.look()  # kubelet must know of it before it is woken: the next sync is a minute away
    await cluster.looks.release()
    await cluster.touch(pod)
    await cluster.wait(pod, runs_again(2))
    found = states(await cluster.containers(pod))
    assert [attempt for attempt, state in found if state is ContainerState.RUNNING] == [0, 2]


async def test_a_duplicate_of_an_older_attempt_is_never_killed(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="OnFailure")
    swap = Swapper(cluster, pod)
    async with cluster.between_looks():
        await swap.start(await swap.create_next())
    await cluster.wait(pod, runs_again(1))
    await cluster.condition(pod, FOREIGN, "True")
    await cluster.looks.hold()
    await cluster.touch(pod)
    await cluster.looks.relist()
    assert states(await cluster.containers(pod)) == [(0, ContainerState.RUNNING), (1, ContainerState.RUNNING)]


async def test_a_removed_container_is_started_again_without_backoff(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="OnFailure")
    for count in (1, 2, 3):
        async with cluster.between_looks():  # an exit that kubelet sees before the removal counts for the backoff
            await Swapper(cluster, pod).remove()
        after = await cluster.wait(pod, runs_again_at_once(count))
        last = status_of(after)["lastState"]["terminated"]
        assert (last["reason"], last["exitCode"]) == ("ContainerStatusUnknown", 137)


async def test_a_removed_container_fails_a_never_pod(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    await Swapper(cluster, pod).remove()
    await cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
async def test_a_successor_that_is_removed_next_to_a_completed_container_leaves_the_pod_complete(
    cluster: Cluster, policy: str
) -> None:
    """Kubelet has seen the successor run, and does not see how it ends."""
    pod = await cluster.running(container("main", obeying()), policy=policy)
    swap = Swapper(cluster, pod)
    async with cluster.between_looks():
        successor = await swap.create_next()
        await swap.start(successor)
    await cluster.wait(pod, runs_again(1))
    async with cluster.between_looks(), cluster.runtime() as runtime:
        old, _ = await cluster.containers(pod)
        await runtime.exec_sync(old.id, ("sh", "-c", "echo 0 > /tmp/exit"), timeout=60)

        async def has_completed() -> bool:
            return states(await cluster.containers(pod))[0] == (0, ContainerState.EXITED)

        await eventually.true(has_completed)
        await runtime.remove_container(successor)
    await cluster.wait(pod, lambda now: now["status"]["phase"] == "Succeeded")
    assert states(await cluster.containers(pod)) == [(0, ContainerState.EXITED)]


async def test_all_containers_removed_runs_the_init_container_again(cluster: Cluster) -> None:
    mount = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}
    pod = await cluster.running(
        container("main", LOOP),
        inits=[container("init", "echo ran >> /d/init", **mount)],
        policy="Always",
        volumes=[{"name": "d", "emptyDir": {}}],
    )
    async with cluster.between_looks():  # of a main container whose exit it sees first, kubelet restarts that alone
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


async def test_restarted_kubelet_adopts_running_containers(own_cluster: Cluster) -> None:
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
