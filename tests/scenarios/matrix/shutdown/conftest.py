"""Provide a node whose kubelet follows the machine's shutdown, with an agent whose calls can be held, or with a hub."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from hack.devnode import node
from hack.devnode.cluster import Cluster
from hack.devnode.criproxy import CriProxy
from tests import clusters
from tests.devnode.systembus import SystemBus
from tests.scenarios.columns.board import Board
from tests.scenarios.gang.product import Product
from tests.scenarios.matrix.shutdown.env import ShutdownEnv

SHUTS_DOWN: Final[dict[str, Any]] = {
    # Off by default (0 s). Long enough for each group that a scenario, not the time, decides when a pod ends.
    "shutdownGracePeriod": "240s",
    "shutdownGracePeriodCriticalPods": "120s",
}
"""KubeletConfiguration: kubelet ends pods in two groups before the machine goes down."""


@pytest.fixture(scope="package")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemBus]:
    """The bus on which the node's kubelet learns of the machine's shutdown."""
    made = SystemBus(tmp_path_factory.mktemp("bus"))
    asyncio.run(made.start())
    try:
        yield made
    finally:
        asyncio.run(made.stop())


@pytest.fixture(scope="package")
def cluster(bus: SystemBus) -> Iterator[Cluster]:
    """The node. A scenario cancels the shutdown that it begins, and deletes its pods."""
    options = node.Options(gpus=0, kubelet_config=SHUTS_DOWN, kubelet_environment=bus.environment)
    with clusters.running(f"shutdown-{os.getpid()}", nodes=1, options=options) as made:
        asyncio.run(bus.until_kubelet_delays())
        yield made


@pytest.fixture
async def env(cluster: Cluster, bus: SystemBus, tmp_path: Path) -> AsyncIterator[ShutdownEnv]:
    """The environment, with an agent that is ready."""
    dev, socket = cluster.first, tmp_path / "cri.sock"
    async with (
        CriProxy(upstream=dev.layout.containerd_socket, socket=socket) as proxy,
        Board.on(dev, f"--cri-endpoint={socket}", state=tmp_path / "state") as board,
        ShutdownEnv.on(board, proxy, bus) as made,
    ):
        yield made


@pytest.fixture
async def product(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Product]:
    """A controller, and the node's agent with its hub; the agent logs every step of a round."""
    async with Product.on(cluster, state=tmp_path) as made:
        await made.start_controller()
        await made.start_agent(0, "--log-level=debug")
        yield made


@pytest.fixture
async def board(cluster: Cluster, product: Product, tmp_path: Path) -> AsyncIterator[Board]:
    """The node with that agent."""
    async with Board.of(cluster.first, state=tmp_path / cluster.first.name) as made:
        yield made
