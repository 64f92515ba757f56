"""Both API servers, each with what runs Jobs beside it: Kubernetes' own controllers, or our stand-ins."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from common.kube import client, paths
from hack.devnode import realkube
from hack.devnode.api import ApiServer, standin
from hack.devnode.jobcontroller import running
from hack.devnode.jobcontroller.garbage import Collector
from hack.devnode.jobcontroller.jobs import JobController
from hack.devnode.jobcontroller.sync import Backoff
from tests.contract.jobs.bench import Bench

_BACKOFF = 0.05  # seconds; the real one's are ten


@pytest.fixture(scope="package")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[realkube.RealKube]:
    """The real API server, with the real controllers."""
    if why := realkube.missing() or running.missing():
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("kube")
    loop, stack = asyncio.new_event_loop(), contextlib.AsyncExitStack()
    server = realkube.RealKube(directory)

    async def start() -> None:
        await stack.enter_async_context(server)
        managers = running.on(server.kubeconfig, directory / "manager", real=True, scheduler=False)
        await stack.enter_async_context(managers)

    try:
        loop.run_until_complete(start())
        yield server
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()


@pytest.fixture(params=["stand-in", "real"])
def real_or_none(request: pytest.FixtureRequest) -> realkube.RealKube | None:
    return request.getfixturevalue("real_cluster") if request.param == "real" else None


@pytest.fixture
async def server(real_or_none: realkube.RealKube | None, tmp_path: Path) -> AsyncIterator[ApiServer]:
    if real_or_none is not None:
        yield real_or_none
        return
    async with (
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as server,
        client.connect(kubeconfig=server.kubeconfig) as api,
    ):
        controllers = (JobController(api, backoff=Backoff(first=_BACKOFF)), Collector(api))
        tasks = [asyncio.create_task(each.run()) for each in controllers]
        try:
            yield server
            assert not any(each.done() for each in tasks)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def bench(server: ApiServer) -> AsyncIterator[Bench]:
    """A namespace of the test's own, and hands for what kubelets do."""
    async with client.connect(kubeconfig=server.kubeconfig) as api:
        created = await api.create(paths.collection("namespaces"), {"metadata": {"generateName": "test-"}})
        yield Bench(api, str(created["metadata"]["name"]))
