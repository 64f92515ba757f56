"""A real API server with the manifests applied as people apply them, and the accounts that these make.

The controllers of kube-controller-manager that matter here run beside it: the one that ends namespaces, and the one
that checks the expressions of admission policies for types.
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

from common.kube import client, paths
from hack.devnode import kubernetes, processes, realkube
from hack.devnode.api import kubeconfig as kubeconfigs
from tests.contract.api import objects
from tests.contract.api.conftest import DEADLINES
from tests.unit.daemonset import kubectl, manifests

DAEMONSET = manifests.REPOSITORY / "daemonset"
AGENT, CONTROLLER = "kubemend-agent", "kubemend-controller"

_CONTROLLERS = "namespace-controller,validatingadmissionpolicy-status-controller"
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server with kubemend installed. ``directory`` holds the kustomization that was applied."""

    server: realkube.RealKube
    directory: Path

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl as administrator and return what it prints."""
        return kubectl.run("--kubeconfig", str(self.server.kubeconfig), *arguments)

    @contextlib.asynccontextmanager
    async def administrator(self) -> AsyncIterator[client.KubeClient]:
        """A client that may do all."""
        async with client.connect(kubeconfig=self.server.kubeconfig, deadlines=DEADLINES) as connected:
            yield connected

    @contextlib.asynccontextmanager
    async def account(self, name: str, *, pod: Mapping[str, Any] | None = None) -> AsyncIterator[client.KubeClient]:
        """A client with a token of one of our service accounts, as kubelet gets it for this pod."""
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

    ``options`` are more flags for kube-apiserver. Skips where the real programs are not there.
    """
    if why := kubernetes.missing("etcd", "kube-apiserver", "kube-controller-manager", "kubectl"):
        pytest.skip(why)
    server = realkube.RealKube(directory / "server", options=options)
    loop = asyncio.new_event_loop()  # its processes are bound to no loop, so the tests' own loops can come and go
    try:
        loop.run_until_complete(server.__aenter__())
        manager = _manager(server, directory=directory)
        try:
            cluster = Cluster(server, _kustomization(directory / "installed", components))
            cluster.kubectl("apply", "--server-side", "--kustomize", str(cluster.directory))
            yield cluster
        finally:
            loop.run_until_complete(manager.stop(grace=_STOP_SECONDS))
    finally:
        loop.run_until_complete(server.__aexit__(None, None, None))
        loop.close()


async def agent_pod(api: client.KubeClient, node: str) -> Mapping[str, Any]:
    """Return the agent's pod on a node, which is there from then on."""
    await api.create(paths.NODES, {"metadata": {"name": node}})
    wanted = objects.pod(f"agent-{node}", node=node)
    wanted["spec"] |= {"serviceAccountName": AGENT, "automountServiceAccountToken": False}
    return await api.create(objects.pods("kubemend"), wanted)


def _kustomization(directory: Path, components: tuple[str, ...]) -> Path:
    """Write a kustomization of an operator's own, as docs/operations.md says."""
    directory.mkdir()
    wanted = {
        "resources": [os.path.relpath(DAEMONSET / "default", directory)],
        "components": [os.path.relpath(DAEMONSET / "components" / name, directory) for name in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    return directory


def _manager(server: realkube.RealKube, *, directory: Path) -> processes.Child:
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
