"""Provide the cluster of the benchmark: a real API server and Job controller, one JobSet, its pods' nodes, the tokens.

No kubelet runs: the benchmark binds the pods that the Job controller creates, and writes their statuses. The controller
under measurement reaches the API server through a proxy that counts its requests.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from bench.hub.agents import Place as AgentPlace
from hack.devnode import apiproxy, apiserver, controlplane, jobsets
from kubemend.common import aio, gangs
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

NAME: Final = "big"
_NAMESPACE: Final = "kubemend"
_TRAIN: Final = "default"
_ACCOUNT: Final = "kubemend-agent"
_AUDIENCE: Final = "kubemend-hub"
_MANIFESTS: Final = Path(__file__).parents[2] / "daemonset"
_ACCOUNTS: Final = paths.collection("serviceaccounts", namespace=_NAMESPACE)
_CONFIG_MAPS: Final = paths.collection("configmaps", namespace=_NAMESPACE)
_DEFINITIONS: Final = paths.collection("customresourcedefinitions", group="apiextensions.k8s.io")
_PODS: Final = paths.collection("pods", namespace=_TRAIN)
_RESTARTS: Final = f"/apis/restarts.kubemend.io/v1alpha1/namespaces/{_TRAIN}/restarts"
_NOT_COUNTED: Final = ("reviews", "/leases", "/configmaps", "/secrets", "/healthz", "/version")
_AT_ONCE: Final = 16
_LOOK_AGAIN: Final = 0.05
_SECONDS: Final = 300.0
_READY: Final = {"type": "Ready", "status": "True"}

Json = dict[str, Any]


class Cluster:
    """Hold the cluster. ``places`` are the agents of its pods, one for each Job; ``kubeconfig`` is the controller's."""

    def __init__(self, api: kube.KubeClient, proxy: apiproxy.ApiProxy, *, jobs: int) -> None:
        self.kubeconfig = proxy.kubeconfig
        self.size = jobs
        self.places: list[AgentPlace] = []
        self._api = api
        self._proxy = proxy

    @property
    def calls(self) -> Counter[str]:
        """Return the controller's requests so far, by kind: ``POST jobs``. Watches are not counted."""
        counted: Counter[str] = Counter()
        for (method, path), count in self._proxy.counts.items():
            if not any(part in path for part in _NOT_COUNTED):
                watches = self._proxy.watched[path] if method == "GET" else 0
                counted[f"{method} {_resource(path)}"] += count - watches
        return +counted

    async def prepare(self) -> None:
        """Create the objects that precede the JobSet."""
        await self._api.create(paths.collection("namespaces"), {"metadata": {"name": _NAMESPACE}})
        await self._api.create(_ACCOUNTS, {"metadata": {"name": _ACCOUNT}})
        await _side_by_side(self._create_node(number) for number in range(self.size))

    async def bundle(self) -> str | None:
        """Return the CAs that agents must trust, None before they are published."""
        found = [each for each in (await self._api.list(_CONFIG_MAPS)).items if "hub" in each["metadata"]["name"]]
        return str(found[0]["data"]["ca.crt"]) if found else None

    async def create_jobset(self) -> None:
        """Create a JobSet of single pods that is restarted in place."""
        pod = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "trainer", "image": "trainer:1"}]}}
        template = jobsets.job(members=1, pod=pod)
        workers = {"name": "workers", "replicas": self.size, "template": template}
        await self._api.create(jobsets.JOBSETS, jobsets.jobset(NAME, workers, max_restarts=1000))

    async def status(self) -> Json:
        """Return its status."""
        return (await self._api.get(f"{jobsets.JOBSETS}/{NAME}")).get("status") or {}

    async def start_pods(self) -> None:
        """Have the pod of each Job run and be ready, on a node of its own with an agent."""
        pods: list[Json] = []

        async def all_made() -> bool:
            pods[:] = (await self._api.list(_PODS)).items
            return len(pods) == self.size

        await self.until(all_made)
        await _side_by_side(self._start(pod, node=_node(number)) for number, pod in enumerate(pods))

    async def touch(self, number: int) -> None:
        """Change something of the JobSet without any consequence."""
        patch = {"metadata": {"annotations": {"example.com/touched": str(number)}}}
        await self._api.patch(f"{jobsets.JOBSETS}/{NAME}", patch, content_type=kube.Patch.MERGE)

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until it holds. Raises TimeoutError."""
        async with asyncio.timeout(_SECONDS):
            while not await holds():  # noqa: ASYNC110 - it is polled
                await asyncio.sleep(_LOOK_AGAIN)

    async def ended_rounds(self) -> int:
        """Return how many rounds have ended."""
        return sum("completionTime" in (each.get("status") or {}) for each in (await self._api.list(_RESTARTS)).items)

    async def _create_node(self, number: int) -> None:
        await self._api.create(paths.NODES, {"metadata": {"name": _node(number)}})
        await self._api.patch_status(f"{paths.NODES}/{_node(number)}", {"status": {"conditions": [_READY]}})

    async def _start(self, pod: Json, *, node: str) -> None:
        path = f"{_PODS}/{pod['metadata']['name']}"
        metadata = {"name": pod["metadata"]["name"], "namespace": _TRAIN}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        await self._api.create(f"{path}/binding", {"metadata": metadata, "target": target})
        await self._api.patch_status(path, {"status": {"phase": "Running", "conditions": [_READY]}})
        self.places.append(await self._agent(node, pod))

    async def _agent(self, node: str, member: Json) -> AgentPlace:
        containers = [{"name": "agent", "image": "agent:1"}]
        metadata = {"namespace": _NAMESPACE, "name": f"kubemend-agent-{node}"}
        spec = {"nodeName": node, "serviceAccountName": _ACCOUNT, "containers": containers}
        own = await self._api.create(
            paths.collection("pods", namespace=_NAMESPACE), {"metadata": metadata, "spec": spec}
        )
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": own["metadata"]["uid"]}
        asked = {"spec": {"audiences": [_AUDIENCE], "expirationSeconds": 3600, "boundObjectRef": bound}}
        token = await self._api.create(f"{_ACCOUNTS}/{_ACCOUNT}/token", asked)
        return AgentPlace(
            node=node,
            token=token["status"]["token"],
            gang=str(gangs.GangKey(_TRAIN, "JobSet", NAME)),
            namespace=_TRAIN,
            pod=member["metadata"]["name"],
            uid=member["metadata"]["uid"],
        )


@asynccontextmanager
async def running(directory: Path, *, jobs: int) -> AsyncIterator[Cluster]:
    """Run a cluster for a JobSet of that many Jobs."""
    async with (
        apiserver.KubeApiServer(directory / "kube") as server,
        kube.connect(kubeconfig=server.kubeconfig) as api,
    ):
        await _define(api)
        async with (
            controlplane.on(
                server.kubeconfig, directory / "control-plane", scheduler=False, without=controlplane.SILENCE
            ),
            apiproxy.ApiProxy(server.kubeconfig, kubeconfig=directory / "kubeconfig") as proxy,
        ):
            cluster = Cluster(api, proxy, jobs=jobs)
            await cluster.prepare()
            yield cluster


async def _define(api: kube.KubeClient) -> None:
    await jobsets.install(api)
    for document in yaml.safe_load_all((_MANIFESTS / "crds" / "restarts.yaml").read_text()):
        if document["kind"] == "CustomResourceDefinition":
            await api.create(_DEFINITIONS, document)


async def _side_by_side(calls: Iterable[Awaitable[None]]) -> None:
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Awaitable[None]) -> None:
        async with room:
            await call

    await aio.side_by_side(*(one(each) for each in calls))


def _node(number: int) -> str:
    return f"node-{number:05d}"


def _resource(path: str) -> str:
    """Return the resource of a path, with its subresource."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return "/".join([*rest[:1], *rest[2:]])
