"""Provide the real API server of the benchmark, with nodes, members and the agents' tokens; writes are counted."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from aiohttp import web

from bench.hub.agents import Place as AgentPlace
from hack.devnode import apiproxy, apiserver
from kubemend.common import aio, gangs
from kubemend.common.kube import client, errors
from kubemend.controller.restarts import names

NAMESPACE: Final = "kubemend"
_TRAIN: Final = "train"
_UNREAD: Final = "unread"
_ACCOUNT: Final = "kubemend-agent"
_AUDIENCE: Final = "kubemend-hub"
_CRD: Final = Path(__file__).parents[2] / "daemonset" / "crds" / "restarts.yaml"
_NODES, _NAMESPACES = "/api/v1/nodes", "/api/v1/namespaces"
_ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
_NOT_OF_A_ROUND: Final = ("/tokenreviews", "/leases")
_AT_ONCE: Final = 32
"""Concurrent requests while the cluster is filled."""
_FINAL: Final = frozenset({"Done", "Degraded", "Failed"})


@dataclass(frozen=True, slots=True)
class Write:
    """Hold one write request, and when it was answered (``time.monotonic``)."""

    at: float
    method: str
    path: str


class Counting(apiproxy.ApiProxy):
    """Record the writes. Reviews change nothing; Leases are renewed at any rate."""

    def __init__(self, upstream: Path, *, kubeconfig: Path) -> None:
        super().__init__(upstream, kubeconfig=kubeconfig)
        self.writes: list[Write] = []
        self.written = asyncio.Event()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await super()._handle(request)
        if request.method != "GET" and not any(part in request.path for part in _NOT_OF_A_ROUND):
            self.writes.append(Write(time.monotonic(), request.method, request.path))
            self.written.set()
        return answer


class Cluster:
    """Hold the cluster: ``places`` are the agents of one big gang, ``disturbers`` two with a gang of their own."""

    def __init__(self, proxy: Counting, api: client.KubeClient) -> None:
        self.kubeconfig = proxy.kubeconfig
        self.places: list[AgentPlace] = []
        self.disturbers: list[AgentPlace] = []
        self._proxy = proxy
        self._api = api
        self._gang = ""
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def fill(self, *, agents: int) -> None:
        """Create the initial objects: definition, accounts, nodes, pods and tokens."""
        for name in (NAMESPACE, _TRAIN):
            await self._api.create(_NAMESPACES, {"metadata": {"name": name}})
        definition = yaml.safe_load(_CRD.read_text())
        await self._api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        async for _ in aio.ticks(period=0.1):
            with contextlib.suppress(errors.NotFoundError):  # it is served some time after it was created
                await self._api.list(names.WHOLE)
                break
        await self._api.create(_ACCOUNTS, {"metadata": {"name": _ACCOUNT}})
        nodes = [f"node-{number:05d}" for number in range(agents)]
        self.places = await asyncio.gather(*(self._agent(node, gang="new") for node in nodes))
        self.disturbers = await asyncio.gather(*(self._agent(name, gang=_UNREAD) for name in ("deaf", "slow")))

    async def bundle(self) -> str | None:
        """Return the CAs that agents must trust, None before they are published."""
        try:
            found = await self._api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/kubemend-hub-ca")
        except errors.NotFoundError:
            return None
        return str(found["data"]["ca.crt"])

    async def rename(self, gang: str, *, members: int) -> None:
        """Move the first members to a gang of another name: no gang may fail as often in a row as is measured."""
        self._gang = gang
        await asyncio.gather(*(self._label(place.pod, gang) for place in self.places[:members]))

    async def finished(self) -> tuple[float, str]:
        """Wait until the big gang's round has its final status; return when it was written, and the phase."""
        while True:
            self._proxy.written.clear()
            last = self._proxy.writes[-1].at if self._proxy.writes else 0.0
            phases = [restart.get("status", {}).get("phase") for restart in await self._restarts()]
            if phases and set(phases) <= _FINAL:
                return last, str(phases[-1])
            await self._proxy.written.wait()

    def writes(self, *, since: float, until: float) -> list[str]:
        """Return the writes that were answered between two moments, for people."""
        return [f"{write.method} {write.path}" for write in self._proxy.writes if since <= write.at <= until]

    async def _label(self, pod: str, gang: str) -> None:
        async with self._free:
            change = {"metadata": {"labels": {gangs.GANG: gang}}}
            await self._api.patch(f"/api/v1/namespaces/{_TRAIN}/pods/{pod}", change, content_type=client.Patch.MERGE)

    async def _restarts(self) -> list[dict[str, Any]]:
        mine = {"labelSelector": f"{names.GANG_NAME}={self._gang}"}
        return (await self._api.list(names.WHOLE, params=mine)).items

    async def _agent(self, node: str, *, gang: str) -> AgentPlace:
        async with self._free:
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            await self._api.create(_NODES, {"metadata": {"name": node}, "status": ready})
            own = await self._pod(NAMESPACE, f"kubemend-agent-{node}", node=node, spec={"serviceAccountName": _ACCOUNT})
            member = await self._pod(
                _TRAIN,
                f"worker-{node}",
                node=node,
                labels={gangs.GANG: gang},
                annotations={"kubemend.io/restart": "InPlace", "kubemend.io/max-restarts": "100"},
            )
            bound = {"kind": "Pod", "apiVersion": "v1", "name": own["metadata"]["name"], "uid": own["metadata"]["uid"]}
            asked = {"spec": {"audiences": [_AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound}}
            token = await self._api.create(f"{_ACCOUNTS}/{_ACCOUNT}/token", asked)
        return AgentPlace(
            node=node,
            token=token["status"]["token"],
            gang=f"{_TRAIN}/Gang/{gang}",
            namespace=_TRAIN,
            pod=member["metadata"]["name"],
            uid=member["metadata"]["uid"],
        )

    async def _pod(
        self, namespace: str, name: str, *, node: str, spec: dict[str, Any] | None = None, **metadata: dict[str, str]
    ) -> dict[str, Any]:
        containers = [{"name": "trainer", "image": "trainer"}]
        body = {
            "metadata": {"namespace": namespace, "name": name, **metadata},
            "spec": {"nodeName": node, "restartPolicy": "Always", "containers": containers, **(spec or {})},
        }
        path = f"/api/v1/namespaces/{namespace}/pods"
        await self._api.create(path, body)
        return await self._api.patch_status(f"{path}/{name}", {"status": {"phase": "Running"}})


@asynccontextmanager
async def running(directory: Path, *, agents: int) -> AsyncIterator[Cluster]:
    """Serve a cluster with that many nodes."""
    async with (
        apiserver.KubeApiServer(directory / "server") as server,
        client.connect(kubeconfig=server.kubeconfig, deadlines=client.Deadlines(call=120.0)) as api,
        Counting(server.kubeconfig, kubeconfig=directory / "kubeconfig") as proxy,
    ):
        cluster = Cluster(proxy, api)
        await cluster.fill(agents=agents)
        yield cluster
