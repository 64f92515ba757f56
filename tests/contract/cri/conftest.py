"""Run the suite on the stand-in runtime, the newest containerd, containerd 1.6 (no event stream), and CRI-O.

``KUBEMEND_TEST_CRI_ENDPOINT`` and ``KUBEMEND_TEST_CRI_IMAGE`` (a local image with /bin/sh and /bin/sleep) select
another runtime instead of the newest containerd.
"""

import asyncio
import os
import pathlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from hack.devnode import images, packages
from hack.devnode.containerd import Containerd
from hack.devnode.layout import NodeLayout
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.containerd.conftest import binaries, containerd, legacy_binaries, worker
from tests.contract.cri import node as nodes
from tests.crio.conftest import runtime
from tests.fakes.cri_server import CriServer

__all__ = ["binaries", "containerd", "legacy_binaries", "runtime", "worker"]

VERBOSE = ("/bin/sh", "-c", "dd if=/dev/zero bs=1M count=4 2>/dev/null")
ECHO = ("/bin/sh", "-c", "echo out; echo err >&2; exit 3")

STAND_IN, NEWEST, LEGACY, CRIO = "stand-in", "containerd", "containerd-1.6", "cri-o"
_FIXTURES = {NEWEST: "containerd", LEGACY: "legacy_containerd", CRIO: "runtime"}


@dataclass(frozen=True, slots=True)
class Real:
    """A real runtime to test on."""

    endpoint: str
    image: str
    has_events: bool
    is_crio: bool = False


@pytest.fixture(scope="session")
def legacy_containerd(legacy_binaries: packages.Binaries, worker: str) -> Iterator[Containerd]:
    """A containerd 1.6 for this suite."""
    runtime = Containerd(NodeLayout.named(f"cri16-{worker}-{os.getpid()}"), legacy_binaries)
    asyncio.run(runtime.start())
    yield runtime
    asyncio.run(runtime.stop())
    runtime.node.root.with_name(f".{runtime.node.root.name}.lock").unlink(missing_ok=True)


@pytest.fixture(
    scope="session",
    params=[
        STAND_IN,
        pytest.param(NEWEST, marks=pytest.mark.containerd),
        pytest.param(LEGACY, marks=pytest.mark.containerd),
        pytest.param(CRIO, marks=[pytest.mark.crio, pytest.mark.long]),
    ],
)
def real(request: pytest.FixtureRequest) -> Real | None:
    """The real runtime under test, or None for the stand-in. Sync: the runtimes' fixtures run loops."""
    if request.param == STAND_IN:
        return None
    endpoint = os.environ.get("KUBEMEND_TEST_CRI_ENDPOINT")
    if endpoint and request.param == NEWEST:
        return Real(endpoint=endpoint, image=os.environ["KUBEMEND_TEST_CRI_IMAGE"], has_events=True)
    runtime = request.getfixturevalue(_FIXTURES[request.param])
    has_events = request.param != LEGACY
    return Real(
        endpoint=str(runtime.node.containerd_socket),
        image=images.BUSYBOX,
        has_events=has_events,
        is_crio=request.param == CRIO,
    )


@pytest.fixture
async def node(real: Real | None, tmp_path: pathlib.Path) -> AsyncIterator[nodes.Node]:
    """A runtime on which pods are created."""
    logs = str(tmp_path)
    if real is not None:
        async with nodes.Node(
            real.endpoint, image=real.image, log_directory=logs, has_events=real.has_events, is_crio=real.is_crio
        ) as made:
            yield made
        return
    async with CriServer(str(tmp_path / "cri.sock")) as server:
        server.runtime.exec_results[ECHO] = api_pb2.ExecSyncResponse(stdout=b"out\n", stderr=b"err\n", exit_code=3)
        server.runtime.exec_results[VERBOSE] = api_pb2.ExecSyncResponse(stdout=bytes(4 << 20))
        async with nodes.Node(server.endpoint, image=images.BUSYBOX, log_directory=logs) as stand_in:
            yield stand_in
