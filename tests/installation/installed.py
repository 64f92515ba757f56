"""Provide a dev cluster for an installation: control plane, one node, Service addresses, our image."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack.devnode import apiserver, controlplane, images, layout, leftovers, node
from hack.image import build
from kubemend.common import grpcio
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc
from tests import machine
from tests.devnode import addons
from tests.unit.daemonset import kubectl

NEXT_TAG: Final = "0.1.0-next"
"""The same image under another tag: the target of an upgrade."""
BUSYBOX: Final = "docker.io/library/busybox:latest"
"""The dev node's busybox under the README's name."""

_KILLED: Final = "command terminated with exit code 137"
_IMAGE_SECONDS: Final = 120.0
_KUBECTL_SECONDS: Final = 240.0

Json = dict[str, Any]


class KilledError(Exception):
    """A command in a container ended by SIGKILL."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. ``directory`` is for kustomizations."""

    node: node.DevNode
    directory: Path

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl as administrator, and return its output; a failure shows it.

        Raises KilledError when a command that ``kubectl exec`` ran was killed.
        """
        command = [kubectl.program(), "--kubeconfig", str(self.node.kubeconfig), *arguments]
        made = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=_KUBECTL_SECONDS, check=False
        )
        if _KILLED in made.stderr:
            raise KilledError
        assert made.returncode == 0, f"kubectl {' '.join(arguments)}: {made.stderr}\n{made.stdout}"
        return made.stdout

    def get(self, *arguments: str) -> Json:
        """Return the result of ``kubectl get``."""
        found: Json = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return found


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Cluster]:
    """Run the cluster for the length of the block; it must leave nothing behind."""
    machine.must_run_containers()
    node.setup()
    where = layout.NodeLayout.named(f"install-{os.getpid()}")
    with asyncio.Runner() as runner:  # processes and their pipes are bound to no test's loop
        stack = contextlib.AsyncExitStack()
        try:
            made = runner.run(_start(stack, where, directory))
            yield made
        finally:
            runner.run(stack.aclose())
    assert leftovers.find(where) == []
    where.root.with_name(f".{where.root.name}.lock").unlink(missing_ok=True)


async def _start(stack: contextlib.AsyncExitStack, where: layout.NodeLayout, directory: Path) -> Cluster:
    archive = await asyncio.to_thread(build.ensure)
    server = apiserver.KubeApiServer(
        directory / "server", options=[f"--service-cluster-ip-range={where.services}"], service_accounts=True
    )
    await stack.enter_async_context(server)
    await stack.enter_async_context(controlplane.on(server.kubeconfig, directory / "controllers"))
    dns = {"clusterDNS": [where.dns_service], "clusterDomain": addons.DOMAIN}
    made = node.DevNode(where, options=node.Options(kubelet_config=dns), api=server)
    await stack.enter_async_context(made)
    await stack.enter_async_context(addons.on(where, server))
    await asyncio.to_thread(_load, made, archive)
    await _until_known(where)
    return Cluster(node=made, directory=directory)


def _load(made: node.DevNode, archive: Path) -> None:
    tags = {f"{build.NAME}:{NEXT_TAG}": build.reference(), BUSYBOX: images.BUSYBOX}
    binaries = made.containerd.binaries
    images.load_archive(binaries, archive=archive, socket=made.layout.containerd_socket, tags=tags)


async def _until_known(where: layout.NodeLayout) -> None:
    """Wait until CRI has them: containerd announces an import only internally."""
    async with _images(where) as service, asyncio.timeout(_IMAGE_SECONDS):
        for name in (build.reference(), f"{build.NAME}:{NEXT_TAG}", BUSYBOX):
            request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=name))
            while not (await service.ImageStatus(request)).HasField("image"):  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _images(where: layout.NodeLayout) -> "AsyncIterator[api_pb2_grpc.ImageServiceAsyncStub]":
    async with grpcio.unix_channel(str(where.containerd_socket)) as channel:
        yield api_pb2_grpc.ImageServiceStub(channel)
