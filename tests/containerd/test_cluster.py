"""Several nodes on one runtime: their kubelets leave each other's pods alone."""

import asyncio
import os

import pytest

from hack.devnode import node, trainer
from hack.devnode.cluster import Cluster, power_off
from hack.devnode.layout import NodeLayout
from hack.devnode.observer import Observer, Seen

pytestmark = pytest.mark.devnode

DEADLINE = 60.0
OPTIONS = node.Options(gpus=2, real_api=False, real_kubelet=False)


def trains(seen: Seen) -> bool:
    return seen.phase == "Running" and seen.step > 0


async def test_a_nodes_kubelet_ends_and_adopts_its_own_pods_alone() -> None:
    cluster = Cluster(NodeLayout.named(f"neighbours-{os.getpid()}"), nodes=2, options=OPTIONS)
    async with cluster, Observer.of(cluster.first.layout) as one, Observer.of(cluster.nodes[1].layout) as other:
        before = {}
        for name, observer, where in (("a", one, cluster.first), ("b", other, cluster.nodes[1])):
            await observer.create(trainer.manifest(name, node=where.name, gpus=1))
            before[name] = await observer.until(name, trains, timeout=DEADLINE, what=f"{name} training")
        await cluster.nodes[1].kubelet.stop()
        await one.delete("a")
        await cluster.nodes[1].kubelet.start()
        for each in cluster.nodes:
            control = each.kubelet.control
            assert control is not None
            await control.relist()
            await control.gc()
        after = await other.until("b", lambda seen: seen.step > before["b"].step, timeout=DEADLINE, what="more steps")
        assert (after.running, after.restart_counts) == (before["b"].running, before["b"].restart_counts)
        async with asyncio.timeout(DEADLINE):
            while one.volume(before["a"].uid).exists():  # noqa: ASYNC110 - kubelet tells nobody
                await asyncio.sleep(0.02)
    assert cluster.leftovers() == []
    cluster.forget()


async def test_a_node_without_power_takes_its_own_pods_with_it_alone() -> None:
    cluster = Cluster(NodeLayout.named(f"dark-{os.getpid()}"), nodes=2, options=OPTIONS)
    async with cluster, Observer.of(cluster.first.layout) as one, Observer.of(cluster.nodes[1].layout) as other:
        await one.create(trainer.manifest("a", node=cluster.first.name, gpus=1))
        await other.create(trainer.manifest("b", node=cluster.nodes[1].name, gpus=1))
        before = await one.until("a", trains, timeout=DEADLINE, what="a training")
        await other.until("b", trains, timeout=DEADLINE, what="b training")
        await power_off(cluster.nodes[1])
        dark = await other.until("b", lambda seen: not seen.running, timeout=DEADLINE, what="nothing running")
        assert dark.phase == "Running", "nobody tells the API server"
        after = await one.until("a", lambda seen: seen.step > before.step, timeout=DEADLINE, what="more steps")
        assert after.running == before.running
    assert cluster.leftovers() == []
    cluster.forget()
