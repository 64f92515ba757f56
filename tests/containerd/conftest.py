"""Provide a real containerd: started once per worker, shared by all tests that do not break it.

Only root can run containers. Without root, ``KUBEMEND_TEST_SKIP_CONTAINERD=1`` skips these tests; otherwise they fail,
because a restart agent that was not tested on a runtime is untested.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from hack.devnode import claims, leftovers, packages
from hack.devnode.containerd import Containerd
from hack.devnode.layout import NodeLayout
from kubemend.common.pb.runtime.v1 import api_pb2_grpc
from tests import machine
from tests.devnode.pods import Pods

_MOST_RUNS_AT_ONCE = 8  # of these tests on one machine, by all its users


@pytest.fixture(scope="session")
def binaries() -> packages.Binaries:
    """The newest containerd with its tools."""
    return _binaries(legacy=False)


@pytest.fixture(scope="session")
def legacy_binaries() -> packages.Binaries:
    """containerd 1.6, which has no event stream."""
    return _binaries(legacy=True)


@pytest.fixture(scope="session")
def containerd(binaries: packages.Binaries, worker: str) -> Iterator[Containerd]:
    """The shared containerd. A test that stops, kills or pauses it creates its own on ``node``."""
    runtime = asyncio.run(_start_shared(binaries, worker=worker))
    yield runtime
    asyncio.run(runtime.stop())
    assert leftovers.find(runtime.node) == []


@pytest.fixture
async def node(containerd: Containerd) -> AsyncIterator[NodeLayout]:
    """The layout of a node of the test's own; its remains are removed.

    Its name is reserved for this process while it holds the shared one.
    """
    layout = NodeLayout.named(f"own-{containerd.node.name}")
    yield layout
    await leftovers.reap(layout)


@pytest.fixture
async def cri(containerd: Containerd) -> "AsyncIterator[api_pb2_grpc.RuntimeServiceAsyncStub]":
    """CRI's RuntimeService of the shared containerd."""
    async with containerd.runtime() as stub:
        yield stub


@pytest.fixture
async def pods(containerd: Containerd) -> AsyncIterator[Pods]:
    """Create pods in the shared containerd; they are removed after the test."""
    async with Pods.on(containerd.node) as made:
        yield made


@pytest.fixture(scope="session")
def worker() -> str:
    """The name of this pytest-xdist worker; ``main`` without xdist."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


def _binaries(*, legacy: bool) -> packages.Binaries:
    machine.must_run_containers()
    packages.ensure_host_packages(["libseccomp2"])
    return packages.ensure_packages(legacy=legacy)


async def _start_shared(binaries: packages.Binaries, *, worker: str) -> Containerd:
    """Start containerd on the first of our nodes that no other run is using."""
    for number in range(_MOST_RUNS_AT_ONCE):
        runtime = Containerd(NodeLayout.named(f"test-{worker}-{number}"), binaries)
        try:
            await runtime.start()
        except claims.NodeInUseError:
            continue
        return runtime
    raise claims.NodeInUseError(f"{_MOST_RUNS_AT_ONCE} runs of these tests are using containerd; wait for one to end")
