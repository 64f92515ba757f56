"""Provide two nodes for gangs, shared by the scenarios of one worker; each scenario runs a product of its own."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hack.devnode import node, patience
from hack.devnode.cluster import Cluster
from kubemend.common.kube import client as kube
from tests import clusters
from tests.scenarios.gang.product import Product


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """The nodes. A scenario reverts its own changes (faults, pods)."""
    with clusters.running(f"gangs-{os.getpid()}", nodes=2, options=node.Options(gpus=4)) as made:
        yield made


@pytest.fixture(autouse=True)
def kernel_log_of_its_own(cluster: Cluster) -> None:
    """An agent reads every line of this boot, also those that another scenario has written."""
    for each in cluster.nodes:
        each.kernel_log.clear()


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[kube.KubeClient]:
    """The API server."""
    async with kube.connect(kubeconfig=cluster.first.kubeconfig, deadlines=patience.API) as connected:
        yield connected


@pytest.fixture
async def product(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Product]:
    """The product's processes, none of them started. They log everything: a failure shows their logs."""
    monkeypatch.setenv("KUBEMEND_LOG_LEVEL", "debug")
    async with Product.on(cluster, state=tmp_path) as made:
        yield made
