"""Run the controller's replicas as processes, with all that agents need to find and trust its hub.

The published manifests are in force: agents and controller have their own service accounts, with those rights and under
those admission policies. The agents' tokens are those that a cluster would project into their pods, for the API and for
the hub, and bound to a pod on the agent's node. Those pods exist, but the agents run outside of them.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.devnode import accounts, images, loopback, manifests, patience, processes
from hack.devnode.accounts import AGENT, CONTROLLER, NAMESPACE
from hack.devnode.node import Agent, DevNode
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths

AUDIENCE = "kubemend-hub"
HUB_NAME = "kubemend-hub.kubemend.svc"
LEASE = "kubemend-controller"
_LEASE_PATH = f"{paths.collection('leases', namespace=NAMESPACE, group='coordination.k8s.io')}/{LEASE}"
_CA_CONFIG_MAP, _CA_KEY = "kubemend-hub-ca", "ca.crt"
_HOST = "127.0.0.1"
_STOP_SECONDS = 30.0
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.05

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Controller:
    """Describe a controller process. ``name`` is its identity in the Lease."""

    name: str
    child: processes.Child
    hub_address: str
    metrics_address: str
    log: Path


class Controllers:
    """Manage the controller of a cluster.

    ``async with Controllers.on(nodes) as made: async with made.run() as first: …``.
    """

    def __init__(self, nodes: Sequence[DevNode], *, replicas: int, api: kube.KubeClient) -> None:
        self.hub_addresses = tuple(f"{_HOST}:{loopback.free_port()}" for _ in range(replicas))
        self._nodes = nodes
        self._running: list[Controller] = []
        self._api = api
        self._directory = nodes[0].layout.root / "hub"

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, nodes: Sequence[DevNode], *, replicas: int = 2) -> "AsyncIterator[Controllers]":
        """Create everything that the controller finds in a cluster: the manifests' objects, and all accounts' tokens.

        The Lease of a killed controller is deleted: the next one would wait until it expires.
        """
        async with kube.connect(kubeconfig=nodes[0].kubeconfig, deadlines=patience.API) as api:
            made = cls(nodes, replicas=replicas, api=api)
            await made._prepare()
            yield made

    def kubeconfig(self, name: str) -> Path:
        """Return the kubeconfig of a node's agent, by the node's name, or of the ``CONTROLLER``."""
        return self._directory / f"{name}.kubeconfig"

    @contextlib.asynccontextmanager
    async def run(self, *extra: str, number: int = 1) -> AsyncIterator[Controller]:
        """Run ``kubemend controller`` as a process of its own; ``extra`` are further arguments. SIGTERM ends it."""
        name, where = f"controller-{number}", self._nodes[0].layout
        metrics_address = f"{_HOST}:{loopback.free_port()}"
        flags = {
            "kubeconfig": str(self.kubeconfig(CONTROLLER)),
            "pod-name": name,
            "lease-name": LEASE,
            "hub-address": self.hub_addresses[number - 1],
            "metrics-address": metrics_address,
        }
        log = where.log_file(name)
        child = processes.Child.start(
            [
                sys.executable,
                "-m",
                "kubemend.cli",
                "controller",
                *(f"--{key}={value}" for key, value in flags.items()),
                *extra,
            ],
            name=f"kubemend controller {number}",
            log=log,
            pid_file=where.pid_file(name),
            environment={
                **os.environ,
                "POD_NAMESPACE": NAMESPACE,
                "POD_UID": f"uid-{number}",
                "POD_IP": _HOST,
            },
        )
        made = Controller(name, child, self.hub_addresses[number - 1], metrics_address, log)
        self._running.append(made)
        try:
            yield made
        finally:
            self._running.remove(made)
            await child.stop(grace=_STOP_SECONDS)

    @contextlib.asynccontextmanager
    async def agent(self, node: DevNode, *extra: str) -> AsyncIterator[Agent]:
        """Run an agent that belongs to the hub; the controller must have run once, for its certificates."""
        async with node.agent(*await self.agent_flags(node), *extra) as agent:
            yield agent

    async def agent_flags(self, node: DevNode) -> list[str]:
        """Return the flags by which an agent is its own account, and finds and trusts the hub.

        Waits for the controller's certificate authority. Raises processes.ProcessError when no controller runs that
        would create one.
        """
        authority = self._directory / "ca.crt"
        authority.write_text(await self._authority())
        return [
            f"--kubeconfig={self.kubeconfig(node.name)}",
            *(f"--hub={address}" for address in self.hub_addresses),
            f"--hub-ca={authority}",
            f"--hub-token={self._token_file(node)}",
            f"--hub-name={HUB_NAME}",
        ]

    async def leader(self) -> str:
        """Return the holder of the Lease; empty without one."""
        try:
            return str((await self._api.get(_LEASE_PATH))["spec"].get("holderIdentity") or "")
        except errors.NotFoundError:
            return ""

    async def _authority(self) -> str:
        path = f"{paths.collection('configmaps', namespace=NAMESPACE)}/{_CA_CONFIG_MAP}"
        async with asyncio.timeout(_START_SECONDS):
            while True:
                with contextlib.suppress(errors.NotFoundError):
                    return str((await self._api.get(path))["data"][_CA_KEY])
                if all(each.child.returncode is not None for each in self._running):
                    logs = ", ".join(str(each.log) for each in self._running)
                    raise processes.ProcessError(f"no controller runs that would make certificates; see {logs}")
                await asyncio.sleep(_LOOK_SECONDS)

    async def _prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        await manifests.apply(self._api)
        with contextlib.suppress(errors.NotFoundError):
            await self._api.delete(_LEASE_PATH)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_kubeconfig(CONTROLLER, account=CONTROLLER), name="token-controller")
            for node in self._nodes:
                tasks.create_task(self._write_tokens(node), name=f"tokens-{node.name}")

    async def _write_tokens(self, node: DevNode) -> None:
        pod = await self._agent_pod(node.name)
        file = self._token_file(node)
        file.touch(mode=0o600)
        file.write_text(await accounts.request_token(self._api, AGENT, bound_to=pod, audiences=[AUDIENCE]))
        await self._write_kubeconfig(node.name, account=AGENT, pod=pod)

    async def _write_kubeconfig(self, name: str, *, account: str, pod: Json | None = None) -> None:
        administrator = self._nodes[0].layout.kubeconfig
        await accounts.write_kubeconfig(
            self.kubeconfig(name), api=self._api, administrator=administrator, account=account, bound_to=pod
        )

    def _token_file(self, node: DevNode) -> Path:
        return self._directory / f"{node.name}.token"

    async def _agent_pod(self, node: str) -> Json:
        """Create the pod that an agent would be in, or return the existing one: a cluster may be set up twice."""
        pods, name = paths.collection("pods", namespace=NAMESPACE), f"{AGENT}-{node}"
        spec = {
            "nodeName": node,
            "serviceAccountName": AGENT,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],  # as the DaemonSet's
            "containers": [{"name": "agent", "image": images.PAUSE, "imagePullPolicy": "Never"}],
        }
        try:
            return await self._api.create(pods, {"metadata": {"name": name}, "spec": spec})
        except errors.ConflictError:
            return await self._api.get(f"{pods}/{name}")
