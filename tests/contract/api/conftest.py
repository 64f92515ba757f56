"""Both API servers behind one fixture. The real one is started once for all tests here: it takes some seconds."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.kube import client, paths
from hack.devnode import realkube
from hack.devnode.api import ApiServer, standin

DEADLINES = client.Deadlines(call=15.0, watch=2.0)


@pytest.fixture(scope="package")
def real_kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[realkube.RealKube]:
    if why := realkube.missing():
        pytest.skip(why)
    server = realkube.RealKube(tmp_path_factory.mktemp("kube"))
    loop = asyncio.new_event_loop()  # its processes are bound to no loop, so the tests' own loops can come and go
    try:
        loop.run_until_complete(server.__aenter__())
        yield server
    finally:
        loop.run_until_complete(server.__aexit__(None, None, None))
        loop.close()


@pytest.fixture(params=["stand-in", "real"])
def real_or_none(request: pytest.FixtureRequest) -> realkube.RealKube | None:
    return request.getfixturevalue("real_kube") if request.param == "real" else None


@pytest.fixture
async def server(real_or_none: realkube.RealKube | None, tmp_path: Path) -> AsyncIterator[ApiServer]:
    if real_or_none is not None:
        yield real_or_none
        return
    async with standin.StandIn(kubeconfig=tmp_path / "kubeconfig", bookmark_period=0.5) as stand_in:
        yield stand_in


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[client.KubeClient]:
    async with client.connect(kubeconfig=server.kubeconfig, deadlines=DEADLINES) as connected:
        yield connected


@pytest.fixture
async def namespace(api: client.KubeClient) -> str:
    """A namespace of the test's own."""
    created = await api.create(paths.collection("namespaces"), {"metadata": {"generateName": "test-"}})
    return str(created["metadata"]["name"])


@pytest.fixture
def node() -> str:
    """A node name of the test's own; the node need not exist."""
    return f"node-{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def own_server(real_or_none: realkube.RealKube | None, tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A server for this test alone, which may stop and start it."""
    own = (
        standin.StandIn(kubeconfig=tmp_path / "own" / "kubeconfig")
        if real_or_none is None
        else realkube.RealKube(tmp_path / "own")
    )
    async with own:
        yield own


@pytest.fixture
async def own_api(own_server: ApiServer) -> AsyncIterator[client.KubeClient]:
    async with client.connect(kubeconfig=own_server.kubeconfig, deadlines=DEADLINES) as connected:
        yield connected
