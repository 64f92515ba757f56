"""Provide a cluster for commands: a real API server, with or without the project's resource."""

import asyncio
import contextlib
import urllib.error
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kubemend.cli import main
from kubemend.common.kube import client, paths
from kubemend.controller.restarts import names
from tests.control_plane import ControlPlane, Tenant
from tests.unit.cli import builders


class Cluster:
    """The server, and a client that creates objects in it."""

    def __init__(self, tenant: Tenant, api: client.KubeClient) -> None:
        self.server = tenant.server
        self.api = api

    async def put(self, *objects: Mapping[str, Any]) -> None:
        """Create pods and Restart objects with their status."""
        for each in objects:
            name = each["metadata"]["name"]
            path = paths.collection("pods", namespace=builders.NAMESPACE)
            if each["kind"] == names.KIND:
                path = names.collection(builders.NAMESPACE)
            await self.api.create(path, {key: value for key, value in each.items() if key != "status"})
            if "status" in each:
                status = {"status": each["status"]}
                await self.api.patch_status(f"{path}/{name}", status, content_type=client.Patch.MERGE)

    async def run(self, *arguments: str, namespace: bool = True) -> Result:
        """Run ``kubemend`` on this cluster."""
        line = [*arguments, "--kubeconfig", str(self.server.kubeconfig)]
        line += ["-n", builders.NAMESPACE] if namespace else []
        return await asyncio.to_thread(CliRunner().invoke, main, line)


@pytest.fixture
def team(control_plane: ControlPlane) -> Iterator[None]:
    """The namespace of ``builders``, empty before and after the test."""
    with contextlib.suppress(urllib.error.HTTPError):  # an earlier test has created it
        control_plane.call("POST", paths.collection("namespaces"), {"metadata": {"name": builders.NAMESPACE}})
    yield
    for collection in (paths.collection("pods", namespace=builders.NAMESPACE), names.collection(builders.NAMESPACE)):
        control_plane.remove(collection)


@pytest.fixture
async def cluster(tenant: Tenant, team: None) -> AsyncIterator[Cluster]:
    """A cluster that knows Restart objects."""
    async with tenant.client() as api:
        yield Cluster(tenant, api)


@pytest.fixture
async def empty_cluster(cluster: Cluster) -> Cluster:
    """A cluster that does not know them."""
    cluster.server.fail_next(10_000, status=404, path=f"/apis/{names.GROUP}/", message="404 page not found")
    return cluster
