"""Two kubelets behind one fixture: the stand-in on the API stand-in, and a real one on a real API server.

Each gets a whole dev node, started once per session: it takes some seconds.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from common.kube import client
from hack.devnode import leftovers, node, realkube, realkubelet
from hack.devnode.layout import NodeLayout
from tests import machine
from tests.contract.kubelet.cluster import Cluster

STAND_IN = node.Options(
    gpus=2,
    real_api=False,
    real_kubelet=False,
    kubelet_flags={"backoff-first": "2", "backoff-limit": "4", "resync": "600", "error-retry": "2"},
)
REAL = node.Options(
    gpus=2,
    real_api=True,
    real_kubelet=True,
    kubelet_config={"crashLoopBackOff": {"maxContainerRestartPeriod": "2s"}, "syncFrequency": "3s"},
)


@pytest.fixture(scope="session")
def stand_in_node() -> Iterator[node.DevNode]:
    yield from _started("kubelet-standin", STAND_IN)


@pytest.fixture(scope="session")
def real_node() -> Iterator[node.DevNode]:
    if why := realkubelet.missing() or realkube.missing():
        pytest.skip(why)
    yield from _started("kubelet-real", REAL)


@pytest.fixture(scope="session", params=["stand-in", "real"])
def dev_node(request: pytest.FixtureRequest) -> node.DevNode:
    found: node.DevNode = request.getfixturevalue("real_node" if request.param == "real" else "stand_in_node")
    return found


@pytest.fixture
async def cluster(dev_node: node.DevNode) -> AsyncIterator[Cluster]:
    async with _opened(dev_node) as made:
        yield made


@pytest.fixture(params=["stand-in", "real"])
async def own_cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A cluster of the test's own, for what breaks it."""
    options = REAL if request.param == "real" else STAND_IN
    if request.param == "real" and (why := realkubelet.missing() or realkube.missing()):
        pytest.skip(why)
    made = node.DevNode(_layout(f"kubelet-own-{request.param}"), options=options)
    async with made, _opened(made) as opened:
        yield opened
    _check_gone(made)


@pytest.fixture
async def held_cluster(stand_in_node: node.DevNode) -> AsyncIterator[Cluster]:
    """A cluster whose kubelet looks at the runtime only when the test says so, once the test says ``hold``."""
    async with _opened(stand_in_node) as made:
        yield made
        await made.control.release()


@asynccontextmanager
async def _opened(dev_node: node.DevNode) -> AsyncIterator[Cluster]:
    async with client.connect(kubeconfig=dev_node.kubeconfig) as kube:
        made = Cluster(dev_node, kube)
        yield made
        await made.remove_pods()


def _started(kind: str, options: node.Options) -> Iterator[node.DevNode]:
    machine.must_run_containers()
    node.setup()
    made = node.DevNode(_layout(kind), options=options)
    asyncio.run(made.start())
    try:
        yield made
    finally:
        asyncio.run(made.stop())
        _check_gone(made)


def _layout(kind: str) -> NodeLayout:
    return NodeLayout.named(f"{kind}-{os.getpid()}")


def _check_gone(made: node.DevNode) -> None:
    assert leftovers.find(made.layout) == []
    made.layout.root.with_name(f".{made.layout.root.name}.lock").unlink(missing_ok=True)
