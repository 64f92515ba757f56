"""Run upstream's JobSet controller with InPlaceRestart on a dev node's API server, and a gang that it restarts.

As upstream documents it (its KEP-467): the feature gate is on, its webhooks set defaults and check, its agent is a
sidecar of each worker, and kubelet's rule RestartAllContainers (KEP-5532) restarts a pod when its worker fails or its
agent asks for it. Two things differ, and neither affects a restart: the agents reach the API server with a kubeconfig,
as the dev node's API server has no Service, and the webhooks are reached by their address.
"""

import asyncio
import base64
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import yaml

from bench.peers import modules
from hack.devnode import images, jobsets, loopback, operators, processes
from hack.devnode.gang_objects import CONTAINER, NAMESPACE
from hack.devnode.jobsets import JobSetGang
from hack.devnode.node import DevNode
from kubemend.common import gangs
from kubemend.common.kube import client as kube

API_NAME: Final = "kubernetes.default.svc"
"""A name in the certificate which kube-apiserver signs for itself."""

_CRD: Final = "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"
_WEBHOOKS: Final = "config/components/webhook/manifests.yaml"
_GROUP: Final = "jobset.x-k8s.io"
_AGENT: Final = "in-place-restart-agent"
_AGENT_DIR, _ACCOUNT_DIR = "/upstream", "/var/run/secrets/kubernetes.io/serviceaccount"
_AGENT_EXIT_CODE: Final = 1  # its default, IN_PLACE_RESTART_EXIT_CODE
_PROBE: Final = {"path": "/barrier-is-down", "port": 8081}  # its defaults, STARTUP_PROBE_PATH and _PORT
_STOP_SECONDS: Final = 10.0

Json = dict[str, Any]


async def define_jobsets(dev: DevNode) -> None:
    """Define JobSets as upstream's release does, for both sides. Raises packages.PackagesError."""
    async with kube.connect(kubeconfig=dev.kubeconfig) as api:
        await operators.define(api, await asyncio.to_thread(modules.manifest, modules.JOBSET, _CRD))


@contextlib.asynccontextmanager
async def controller(dev: DevNode, api: kube.KubeClient) -> AsyncIterator[None]:
    """Run upstream's controller for the length of the block; yields when its webhooks are in force.

    Raises packages.PackagesError when it cannot be built, processes.ProcessError or TimeoutError when it does not
    start.
    """
    programs = await asyncio.to_thread(modules.programs, modules.JOBSET)
    where = _place(dev)
    where.mkdir()
    shutil.copy(programs / _AGENT, where)
    (where / "namespace").write_text(NAMESPACE)
    (where / "kubeconfig").write_text(_pods_kubeconfig(dev))
    await operators.write_certificate(where)
    webhook_port, health_port = loopback.free_port(), loopback.free_port()
    config = where / "config.yaml"
    config.write_text(yaml.safe_dump(_configuration(where, webhook_port=webhook_port, health_port=health_port)))
    child = processes.Child.start(
        [str(programs / "jobset"), f"--kubeconfig={dev.kubeconfig}", f"--config={config}", "--zap-log-level=info"],
        name="upstream's JobSet controller",
        log=where / "controller.log",
        pid_file=where / "controller.pid",
    )
    try:
        await operators.until_ready(child, port=health_port, log=where / "controller.log")
        configurations = await asyncio.to_thread(modules.manifest, modules.JOBSET, _WEBHOOKS)
        for each in (each for made in configurations for each in made["webhooks"] if _is_for_jobsets(each)):
            await operators.until_served(each["clientConfig"]["service"]["path"], port=webhook_port)
        bundle = (where / "tls.crt").read_bytes()
        async with operators.webhooks(api, configurations, port=webhook_port, bundle=bundle, wanted=_is_for_jobsets):
            yield
    finally:
        await child.stop(grace=_STOP_SECONDS)


class UpstreamGang(JobSetGang):
    """Manage a gang of an upstream JobSet. Create it with ``UpstreamGang.on`` while ``controller`` runs."""

    async def attempt(self) -> int:
        """Return the attempt that all members have reached: 0 at first, one more after each restart in place."""
        return int(((await self.reported()).get("status") or {}).get("currentInPlaceRestartAttempt", -1))

    async def _create(self) -> None:
        self.template.lives.mkdir(parents=True)
        spec = self.template.job_object()["spec"]["template"]["spec"]
        annotations = dict(self.template.shape.annotations)
        pod = {"metadata": {"annotations": annotations}, "spec": with_agent(spec, self.nodes[0])}
        workers = {"name": "workers", "replicas": 1, "template": jobsets.job(members=self.size, pod=pod)}
        made = jobsets.jobset(self.template.name, workers, max_restarts=self._most_restarts)
        del made["spec"]["managedBy"]
        await self._api.create(jobsets.JOBSETS, made)


def with_agent(spec: Json, dev: DevNode) -> Json:
    """Return a worker's pod spec with upstream's agent as a sidecar, and the rules that restart the pod."""
    (worker,) = spec["containers"]
    place = _place(dev)
    agent = {
        "name": "agent",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": [f"{_AGENT_DIR}/{_AGENT}"],
        "restartPolicy": "Always",
        "restartPolicyRules": [_rule("In", _AGENT_EXIT_CODE)],
        "startupProbe": {"httpGet": _PROBE, "periodSeconds": 1, "failureThreshold": 600},
        "env": [
            {"name": "JOBSET_NAME", "valueFrom": {"fieldRef": {"fieldPath": _label(gangs.JOBSET_NAME)}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "KUBECONFIG", "value": f"{_AGENT_DIR}/kubeconfig"},
        ],
        "volumeMounts": [
            {"name": "upstream", "mountPath": _AGENT_DIR},
            {"name": "upstream", "mountPath": _ACCOUNT_DIR},
        ],
    }
    assert worker["name"] == CONTAINER
    return {
        **spec,
        "initContainers": [agent],
        "containers": [{**worker, "restartPolicy": "Never", "restartPolicyRules": [_rule("NotIn", 0)]}],
        "volumes": [*spec["volumes"], {"name": "upstream", "hostPath": {"path": str(place)}}],
    }


def _is_for_jobsets(webhook: Json) -> bool:
    """Return whether a webhook is for JobSets; those for pods are about exclusive placement only."""
    return bool(webhook["rules"][0]["apiGroups"] == [_GROUP])


def _rule(operator: str, code: int) -> Json:
    return {"action": "RestartAllContainers", "exitCodes": {"operator": operator, "values": [code]}}


def _label(name: str) -> str:
    return f"metadata.labels['{name}']"


def _place(dev: DevNode) -> Path:
    return dev.layout.root / "upstream-jobset"


def _pods_kubeconfig(dev: DevNode) -> str:
    """Return the administrator's kubeconfig for pods: with this machine's address on their bridge."""
    config = yaml.safe_load(dev.kubeconfig.read_text())
    for each in config["clusters"]:
        cluster = each["cluster"]
        cluster["server"] = f"https://{dev.layout.gateway}:{dev.api.port}"
        cluster["tls-server-name"] = API_NAME
        authority = cluster.pop("certificate-authority", None)
        if authority is not None:
            cluster["certificate-authority-data"] = base64.b64encode(Path(authority).read_bytes()).decode()
    return yaml.safe_dump(config)


def _configuration(where: Path, *, webhook_port: int, health_port: int) -> Json:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "featureGates": {"InPlaceRestart": True},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": operators.HOST, "port": webhook_port, "certDir": str(where)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"{operators.HOST}:{health_port}"},
    }
