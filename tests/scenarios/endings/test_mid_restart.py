"""A pod that is deleted in the middle of its restart: the restart starts nothing more, and leaves nothing behind."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.journal import Journal
from hack.devnode import node, patience, readyz, trainer
from hack.devnode.cluster import Cluster
from hack.devnode.criproxy import CriProxy, Gate
from hack.devnode.observer import Observer
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import PodUid
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.pods import PodWatch
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths
from tests import eventually
from tests.scenarios import dev_nodes, training
from tests.scenarios.endings.test_pods import running

pytestmark = pytest.mark.devnode

CGROUPS = Path("/sys/fs/cgroup")
HELD = [
    ("swap", "Never", "CreateContainer"),
    ("swap", "Always", "CreateContainer"),
    ("swap", "OnFailure", "StopContainer"),
    pytest.param("rerun", "OnFailure", "CreateContainer", marks=dev_nodes.NOT_ON_CRIO),
    pytest.param("rerun", "OnFailure", "RemoveContainer", marks=dev_nodes.NOT_ON_CRIO),
    ("reset", "OnFailure", "RemoveContainer"),
]


@contextlib.asynccontextmanager
async def followed(dev: node.DevNode) -> AsyncIterator[tuple[ContainerWatch, kube.KubeClient, PodWatch]]:
    """Follow the node's pods and containers from outside the agent."""
    async with (
        CriClient(str(dev.layout.containerd_socket), deadlines=patience.RUNTIME) as cri,
        kube.connect(kubeconfig=dev.kubeconfig, deadlines=patience.API) as api,
    ):
        containers = ContainerWatch(cri, report=lambda _: None)
        pods = PodWatch(api=api, node_name=dev.name, report=lambda _: None)
        tasks = [asyncio.create_task(each.run()) for each in (containers, pods)]
        try:
            await containers.until_listed()
            await pods.until_synced()
            yield containers, api, pods
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def until_started(events: asyncio.Queue[ContainerEvent]) -> None:
    """Wait until a container was started."""
    while (await events.get()).kind is not EventKind.STARTED:
        pass


async def until_gone(api: kube.KubeClient, name: str) -> None:
    """Wait until the API server has no such pod: kubelet has seen its last container end."""
    async with asyncio.timeout(training.DEADLINE):
        while True:
            try:
                await api.get(paths.pod("default", name))
            except errors.NotFoundError:
                return
            await asyncio.sleep(0.05)


def has_no_cgroup(uid: str) -> bool:
    """Whether no cgroup of a pod is left: one with a frozen process cannot be removed."""
    names = (uid, uid.replace("-", "_"))
    # os.walk, unlike glob, ignores cgroups that disappear during the walk.
    return not any(name in directory for directory, _, _ in os.walk(CGROUPS) for name in names)


@pytest.mark.parametrize(("strategy", "policy", "method"), HELD)
async def test_a_pod_that_is_deleted_in_mid_restart_starts_nothing_more_and_leaves_nothing(
    cluster: Cluster, observer: Observer, tmp_path: Path, strategy: str, policy: str, method: str
) -> None:
    dev, name, state = cluster.first, f"mid-{strategy}-{policy}-{method}".lower(), tmp_path / "state"
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/strategy": strategy}
    async with (
        CriProxy(upstream=dev.layout.containerd_socket, socket=tmp_path / "cri.sock") as proxy,
        dev.agent(f"--state-dir={state}", f"--cri-endpoint={proxy.socket}") as agent,
        followed(dev) as (containers, api, pods),
    ):
        await readyz.until_ready(agent)
        gate = Gate(lambda call: call.method == method)
        made = trainer.manifest(name, node=dev.name, gpus=1, restart_policy=policy, annotations=annotations)
        async with running(observer, made) as seen, containers.subscribe(PodUid(seen.uid)) as events:
            proxy.hooks[:] = [gate]
            await training.xid(dev, observer, name, 31)
            await asyncio.wait_for(gate.reached.wait(), training.DEADLINE)
            if method == "StopContainer":  # the old one's: its successor has been started, and is held
                await asyncio.wait_for(until_started(events), training.DEADLINE)
            await api.delete(paths.pod("default", name), options={})
            assert await pods.wait_for(PodUid(seen.uid), lambda pod: pod.deleting, timeout=training.DEADLINE)
            while not events.empty():
                events.get_nowait()
            gate.open()
            await until_gone(api, name)
            later = [events.get_nowait() for _ in range(events.qsize())]
        started = [str(event.container.ref) for event in later if event.kind is EventKind.STARTED]
        await eventually.true(lambda: Journal.of(state).open_entries() == ())
        (entry,) = {each.intent.id: each for each in Journal.of(state).entries()}.values()
        assert entry.outcome is not None
        # The agent may hear of the deletion later than this test: a held successor that is taken back executes nothing.
        is_taken_back = strategy == "swap" and entry.outcome == Result.UNDONE.value
        assert started == [] or is_taken_back, "containers were started in a pod that was being deleted"
        await eventually.true(lambda: has_no_cgroup(seen.uid))
        await readyz.until_ready(agent)
