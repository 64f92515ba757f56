"""The moment of kubelet's relist in a swap decides its reaction: each moment, held by the proxy."""

import pytest

from kubemend.agent.clients.cri import errors
from kubemend.agent.model.workloads import ContainerState
from tests import eventually
from tests.contract.kubelet.cluster import LOOP, Cluster, Json, Swapper, container, restarts, runs_again, states

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="package")]


async def found(cluster: Cluster, pod: Json, wanted: list[tuple[int, ContainerState]]) -> None:
    """Wait until the runtime has these containers: a busy kubelet may act on a relist after the next one has begun."""

    async def are_there() -> bool:
        return states(await cluster.containers(pod)) == wanted

    await eventually.true(are_there)


async def test_never_relist_between_stop_and_create_fails_the_pod(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    await cluster.looks.hold()
    swap = Swapper(cluster, pod)
    await swap.stop()
    await cluster.looks.relist()
    await cluster.looks.release()  # it has decided; it reports so once it has seen that nothing of the pod runs
    await cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")


async def test_never_relist_between_stop_and_start_fails_a_lone_container(
    cluster: Cluster,
) -> None:
    """Creating n+1 first does not help then: a CREATED container with a last exit of 137 counts as stopped."""
    pod = await cluster.running(container("main", LOOP), policy="Never")
    await cluster.looks.hold()
    swap = Swapper(cluster, pod)
    await swap.create_next()
    await swap.stop()
    await cluster.looks.relist()
    await cluster.looks.release()  # it has decided; it reports so once it has seen that nothing of the pod runs
    await cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")


async def test_never_relist_between_stop_and_start_duplicates_with_a_sidecar(cluster: Cluster) -> None:
    side = container("side", LOOP, restartPolicy="Always")
    pod = await cluster.running(container("main", LOOP), inits=[side], policy="Never")
    await cluster.looks.hold()
    swap = Swapper(cluster, pod)
    await swap.create_next()
    await swap.stop()
    await cluster.looks.relist()
    await found(cluster, pod, [(0, ContainerState.EXITED), (1, ContainerState.CREATED), (2, ContainerState.RUNNING)])


async def test_never_relist_while_created_and_running_does_nothing(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    await cluster.looks.hold()
    await cluster.looks.relist()  # kubelet still owes the start a sync, and would see the successor in it
    swap = Swapper(cluster, pod)
    successor = await swap.create_next()
    await cluster.looks.relist()
    assert states(await cluster.containers(pod)) == [(0, ContainerState.RUNNING), (1, ContainerState.CREATED)]
    await swap.stop()
    await swap.start(successor)
    await cluster.looks.relist()
    after = await cluster.wait(pod, runs_again(1))
    assert restarts(after) == 1


async def test_on_failure_relist_between_stop_and_create_lets_kubelet_win(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="OnFailure")
    await cluster.looks.hold()
    swap = Swapper(cluster, pod)
    await swap.stop()
    await cluster.looks.relist()
    await found(cluster, pod, [(0, ContainerState.EXITED), (1, ContainerState.RUNNING)])
    with pytest.raises(errors.NameReserved):
        await swap.create_next(attempt=1)


async def test_relist_after_the_swap_sees_only_its_end(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", LOOP), policy="Never")
    await cluster.looks.hold()
    swap = Swapper(cluster, pod)
    await swap.stop()
    await swap.start(await swap.create_next())
    await cluster.looks.relist()
    after = await cluster.wait(pod, runs_again(1))
    assert after["status"]["phase"] == "Running"
