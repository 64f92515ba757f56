"""The API server of the benchmark: the stand-in, filled with nodes, members and the agents' tokens, counting writes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from aiohttp import web

from bench.hub.agents import Place as AgentPlace
from common import gangs
from controller.restarts import names
from hack.devnode.api import selectors, standin
from hack.devnode.api.handler import Handler
from hack.devnode.api.operations import Place

NAMESPACE: Final = "kubemend"
_TRAIN: Final = "train"
_UNREAD: Final = "unread"
_ACCOUNT: Final = "kubemend-agent"
_AUDIENCE: Final = "kubemend-hub"
_CRD: Final = Path(__file__).parents[2] / "daemonset" / "crds" / "restarts.yaml"
_PODS, _NODES, _NAMESPACES = "/api/v1/pods", "/api/v1/nodes", "/api/v1/namespaces"
_ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
_NOT_OF_A_ROUND: Final = ("/tokenreviews", "/leases")
_FINAL: Final = frozenset({"Done", "Degraded", "Failed"})


@dataclass(frozen=True, slots=True)
class Write:
    """One request that changes something, and when it was answered (``time.monotonic``)."""

    at: float
    method: str
    path: str


class Counting(Handler):
    """Answers, and remembers the writes. Reviews change nothing; Leases are renewed whether anything happens or not."""

    def __init__(self) -> None:
        super().__init__(token=None)
        self.writes: list[Write] = []
        self.written = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        answer = await super().__call__(request)
        if request.method != "GET" and not any(part in request.path for part in _NOT_OF_A_ROUND):
            self.writes.append(Write(time.monotonic(), request.method, request.path))
            self.written.set()
        return answer


class Cluster:
    """What runs: ``places`` are the agents of one big gang, ``disturbers`` two with a gang of their own."""

    def __init__(self, server: standin.StandIn, handler: Counting, *, agents: int) -> None:
        self.kubeconfig = server.kubeconfig
        self._handler = handler
        self._operations = handler.operations
        self._create(_NAMESPACES, {"metadata": {"name": NAMESPACE}})
        self._create(_NAMESPACES, {"metadata": {"name": _TRAIN}})
        self._create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(_CRD.read_text()))
        self._create(_ACCOUNTS, {"metadata": {"name": _ACCOUNT}})
        self._gang = ""
        self.places = [self._agent(f"node-{number:05d}", gang="new") for number in range(agents)]
        self.disturbers = [self._agent(name, gang=_UNREAD) for name in ("deaf", "slow")]

    def bundle(self) -> str | None:
        """Return the CAs that agents are to trust, None before they are published."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        found = self._list(path, lambda obj: obj["metadata"]["name"] == "kubemend-hub-ca")
        return str(found[0]["data"]["ca.crt"]) if found else None

    def rename(self, gang: str) -> None:
        """Make the members those of a gang of another name: none may fail as often in a row as is measured."""
        self._gang = gang
        for place in self.places:
            found = self._place(f"/api/v1/namespaces/{_TRAIN}/pods/{place.pod}")
            pod = self._operations.get(found)
            metadata = {**pod["metadata"], "labels": {gangs.GANG: gang}}
            self._operations.update(found, {**pod, "metadata": metadata})

    async def finished(self) -> tuple[float, str]:
        """Wait until the big gang's round has its final status; return when it was written, and the phase."""
        while True:
            phases = [restart.get("status", {}).get("phase") for restart in self._restarts()]
            if phases and set(phases) <= _FINAL:
                return self._handler.writes[-1].at, str(phases[-1])
            self._handler.written.clear()
            await self._handler.written.wait()

    def writes(self, *, since: float, until: float) -> list[str]:
        """Return the writes that were answered between two moments, for people."""
        return [f"{write.method} {write.path}" for write in self._handler.writes if since <= write.at <= until]

    def _restarts(self) -> list[dict[str, Any]]:
        return self._list(names.WHOLE, lambda obj: obj["metadata"]["labels"].get(names.GANG_NAME) == self._gang)

    def _agent(self, node: str, *, gang: str) -> AgentPlace:
        ready = {"type": "Ready", "status": "True"}
        self._create(_NODES, {"metadata": {"name": node}, "status": {"conditions": [ready]}})
        own = self._pod(NAMESPACE, f"kubemend-agent-{node}", node=node, spec={"serviceAccountName": _ACCOUNT})
        member = self._pod(
            _TRAIN,
            f"worker-{node}",
            node=node,
            labels={gangs.GANG: gang},
            annotations={"kubemend.io/restart": "InPlace", "kubemend.io/max-restarts": "100"},
        )
        bound = {"kind": "Pod", "apiVersion": "v1", "name": own["metadata"]["name"], "uid": own["metadata"]["uid"]}
        asked = {"spec": {"audiences": [_AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound}}
        token = self._operations.request_token(self._place(f"{_ACCOUNTS}/{_ACCOUNT}/token"), asked)
        return AgentPlace(
            node=node,
            token=token["status"]["token"],
            gang=f"{_TRAIN}/Gang/{gang}",
            namespace=_TRAIN,
            pod=member["metadata"]["name"],
            uid=member["metadata"]["uid"],
        )

    def _pod(
        self, namespace: str, name: str, *, node: str, spec: dict[str, Any] | None = None, **metadata: dict[str, str]
    ) -> dict[str, Any]:
        containers = [{"name": "trainer", "image": "trainer"}]
        body = {
            "metadata": {"namespace": namespace, "name": name, **metadata},
            "spec": {"nodeName": node, "restartPolicy": "Always", "containers": containers, **(spec or {})},
            "status": {"phase": "Running"},
        }
        path = f"/api/v1/namespaces/{namespace}/pods"
        created = self._create(path, body)
        return self._operations.update(self._place(f"{path}/{name}/status"), {**created, "status": body["status"]})

    def _create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._operations.create(self._place(path), body)

    def _list(self, path: str, matches: selectors.Predicate) -> list[dict[str, Any]]:
        return list(self._operations.list(self._place(path), matches)["items"])

    def _place(self, path: str) -> Place:
        place = self._handler.place(path)
        assert place is not None
        return place


@asynccontextmanager
async def running(directory: Path, *, agents: int) -> AsyncIterator[Cluster]:
    """Serve a cluster with so many nodes."""
    server = standin.StandIn(kubeconfig=directory / "kubeconfig", history=100_000)
    server.handler = handler = Counting()
    cluster = Cluster(server, handler, agents=agents)
    async with server:
        yield cluster
