"""Where kubelet's look at the runtime falls into a swap decides what it does: each place, exactly, on the stand-in.

A real kubelet cannot be held; on it these are races of some milliseconds against its look once a second.
"""

import pytest

from agent.cri import errors
from agent.model.workloads import ContainerState
from tests.contract.kubelet.cluster import LOOP, Cluster, Swapper, container, restarts, runs_again, states

pytestmark = pytest.mark.devnode


async def test_never_a_look_between_stop_and_create_fails_the_pod(held_cluster: Cluster) -> None:
    pod = await held_cluster.running(container("main", LOOP), policy="Never")
    await held_cluster.control.hold()
    swap = Swapper(held_cluster, pod)
    await swap.stop()
    await held_cluster.control.relist()
    await held_cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")


async def test_never_a_look_between_stop_and_start_fails_a_pod_with_nothing_else_running(
    held_cluster: Cluster,
) -> None:
    """Creating n+1 first does not help then: a CREATED container with a last exit of 137 counts as stopped."""
    pod = await held_cluster.running(container("main", LOOP), policy="Never")
    await held_cluster.control.hold()
    swap = Swapper(held_cluster, pod)
    await swap.create_next()
    await swap.stop()
    await held_cluster.control.relist()
    await held_cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")


async def test_never_a_look_between_stop_and_start_starts_a_copy_where_a_sidecar_runs(held_cluster: Cluster) -> None:
    side = container("side", LOOP, restartPolicy="Always")
    pod = await held_cluster.running(container("main", LOOP), inits=[side], policy="Never")
    await held_cluster.control.hold()
    swap = Swapper(held_cluster, pod)
    await swap.create_next()
    await swap.stop()
    await held_cluster.control.relist()
    found = states(await held_cluster.containers(pod))
    assert found[1:] == [(1, ContainerState.CREATED), (2, ContainerState.RUNNING)]


async def test_never_a_look_while_created_and_running_does_nothing(held_cluster: Cluster) -> None:
    pod = await held_cluster.running(container("main", LOOP), policy="Never")
    await held_cluster.control.hold()
    swap = Swapper(held_cluster, pod)
    successor = await swap.create_next()
    await held_cluster.control.relist()
    assert states(await held_cluster.containers(pod)) == [(0, ContainerState.RUNNING), (1, ContainerState.CREATED)]
    await swap.stop()
    await swap.start(successor)
    await held_cluster.control.relist()
    after = await held_cluster.wait(pod, runs_again(1))
    assert restarts(after) == 1


async def test_on_failure_a_look_between_stop_and_create_makes_kubelet_win_the_name(held_cluster: Cluster) -> None:
    pod = await held_cluster.running(container("main", LOOP), policy="OnFailure")
    await held_cluster.control.hold()
    swap = Swapper(held_cluster, pod)
    await swap.stop()
    await held_cluster.control.relist()
    assert states(await held_cluster.containers(pod))[-1] == (1, ContainerState.RUNNING)
    with pytest.raises(errors.NameReserved):
        await swap.create_next(attempt=1)


async def test_a_look_after_the_swap_sees_only_its_end(held_cluster: Cluster) -> None:
    pod = await held_cluster.running(container("main", LOOP), policy="Never")
    await held_cluster.control.hold()
    swap = Swapper(held_cluster, pod)
    await swap.stop()
    await swap.start(await swap.create_next())
    await held_cluster.control.relist()
    after = await held_cluster.wait(pod, runs_again(1))
    assert after["status"]["phase"] == "Running"
