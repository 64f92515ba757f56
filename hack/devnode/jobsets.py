"""JobSets on the dev nodes: what they need there, and one as a gang of workers that prove when they live."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from common import aio, gangs
from common.kube import client as kube
from common.kube import errors, paths
from hack.devnode.gang_objects import NAMESPACE
from hack.devnode.gangs import Gang
from hack.devnode.jobcontroller import running
from hack.devnode.node import DevNode

API_VERSION = "jobset.x-k8s.io/v1alpha2"
MANAGED_BY = "kubemend.io/jobset-controller"
JOBSETS = paths.collection("jobsets", namespace=NAMESPACE, group="jobset.x-k8s.io", version="v1alpha2")
PODS = paths.collection("pods", namespace=NAMESPACE)
MOST = 2**31 - 1
_DEFINITIONS = paths.collection("customresourcedefinitions", group="apiextensions.k8s.io")
_MANIFEST = Path(__file__).resolve().parents[2] / "daemonset" / "jobset" / "crd.yaml"
_LOOK_SECONDS = 0.05
_START_SECONDS = 60.0

Json = dict[str, Any]


@contextlib.asynccontextmanager
async def run_on(node: DevNode, *, backoff: float) -> AsyncIterator[None]:
    """Have JobSets defined and Jobs run in a node's cluster, for the length of the block.

    ``backoff``: seconds until the stand-in makes a failed pod anew; a real controller manager has ten of its own.
    """
    async with kube.connect(kubeconfig=node.kubeconfig) as api:
        await install(api)
    real = node.kinds["api"] != "stand-in" and not running.missing()
    directory = node.layout.root / "jobs"
    async with running.on(node.kubeconfig, directory, real=real, backoff=None if real else backoff):
        yield


async def install(api: kube.KubeClient) -> None:
    """Install the definition of JobSets, and wait until they are served."""
    with contextlib.suppress(errors.ConflictError):
        await api.create(_DEFINITIONS, yaml.safe_load(_MANIFEST.read_text()))
    async with asyncio.timeout(_START_SECONDS):
        async for _ in aio.ticks(period=_LOOK_SECONDS):
            with contextlib.suppress(errors.NotFoundError):
                await api.list(JOBSETS)
                return


def job(*, members: int, pod: Json, backoff_limit: int = MOST) -> Json:
    """Return a Job template as restarts in place want it (``controller.jobset.validation``)."""
    return {
        "spec": {
            "completionMode": "Indexed",
            "completions": members,
            "parallelism": members,
            "backoffLimit": backoff_limit,
            "podReplacementPolicy": "Failed",
            "template": pod,
        }
    }


def jobset(name: str, *replicated_jobs: Json, max_restarts: int, **spec: Any) -> Json:
    """Return a JobSet of ours that is restarted in place."""
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "managedBy": MANAGED_BY,
            "failurePolicy": {"restartStrategy": "InPlaceRestart", "maxRestarts": max_restarts},
            "replicatedJobs": list(replicated_jobs),
            **spec,
        },
    }


async def delete(api: kube.KubeClient, name: str, *, timeout: float = 60.0) -> None:
    """Delete a JobSet with all that it owns, and wait until its pods are gone. Raises TimeoutError."""
    with contextlib.suppress(errors.NotFoundError):
        await api.delete(f"{JOBSETS}/{name}", options={"propagationPolicy": "Foreground"})
    async with asyncio.timeout(timeout):
        while (await api.list(PODS, params=of(name))).items:  # noqa: ASYNC110 - seldom, and not worth a watch
            await asyncio.sleep(_LOOK_SECONDS)


def of(name: str) -> dict[str, str]:
    """Return the selector of a JobSet's pods."""
    return {"labelSelector": f"{gangs.JOBSET_NAME}={name}"}


class JobSetGang(Gang):
    """A gang that a JobSet of ours is: one replicated Job ``workers``, of one Job. Make it with ``JobSetGang.on``.

    What would be done by hand is done by controllers: nobody calls ``replace``.
    """

    _most_restarts = 1000

    @property
    def api(self) -> kube.KubeClient:
        """The API server, as administrator."""
        return self._api

    async def told(self) -> Json:
        """Return the JobSet."""
        return await self._api.get(f"{JOBSETS}/{self.template.name}")

    async def find_pods(self, *, timeout: float = 60.0) -> None:
        """Look up which pods its members have now. Raises TimeoutError when one has none."""
        async with asyncio.timeout(timeout):
            while set(self._names) != set(range(self.size)):
                for pod in (await self._api.list(PODS, params=of(self.template.name))).items:
                    self._names[int(pod["metadata"]["labels"][gangs.JOB_INDEX])] = pod["metadata"]["name"]
                await asyncio.sleep(_LOOK_SECONDS)

    async def _create(self) -> None:
        self.template.lives.mkdir(parents=True)
        spec = self.template.job_object()["spec"]["template"]["spec"]
        template = job(members=self.size, pod={"spec": spec})
        workers = {"name": "workers", "replicas": 1, "template": template}
        await self._api.create(JOBSETS, jobset(self.template.name, workers, max_restarts=self._most_restarts))

    async def _delete(self) -> None:
        await delete(self._api, self.template.name)
