"""Provide a real API server with the real Job controller and garbage collector; the tests play kubelet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from hack.devnode import apiserver, controlplane, patience
from kubemend.common.kube import client, paths
from tests.contract.jobs.env import JobEnv


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apiserver.KubeApiServer]:
    directory = tmp_path_factory.mktemp("kube")
    loop, stack = asyncio.new_event_loop(), contextlib.AsyncExitStack()
    kube = apiserver.KubeApiServer(directory)

    async def start() -> None:
        await stack.enter_async_context(kube)
        controllers = controlplane.on(kube.kubeconfig, directory / "control-plane", scheduler=False)
        await stack.enter_async_context(controllers)

    try:
        loop.run_until_complete(start())
        yield kube
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()


@pytest.fixture
async def env(server: apiserver.KubeApiServer) -> AsyncIterator[JobEnv]:
    """A namespace of the test's own, with the role of kubelet."""
    async with client.connect(kubeconfig=server.kubeconfig, deadlines=patience.API) as api:
        created = await api.create(paths.collection("namespaces"), {"metadata": {"generateName": "test-"}})
        yield JobEnv(api, str(created["metadata"]["name"]))
