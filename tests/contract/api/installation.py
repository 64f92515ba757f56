"""Provide a real API server with the manifests applied as people apply them, and their accounts.

The relevant controllers of kube-controller-manager run, too: the one that ends namespaces, and the one that checks the
expressions of admission policies for types.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.devnode import apiserver, kubernetes, processes
from hack.devnode import kubeconfig as kubeconfigs
from kubemend.common.kube import client, errors, paths
from kubemend.controller.restarts import names
from tests import eventually
from tests.contract.api import objects
from tests.control_plane import DEADLINES
from tests.unit.daemonset import kubectl, manifests

DAEMONSET = manifests.REPOSITORY / "daemonset"
AGENT, CONTROLLER = "kubemend-agent", "kubemend-controller"

_CONTROLLERS = "namespace-controller,validatingadmissionpolicy-status-controller"
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hold an API server with kubemend installed. ``directory`` holds the kustomization that was applied."""

    server: apiserver.KubeApiServer
    directory: Path

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl as administrator and return its output."""
        return kubectl.run("--kubeconfig", str(self.server.kubeconfig), *arguments)

    @contextlib.asynccontextmanager
    async def administrator(self) -> AsyncIterator[client.KubeClient]:
        """Provide a client with all rights."""
        async with client.connect(kubeconfig=self.server.kubeconfig, deadlines=DEADLINES) as connected:
            yield connected

    @contextlib.asynccontextmanager
    async def account(self, name: str, *, pod: Mapping[str, Any] | None = None) -> AsyncIterator[client.KubeClient]:
        """Provide a client with a token of one of our service accounts, as kubelet gets it for this pod."""
        async with client.connect(kubeconfig=await self.kubeconfig(name, pod=pod), deadlines=DEADLINES) as connected:
            yield connected

    async def kubeconfig(self, name: str, *, pod: Mapping[str, Any] | None = None) -> Path:
        """Write a kubeconfig with such a token, and return its path."""
        async with self.administrator() as api:
            accounts = paths.collection("serviceaccounts", namespace="kubemend")
            answer = await api.create(f"{accounts}/{name}/token", {"spec": _bound(pod)})
        (cluster,) = yaml.safe_load(self.server.kubeconfig.read_text())["clusters"]
        return kubeconfigs.write(
            self.directory / f"{name}-{pod['metadata']['name'] if pod is not None else 'unbound'}",
            server=cluster["cluster"]["server"],
            token=answer["status"]["token"],
            certificate_authority=Path(cluster["cluster"]["certificate-authority"]),
        )


@contextlib.contextmanager
def installed(directory: Path, *components: str, options: tuple[str, ...] = ()) -> Iterator[Cluster]:
    """Start an API server, apply daemonset/default with more components to it, and stop it at the end.

    ``options`` are more flags for kube-apiserver. Fails where the real programs are missing.
    """
    if reason := kubernetes.missing("etcd", "kube-apiserver", "kube-controller-manager", "kubectl"):
        pytest.fail(reason, pytrace=False)
    server = apiserver.KubeApiServer(directory / "server", options=options)
    loop = asyncio.new_event_loop()  # its processes are bound to no loop, so the tests' own loops can come and go
    try:
        loop.run_until_complete(server.start())
        manager = _manager(server, directory=directory)
        try:
            cluster = Cluster(server, _kustomization(directory / "installed", components))
            cluster.kubectl("apply", "--server-side", "--kustomize", str(cluster.directory))
            loop.run_until_complete(_noticed(cluster))
            yield cluster
        finally:
            loop.run_until_complete(manager.stop(grace=_STOP_SECONDS))
    finally:
        loop.run_until_complete(server.end())
        loop.close()


async def _noticed(cluster: Cluster) -> None:
    """Wait until the server has noticed the applied objects: it serves Restarts, and knows our accounts' rights."""
    leases = paths.collection("leases", namespace="kubemend", group="coordination.k8s.io")
    async with cluster.account(AGENT) as agent, cluster.account(CONTROLLER) as controller:

        async def is_noticed() -> bool:
            try:
                await agent.list(paths.PODS)
                await controller.list(names.WHOLE)
                with contextlib.suppress(errors.NotFoundError):
                    await controller.get(f"{leases}/kubemend-controller")
            except (errors.ForbiddenError, errors.NotFoundError):
                return False
            return True

        await eventually.true(is_noticed)


async def agent_pod(api: client.KubeClient, node: str) -> Mapping[str, Any]:
    """Return the agent's pod on a node, created if necessary."""
    await api.create(paths.NODES, {"metadata": {"name": node}})
    wanted = objects.pod(f"agent-{node}", node=node)
    wanted["spec"] |= {"serviceAccountName": AGENT, "automountServiceAccountToken": False}
    return await api.create(objects.pods("kubemend"), wanted)


def _kustomization(directory: Path, components: tuple[str, ...]) -> Path:
    """Write an operator's own kustomization, as in docs/operations.md."""
    directory.mkdir()
    wanted = {
        "resources": [os.path.relpath(DAEMONSET / "default", directory)],
        "components": [os.path.relpath(DAEMONSET / "components" / name, directory) for name in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    return directory


def _manager(server: apiserver.KubeApiServer, *, directory: Path) -> processes.Child:
    return processes.Child.start(
        [
            str(kubernetes.program("kube-controller-manager")),
            f"--kubeconfig={server.kubeconfig}",
            f"--controllers={_CONTROLLERS}",
            "--leader-elect=false",
            "--secure-port=0",
        ],
        name="kube-controller-manager",
        log=directory / "kube-controller-manager.log",
        pid_file=directory / "kube-controller-manager.pid",
    )


def _bound(pod: Mapping[str, Any] | None) -> dict[str, Any]:
    if pod is None:
        return {"expirationSeconds": 3600}
    metadata = pod["metadata"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return {"expirationSeconds": 3600, "boundObjectRef": reference}
