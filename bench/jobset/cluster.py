"""The API server of the benchmark: the stand-in, with one JobSet, its pods' nodes and the agents' tokens."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from aiohttp import web

from bench.hub.agents import Place as AgentPlace
from common import gangs
from common.kube import timestamps
from hack.devnode import jobsets
from hack.devnode.api import standin
from hack.devnode.api.handler import Handler
from hack.devnode.api.operations import Place

NAME: Final = "big"
_NAMESPACE: Final = "kubemend"
_TRAIN: Final = "default"
_ACCOUNT: Final = "kubemend-agent"
_AUDIENCE: Final = "kubemend-hub"
_MANIFESTS: Final = Path(__file__).parents[2] / "daemonset"
_NAMESPACES, _NODES = "/api/v1/namespaces", "/api/v1/nodes"
_ACCOUNTS: Final = f"{_NAMESPACES}/{_NAMESPACE}/serviceaccounts"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_JOBS: Final = f"/apis/batch/v1/namespaces/{_TRAIN}/jobs"
_PODS: Final = f"{_NAMESPACES}/{_TRAIN}/pods"
_RESTARTS: Final = f"/apis/restarts.kubemend.io/v1alpha1/namespaces/{_TRAIN}/restarts"
_NOT_COUNTED: Final = ("reviews", "/leases", "/configmaps", "/secrets", "/healthz", "/version")
_SECONDS: Final = 300.0

Json = dict[str, Any]


class Counting(Handler):
    """Answers, and counts by what was asked for: ``POST jobs``. Watches are not counted."""

    def __init__(self) -> None:
        super().__init__(token=None, history=100_000)
        self.calls: Counter[str] = Counter()
        self.answered = asyncio.Event()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        is_watch = request.method == "GET" and "watch" in request.query
        if not is_watch and not any(part in request.path for part in _NOT_COUNTED):
            self.calls[f"{request.method} {_resource(request.path)}"] += 1
        answer = await super().__call__(request)
        self.answered.set()
        return answer


class Cluster:
    """What there is. ``places`` are the agents of its pods, one for each Job."""

    def __init__(self, server: standin.StandIn, handler: Counting, *, jobs: int) -> None:
        self.kubeconfig = server.kubeconfig
        self.size = jobs
        self.places: list[AgentPlace] = []
        self._handler = handler
        self._operations = handler.operations
        self._create(_NAMESPACES, {"metadata": {"name": _NAMESPACE}})
        for path in (_MANIFESTS / "crds" / "restarts.yaml", _MANIFESTS / "jobset" / "crd.yaml"):
            for document in yaml.safe_load_all(path.read_text()):
                if document["kind"] == "CustomResourceDefinition":
                    self._create(_DEFINITIONS, document)
        self._create(_ACCOUNTS, {"metadata": {"name": _ACCOUNT}})
        ready = {"type": "Ready", "status": "True"}
        for number in range(jobs):
            self._create(_NODES, {"metadata": {"name": _node(number)}, "status": {"conditions": [ready]}})

    @property
    def calls(self) -> Counter[str]:
        """How often what was asked for, so far."""
        return Counter(self._handler.calls)

    def bundle(self) -> str | None:
        """Return the CAs that agents are to trust, None before they are published."""
        found = [each for each in self._list(f"{_NAMESPACES}/{_NAMESPACE}/configmaps") if "ca.crt" in each["data"]]
        return str(found[0]["data"]["ca.crt"]) if found else None

    def create_jobset(self) -> None:
        """Create a JobSet of single pods that is restarted in place."""
        pod = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "trainer", "image": "trainer:1"}]}}
        template = jobsets.job(members=1, pod=pod)
        workers = {"name": "workers", "replicas": self.size, "template": template}
        self._create(jobsets.JOBSETS, jobsets.jobset(NAME, workers, max_restarts=1000))

    def jobset(self) -> Json:
        """Return it."""
        return self._operations.get(self._place(f"{jobsets.JOBSETS}/{NAME}"))

    def status(self) -> Json:
        """Return its status."""
        return self.jobset().get("status") or {}

    def jobs(self) -> list[Json]:
        """Return its Jobs."""
        return self._list(_JOBS)

    def start_pods(self) -> None:
        """Have each Job have a pod that is ready, on a node of its own with an agent."""
        now = timestamps.rfc3339(time.time())
        for number, job in enumerate(self.jobs()):
            pod = self._pod(job, node=_node(number))
            self.places.append(self._agent(_node(number), pod))
            status = {"active": 1, "ready": 1, "startTime": now}
            path = f"{_JOBS}/{job['metadata']['name']}/status"
            self._operations.update(self._place(path), {**job, **_KIND, "status": status})

    def touch(self, number: int) -> None:
        """Change something of the JobSet that nothing follows from."""
        patch = {"metadata": {"annotations": {"example.com/touched": str(number)}}}
        path = self._place(f"{jobsets.JOBSETS}/{NAME}")
        self._operations.patch(path, patch, content_type="application/merge-patch+json")

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds; it is looked at after each answer of the API server. Raises TimeoutError."""
        async with asyncio.timeout(_SECONDS):
            while not holds():
                self._handler.answered.clear()
                await self._handler.answered.wait()

    def ended_rounds(self) -> int:
        """Return how many rounds are over."""
        return sum("completionTime" in (each.get("status") or {}) for each in self._list(_RESTARTS))

    def _pod(self, job: Json, *, node: str) -> Json:
        template, owner = job["spec"]["template"], job["metadata"]
        metadata = {
            "name": f"{owner['name']}-0-aaaaa",
            "namespace": _TRAIN,
            "labels": {**template["metadata"]["labels"], gangs.JOB_INDEX: "0"},
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": [{**_KIND, "name": owner["name"], "uid": owner["uid"], "controller": True}],
        }
        created = self._create(_PODS, {"metadata": metadata, "spec": {**template["spec"], "nodeName": node}})
        path = f"{_PODS}/{metadata['name']}/status"
        return self._operations.update(self._place(path), {**created, "status": {"phase": "Running"}})

    def _agent(self, node: str, member: Json) -> AgentPlace:
        containers = [{"name": "agent", "image": "agent:1"}]
        metadata = {"namespace": _NAMESPACE, "name": f"kubemend-agent-{node}"}
        spec = {"nodeName": node, "serviceAccountName": _ACCOUNT, "containers": containers}
        own = self._create(f"{_NAMESPACES}/{_NAMESPACE}/pods", {"metadata": metadata, "spec": spec})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": own["metadata"]["uid"]}
        asked = {"spec": {"audiences": [_AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound}}
        token = self._operations.request_token(self._place(f"{_ACCOUNTS}/{_ACCOUNT}/token"), asked)
        return AgentPlace(
            node=node,
            token=token["status"]["token"],
            gang=str(gangs.GangKey(_TRAIN, "JobSet", NAME)),
            namespace=_TRAIN,
            pod=member["metadata"]["name"],
            uid=member["metadata"]["uid"],
        )

    def _create(self, path: str, body: Json) -> Json:
        return self._operations.create(self._place(path), body)

    def _list(self, path: str) -> list[Json]:
        return list(self._operations.list(self._place(path), lambda _: True)["items"])

    def _place(self, path: str) -> Place:
        place = self._handler.place(path)
        assert place is not None
        return place


_KIND: Final = {"apiVersion": "batch/v1", "kind": "Job"}


@asynccontextmanager
async def running(directory: Path, *, jobs: int) -> AsyncIterator[Cluster]:
    """Serve a cluster for a JobSet of so many Jobs."""
    server = standin.StandIn(kubeconfig=directory / "kubeconfig")
    server.handler = handler = Counting()
    cluster = Cluster(server, handler, jobs=jobs)
    async with server:
        yield cluster


def _node(number: int) -> str:
    return f"node-{number:05d}"


def _resource(path: str) -> str:
    """Return what of a path says what it is about, with its subresource."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return "/".join([*rest[:1], *rest[2:]])
