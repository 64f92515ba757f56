"""Provide a dev node for the kubelet rules that the product relies on; its kubelet uses a CRI proxy.

One node for all tests of a worker process: it takes some seconds to start. The proxy holds kubelet's relists where a
test asks for it, and passes everything on otherwise. Garbage collection, which comes once a minute in the middle of any
test, would remove reservations and old containers: only a test with a node of its own has it.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence

import pytest_asyncio

from hack.devnode import leftovers, node, patience
from hack.devnode.layout import NodeLayout
from kubemend.common.kube import client
from tests import machine
from tests.contract.kubelet.cluster import Cluster
from tests.devnode.looks import NO_COLLECTION, Looks

# The default doubles from 10 s to 5 min: no rule depends on its length. A busy kubelet must notice an exit within it.
SHORT_BACKOFF = {"crashLoopBackOff": {"maxContainerRestartPeriod": "5s"}}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def looked_after() -> AsyncIterator[tuple[node.DevNode, Looks]]:
    machine.must_run_containers()
    await asyncio.to_thread(node.setup)
    async with opened("kubelet", gpus=2, flags=NO_COLLECTION) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="package")
async def cluster(looked_after: tuple[node.DevNode, Looks]) -> AsyncIterator[Cluster]:
    """The node in a test. Kubelet relists freely before and after the test."""
    dev, looks = looked_after
    async with client.connect(kubeconfig=dev.kubeconfig, deadlines=patience.API) as kube:
        made = Cluster(dev, kube, looks)
        yield made
        await looks.release()
        await made.remove_pods()


@pytest_asyncio.fixture(loop_scope="package")
async def own_cluster() -> AsyncIterator[Cluster]:
    """A cluster of the test's own, for tests that break it, or need kubelet's garbage collection."""
    machine.must_run_containers()
    async with (
        opened("kubelet-own", gpus=0) as (dev, looks),
        client.connect(kubeconfig=dev.kubeconfig, deadlines=patience.API) as kube,
    ):
        yield Cluster(dev, kube, looks)


@contextlib.asynccontextmanager
async def opened(kind: str, *, gpus: int, flags: Sequence[str] = ()) -> AsyncIterator[tuple[node.DevNode, Looks]]:
    where = NodeLayout.named(f"{kind}-{os.getpid()}")
    async with Looks.on(where) as looks:
        config = {**SHORT_BACKOFF, **looks.kubelet_config}
        options = node.Options(gpus=gpus, kubelet_config=config, kubelet_flags=flags)
        async with node.DevNode(where, options=options) as dev:
            yield dev, looks
    assert leftovers.find(where) == []
    where.root.with_name(f".{where.root.name}.lock").unlink(missing_ok=True)
