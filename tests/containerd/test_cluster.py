"""Several nodes of one cluster run on one machine."""

import os

import pytest

from hack.devnode import node, trainer
from hack.devnode.cluster import Cluster, power_off
from hack.devnode.layout import NodeLayout
from hack.devnode.observer import Observer, Seen
from hack.devnode.packages import PackagesError

pytestmark = pytest.mark.devnode

DEADLINE = 60.0
OPTIONS = node.Options(gpus=2)


def trains(seen: Seen) -> bool:
    return seen.phase == "Running" and seen.step > 0


async def test_power_off_ends_only_the_nodes_own_pods() -> None:
    cluster = Cluster(NodeLayout.named(f"dark-{os.getpid()}"), nodes=2, options=OPTIONS)
    async with cluster, Observer.of(cluster.first.layout) as one, Observer.of(cluster.nodes[1].layout) as other:
        await one.create(trainer.manifest("a", node=cluster.first.name, gpus=1))
        await other.create(trainer.manifest("b", node=cluster.nodes[1].name, gpus=1))
        before = await one.until("a", trains, timeout=DEADLINE, what="a training")
        await other.until("b", trains, timeout=DEADLINE, what="b training")
        await power_off(cluster.nodes[1])
        dark = await other.until("b", lambda seen: not seen.running, timeout=DEADLINE, what="nothing running")
        assert dark.phase == "Running", "the API server is not notified"
        after = await one.until("a", lambda seen: seen.step > before.step, timeout=DEADLINE, what="more steps")
        assert after.running == before.running
    assert cluster.leftovers() == []
    cluster.forget()


async def test_missing_kubernetes_programs_are_reported_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "")
    lacking = node.DevNode(NodeLayout.named(f"lacking-{os.getpid()}"))
    with pytest.raises(PackagesError, match="no real etcd and kube-apiserver and kubelet: run `make kubernetes`"):
        await lacking.start()
    assert not lacking.layout.root.exists()
