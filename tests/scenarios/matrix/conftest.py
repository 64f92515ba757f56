"""Two stages for the matrix: the kubelet stand-in, which can be held and reined in, and a real kubelet, which cannot.

``pytest tests/scenarios/matrix --matrix=full`` plays every cell; without it a selection is played in which each pair of
values occurs that occurs together at all.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from common.kube import client
from hack.devnode import leftovers, node, realkube, realkubelet
from hack.devnode.criproxy import CriProxy, Hook
from hack.devnode.layout import NodeLayout
from tests import machine
from tests.scenarios.matrix import engine, eyes
from tests.scenarios.matrix.batches import SIDE_BY_SIDE
from tests.scenarios.matrix.director import Director, Reins
from tests.scenarios.matrix.stage import Stage

_TLS_SECONDS = 0.25  # see tests/contract/kubelet/conftest.py

STAND_IN = node.Options(
    gpus=0,
    real_api=False,
    real_kubelet=False,
    kubelet_flags={"relist-period": "0.25", "resync": "600", "gc-period": "600", "error-retry": "2"},
)
REAL = node.Options(gpus=0, real_api=True, real_kubelet=True, kubelet_config={"syncFrequency": "3s"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the whole matrix be asked for."""
    parser.addoption("--matrix", choices=["selection", "full"], default="selection", help="how much of it is played")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def placed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The stage of the stand-in. A second proxy, before kubelet, is what it is reined in by."""
    machine.must_run_containers()
    directory, reins = tmp_path_factory.mktemp("matrix"), Reins()
    where = NodeLayout.named(f"matrix-{os.getpid()}")
    socket = directory / "kubelet.sock"
    options = node.Options(
        gpus=STAND_IN.gpus,
        real_api=False,
        real_kubelet=False,
        kubelet_flags={**STAND_IN.kubelet_flags, "cri": str(socket)},
    )
    async with _proxy(where, socket, reins), _node(where, options) as dev, _stage(dev, directory, reins) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The stage of a real kubelet."""
    if why := realkubelet.missing() or realkube.missing():
        pytest.skip(why)
    machine.must_run_containers()
    directory = tmp_path_factory.mktemp("matrix")
    async with (
        _node(NodeLayout.named(f"matrix-real-{os.getpid()}"), REAL) as dev,
        _stage(dev, directory, Reins()) as made,
    ):
        yield made
    await asyncio.sleep(_TLS_SECONDS)


@contextlib.asynccontextmanager
async def _node(where: NodeLayout, options: node.Options) -> AsyncIterator[node.DevNode]:
    await asyncio.to_thread(node.setup)
    async with node.DevNode(where, options=options) as made:
        yield made
    assert leftovers.find(where) == []
    where.root.with_name(f".{where.root.name}.lock").unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def _stage(dev: node.DevNode, directory: Path, reins: Reins) -> AsyncIterator[Stage]:
    director, socket = Director(), directory / "agent.sock"
    async with (
        client.connect(kubeconfig=dev.kubeconfig) as api,
        _proxy(dev.layout, socket, director),
        eyes.opened(dev, api) as seen,
        engine.running(
            dev, cri_socket=socket, api=api, state=directory / "state.db", side_by_side=SIDE_BY_SIDE
        ) as made,
    ):
        yield Stage(dev=dev, api=api, engine=made, director=director, reins=reins, eyes=seen)


@contextlib.asynccontextmanager
async def _proxy(where: NodeLayout, socket: Path, hook: Hook) -> AsyncIterator[None]:
    async with CriProxy(upstream=where.containerd_socket, socket=socket) as proxy:
        proxy.hooks.append(hook)
        yield
