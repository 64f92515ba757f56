"""Provide one node whose kubelet evicts pods that write more than they may, shared by the scenarios of one worker."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hack.devnode import node
from hack.devnode.cluster import Cluster
from hack.devnode.observer import Observer
from tests import clusters
from tests.scenarios.gang.product import Product

EVICTS = {"localStorageCapacityIsolation": True, "volumeStatsAggPeriod": "1s"}
"""KubeletConfiguration: volumes are measured every second, and checked every ten (pkg/kubelet/eviction)."""


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """The node. A scenario reverts its own changes (pods)."""
    options = node.Options(gpus=4, kubelet_config=EVICTS)
    with clusters.running(f"endings-{os.getpid()}", nodes=1, options=options) as made:
        yield made


@pytest.fixture(autouse=True)
def kernel_log_of_its_own(cluster: Cluster) -> None:
    """An agent reads every line of this boot, also those that another scenario has written."""
    cluster.first.kernel_log.clear()


@pytest.fixture
async def observer(cluster: Cluster) -> AsyncIterator[Observer]:
    """Observe the node from outside the agent."""
    async with Observer.of(cluster.first.layout) as made:
        yield made


@pytest.fixture
async def product(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Product]:
    """The product's processes, none of them started."""
    async with Product.on(cluster, state=tmp_path) as made:
        yield made
