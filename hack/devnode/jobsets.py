"""Run JobSets on the dev nodes: their prerequisites, and one as a gang of workers that record their lives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from hack.devnode import controlplane, operators, patience
from hack.devnode.gang_objects import NAMESPACE
from hack.devnode.gangs import Gang
from hack.devnode.node import DevNode
from kubemend.common import gangs
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths

API_VERSION = "jobset.x-k8s.io/v1alpha2"
MANAGED_BY = "kubemend.io/jobset-controller"
JOBSETS = paths.collection("jobsets", namespace=NAMESPACE, group="jobset.x-k8s.io", version="v1alpha2")
PODS = paths.collection("pods", namespace=NAMESPACE)
MOST = 2**31 - 1
_MANIFEST = Path(__file__).resolve().parents[2] / "daemonset" / "jobset" / "crd.yaml"
_PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}
_LOOK_SECONDS = 0.05

Json = dict[str, Any]


@contextlib.asynccontextmanager
async def run_on(node: DevNode, *, also: Sequence[str] = ()) -> AsyncIterator[None]:
    """Define JobSets in a node's cluster, and run Kubernetes' controllers and scheduler for the length of the block.

    ``also`` are further controllers.

    They begin after the definition: the garbage collector would see a later one only after half a minute.
    """
    async with kube.connect(kubeconfig=node.kubeconfig, deadlines=patience.API) as api:
        await install(api)
        await allow_directories(api)
    async with controlplane.on(node.kubeconfig, node.layout.root / "control-plane", also=also):
        yield


async def allow_directories(api: kube.KubeClient) -> None:
    """Label the namespace: else the admission policy allows no pods of JobSets with directories of their node."""
    await api.patch(f"{paths.collection('namespaces')}/{NAMESPACE}", {"metadata": {"labels": _PRIVILEGED}})


async def install(api: kube.KubeClient) -> None:
    """Install the definition of JobSets, and wait until they are served."""
    await operators.define(api, [yaml.safe_load(_MANIFEST.read_text())])


def job(*, members: int, pod: Json, backoff_limit: int = MOST) -> Json:
    """Return a Job template as restarts in place require it (``controller.jobset.spec.validation``)."""
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
    """Return a JobSet managed by kubemend that is restarted in place."""
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


async def delete(api: kube.KubeClient, name: str, *, timeout: float = 120.0) -> None:
    """Delete a JobSet with all that it owns, and wait until that is removed, and it too. Raises TimeoutError."""
    with contextlib.suppress(errors.NotFoundError):
        await api.delete(f"{JOBSETS}/{name}", options={"propagationPolicy": "Foreground"})
        async with asyncio.timeout(timeout):
            while await api.get(f"{JOBSETS}/{name}"):  # noqa: ASYNC110 - rare, and not worth a watch
                await asyncio.sleep(_LOOK_SECONDS)


def of(name: str) -> dict[str, str]:
    """Return the selector of a JobSet's pods."""
    return {"labelSelector": f"{gangs.JOBSET_NAME}={name}"}


class JobSetGang(Gang):
    """Run a gang of a JobSet managed by kubemend: one replicated Job ``workers``, of one Job. Use ``JobSetGang.on``.

    The real Job controller creates its pods and replaces them, and the real scheduler places them, spread over the
    nodes. Do not call ``replace``.
    """

    _most_restarts = 1000

    @property
    def api(self) -> kube.KubeClient:
        """Return the API server, as administrator."""
        return self._api

    async def reported(self) -> Json:
        """Return the JobSet."""
        return await self._api.get(f"{JOBSETS}/{self.template.name}")

    async def find_pods(self, *, timeout: float = 120.0) -> None:
        """Find the current pods of its members, and their nodes. Raises TimeoutError when one has none."""
        by_name = {each.name: each for each in self.nodes}
        async with asyncio.timeout(timeout):
            while set(self._names) != set(range(self.size)):
                for pod in (await self._api.list(PODS, params=of(self.template.name))).items:
                    if on := by_name.get(pod["spec"].get("nodeName", "")):
                        index = int(pod["metadata"]["labels"][gangs.JOB_INDEX])
                        self._names[index], self.nodes[index] = pod["metadata"]["name"], on
                await asyncio.sleep(_LOOK_SECONDS)

    async def _create(self) -> None:
        self.template.lives.mkdir(parents=True)
        spec = self.template.job_object()["spec"]["template"]["spec"]
        spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
        selector = {"matchLabels": {gangs.JOBSET_NAME: self.template.name}}
        spec["topologySpreadConstraints"] = [{**spread, "labelSelector": selector}]
        template = job(members=self.size, pod={"spec": spec})
        workers = {"name": "workers", "replicas": 1, "template": template}
        await self._api.create(JOBSETS, jobset(self.template.name, workers, max_restarts=self._most_restarts))

    async def _delete(self) -> None:
        await delete(self._api, self.template.name)
