"""Run Kubernetes' own controllers and scheduler as processes.

The API server of a dev cluster (``apiserver``) stores objects and does nothing with them. Where a test or the demo
needs Jobs that get pods, owners whose dependents are deleted, namespaces that can be deleted, or pods that are placed,
``on`` also runs kube-controller-manager and kube-scheduler.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from hack.devnode import kubernetes, processes

_MANAGER: Final = "kube-controller-manager"
_SCHEDULER: Final = "kube-scheduler"
_STOP_SECONDS: Final = 10.0

CONTROLLERS: Final[Mapping[str, str]] = {
    "job-controller": "creates the pods of Jobs and finishes Jobs",
    "garbage-collector-controller": "deletes the dependents of deleted owners, and ends deletions in the foreground",
    "namespace-controller": "empties deleted namespaces",
    "serviceaccount-controller": "gives each namespace its service account 'default'",
    "root-ca-certificate-publisher-controller": "gives each namespace the authority that projected tokens come with",
    "node-lifecycle-controller": "removes the taint of a new node once it is Ready; marks nodes that are silent",
    "deployment-controller": "runs the controller of kubemend as it is installed",
    "statefulset-controller": "makes the pods of LeaderWorkerSets",
    "replicaset-controller": "makes the pods of Deployments",
    "daemonset-controller": "runs the agents of kubemend as they are installed",
    "endpointslice-controller": "names the pods behind a Service, for DNS",
    "validatingadmissionpolicy-status-controller": "checks the expressions of admission policies for types",
}
"""The controllers that run, each with the reason.

Kubernetes' other ones concern things that a dev cluster does not have (volumes, clouds, autoscaling), or would delete
pods of a lost node before a test has seen them (``EVICTION``).
"""

SILENCE: Final = ("node-lifecycle-controller",)
"""The controller that marks nodes as not ready. Nodes that are objects only, without a kubelet, become silent."""
EVICTION: Final = ("taint-eviction-controller", "pod-garbage-collector-controller")
"""The controllers that delete the pods of a lost node: at once after it has been marked as out of service."""


def missing(environ: Mapping[str, str] = os.environ) -> str:
    """Return why these programs are unavailable on this machine, or "" when they are available."""
    return kubernetes.missing(_MANAGER, _SCHEDULER, environ=environ)


@contextlib.asynccontextmanager
async def on(
    kubeconfig: Path, directory: Path, *, scheduler: bool = True, also: Sequence[str] = (), without: Sequence[str] = ()
) -> AsyncIterator[None]:
    """Run them as administrators for the length of the block; their logs are in ``directory``.

    ``also`` are further controllers, ``without`` are those of ``CONTROLLERS`` that do not run.

    They are not awaited: a client sees by their effects that they work. Raises packages.PackagesError where the
    programs are missing, processes.ProcessError where one cannot be started or has ended by itself.
    """
    controllers = [each for each in (*CONTROLLERS, *also) if each not in without]
    commands = {_MANAGER: _manager(kubeconfig, directory, controllers=controllers)}
    if scheduler:
        commands[_SCHEDULER] = _scheduler(kubeconfig, directory)
    async with contextlib.AsyncExitStack() as stack:
        children = []
        for name, command in commands.items():
            log = directory / f"{name}.log"
            child = processes.Child.start(command, name=name, log=log, pid_file=directory / f"{name}.pid")
            stack.push_async_callback(child.stop, grace=_STOP_SECONDS)
            children.append((child, log))
        yield
        for child, log in children:
            if child.returncode is not None:
                raise processes.ProcessError(f"{child.name} ended by itself ({child.returncode}); see {log}")


def _manager(kubeconfig: Path, directory: Path, *, controllers: Sequence[str]) -> list[str]:
    return _command(
        _MANAGER,
        {
            "kubeconfig": str(kubeconfig),
            "controllers": ",".join(controllers),
            "leader-elect": "false",
            "secure-port": "0",
            "cert-dir": str(directory),
            "root-ca-file": str(_authority(kubeconfig)),
            "use-service-account-credentials": "false",
            "kube-api-qps": "500",  # the default of 20 a second is for a shared cluster
            "kube-api-burst": "1000",
        },
    )


def _scheduler(kubeconfig: Path, directory: Path) -> list[str]:
    flags = {"kubeconfig": str(kubeconfig), "leader-elect": "false", "secure-port": "0", "cert-dir": str(directory)}
    return _command(_SCHEDULER, flags)


def _authority(kubeconfig: Path) -> Path:
    """Return the file of the authority that signs the API server's certificate."""
    (cluster,) = yaml.safe_load(kubeconfig.read_text())["clusters"]
    return Path(cluster["cluster"]["certificate-authority"])


def _command(name: str, flags: Mapping[str, str]) -> list[str]:
    return [str(kubernetes.program(name)), *(f"--{key}={text}" for key, text in flags.items())]
