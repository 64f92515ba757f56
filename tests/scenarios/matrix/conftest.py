"""Provide the environment of the matrix: a node whose kubelet uses one CRI proxy, and the agent's restarts another.

``pytest tests/scenarios/matrix --matrix=full`` plays every cell; without it a selection is played in which each valid
pair of values occurs.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from hack.devnode import leftovers, node, patience
from hack.devnode.criproxy import CriProxy, Hook
from hack.devnode.layout import NodeLayout
from kubemend.common.kube import client
from tests import machine
from tests.devnode.looks import NO_COLLECTION, Looks
from tests.scenarios.matrix import engine, eyes
from tests.scenarios.matrix.batches import SIDE_BY_SIDE
from tests.scenarios.matrix.director import Director, Reins
from tests.scenarios.matrix.env import MatrixEnv


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the whole matrix."""
    parser.addoption("--matrix", choices=["selection", "full"], default="selection", help="how much of it is played")


@pytest.fixture(autouse=True)
def kernel_log_of_its_own() -> None:
    """The matrix has a node of its own, and no kernel log."""


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def env(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MatrixEnv]:
    """The environment, for all cells of a worker process."""
    machine.must_run_containers()
    await asyncio.to_thread(node.setup)
    where, reins = NodeLayout.named(f"matrix-{os.getpid()}"), Reins()
    async with Looks.on(where) as looks:
        looks.proxy.hooks.append(reins)
        options = node.Options(gpus=0, kubelet_config=looks.kubelet_config, kubelet_flags=NO_COLLECTION)
        async with (
            node.DevNode(where, options=options) as dev,
            _env(dev, tmp_path_factory.mktemp("matrix"), looks=looks, reins=reins) as made,
        ):
            yield made
    assert leftovers.find(where) == []
    where.root.with_name(f".{where.root.name}.lock").unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def _env(dev: node.DevNode, directory: Path, *, looks: Looks, reins: Reins) -> AsyncIterator[MatrixEnv]:
    director, socket = Director(), directory / "agent.sock"
    async with (
        client.connect(kubeconfig=dev.kubeconfig, deadlines=patience.API) as api,
        _proxy(dev.layout, socket, director),
        eyes.opened(dev, api) as seen,
        engine.running(
            dev, cri_socket=socket, api=api, state=directory / "state.db", side_by_side=SIDE_BY_SIDE
        ) as made,
    ):
        yield MatrixEnv(dev=dev, api=api, engine=made, director=director, looks=looks, reins=reins, eyes=seen)


@contextlib.asynccontextmanager
async def _proxy(where: NodeLayout, socket: Path, hook: Hook) -> AsyncIterator[None]:
    async with CriProxy(upstream=where.containerd_socket, socket=socket) as proxy:
        proxy.hooks.append(hook)
        yield
