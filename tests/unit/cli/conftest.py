"""A cluster to ask: the stand-in of the API server, with the resource of this project."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cli import main
from common.kube import client, paths
from controller.restarts import names
from hack.devnode.api import standin
from tests.unit.cli import builders

CRD = Path(__file__).parents[3] / "daemonset" / "crds" / "restarts.yaml"


class Cluster:
    """The stand-in, and a client that puts things into it."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient) -> None:
        self.server = server
        self.api = api

    async def install(self) -> None:
        """Make Restart objects known."""
        definition = yaml.safe_load(CRD.read_text())
        await self.api.create(paths.collection("customresourcedefinitions", group="apiextensions.k8s.io"), definition)

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
async def empty_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster that does not know Restart objects."""
    async with (
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as server,
        client.connect(kubeconfig=server.kubeconfig) as api,
    ):
        await api.create(paths.collection("namespaces"), {"metadata": {"name": builders.NAMESPACE}})
        yield Cluster(server, api)


@pytest.fixture
async def cluster(empty_cluster: Cluster) -> Cluster:
    """A cluster that knows them."""
    await empty_cluster.install()
    return empty_cluster
