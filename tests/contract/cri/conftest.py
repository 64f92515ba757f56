"""Runs the suite on the stand-in runtime, on the newest containerd, and on containerd 1.6 (no event stream).

``KUBEMEND_TEST_CRI_ENDPOINT`` and ``KUBEMEND_TEST_CRI_IMAGE`` (a local image with /bin/sh and /bin/sleep) put another
runtime, such as CRI-O, in the place of the newest containerd.
"""

import asyncio
import os
import pathlib
from collections.abc import AsyncIterator, Iterator

import pytest

from common.pb.runtime.v1 import api_pb2
from hack.devnode import images, packages
from hack.devnode.containerd import Containerd
from hack.devnode.layout import NodeLayout
from tests.containerd.conftest import binaries, containerd, legacy_binaries, worker
from tests.contract.cri import node as nodes
from tests.fakes.cri_server import CriServer

__all__ = ["binaries", "containerd", "legacy_binaries", "worker"]

ECHO = ("/bin/sh", "-c", "echo out; echo err >&2; exit 3")

STAND_IN, NEWEST, LEGACY = "stand-in", "containerd", "containerd-1.6"


@pytest.fixture(
    params=[
        STAND_IN,
        pytest.param(NEWEST, marks=pytest.mark.containerd),
        pytest.param(LEGACY, marks=pytest.mark.containerd),
    ]
)
async def node(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> AsyncIterator[nodes.Node]:
    """A runtime to make pods on."""
    if request.param == STAND_IN:
        async with CriServer(str(tmp_path / "cri.sock")) as server:
            server.runtime.exec_results[ECHO] = api_pb2.ExecSyncResponse(stdout=b"out\n", stderr=b"err\n", exit_code=3)
            async with nodes.Node(server.endpoint, image=images.BUSYBOX, log_directory=str(tmp_path)) as stand_in:
                yield stand_in
        return
    endpoint, image = _real_runtime(request)
    has_events = request.param == NEWEST
    async with nodes.Node(endpoint, image=image, log_directory=str(tmp_path), has_events=has_events) as real:
        yield real


@pytest.fixture(scope="session")
def legacy_containerd(legacy_binaries: packages.Binaries, worker: str) -> Iterator[Containerd]:
    """A containerd 1.6 for this suite."""
    runtime = Containerd(NodeLayout.named(f"cri16-{worker}-{os.getpid()}"), legacy_binaries)
    asyncio.run(runtime.start())
    yield runtime
    asyncio.run(runtime.stop())


def _real_runtime(request: pytest.FixtureRequest) -> tuple[str, str]:
    endpoint = os.environ.get("KUBEMEND_TEST_CRI_ENDPOINT")
    if endpoint and request.param == NEWEST:
        return endpoint, os.environ["KUBEMEND_TEST_CRI_IMAGE"]
    runtime = request.getfixturevalue("containerd" if request.param == NEWEST else "legacy_containerd")
    return str(runtime.node.containerd_socket), images.BUSYBOX
