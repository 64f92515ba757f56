"""Build other projects' controllers that own training pods from their Go modules, and run them on a dev node's cluster.

``hack/platforms/*/go.mod`` requires each as a tool: its project's own main package, unchanged. Its definitions of
custom resources and its webhooks come out of the same module. ``python -m tests.platforms`` builds all.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from bench.peers import modules
from hack.devnode import images, loopback, operators, processes
from hack.devnode.gang_objects import NAMESPACE
from hack.devnode.gobuild import GoModule
from hack.devnode.node import DevNode
from hack.devnode.packages import CHECKOUT, PackagesError
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

_CACHE: Final = CHECKOUT / ".dev" / "platforms"
_ROOT: Final = CHECKOUT / "hack" / "platforms"
_HINT: Final = "make the Go modules reachable"
_DURATION: Final = "some minutes on two cores"
_STOP_SECONDS: Final = 10.0

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Describe where a controller runs: a directory of its own, and its ports on this machine."""

    directory: Path
    kubeconfig: Path
    webhook_port: int
    health_port: int

    @property
    def health_address(self) -> str:
        """The address of its ``/readyz``."""
        return f"{operators.HOST}:{self.health_port}"

    def write(self, name: str, content: Any) -> Path:
        """Write a configuration file and return its path."""
        path = self.directory / name
        path.write_text(yaml.safe_dump(content))
        return path


@dataclass(frozen=True, slots=True)
class Platform:
    """Describe a controller.

    - ``definitions`` matches the manifests of its definitions in the module
    - ``flags`` returns its arguments
    - ``webhooks`` is the manifest of its webhooks, "" for one that runs without
    - ``pods`` is the label of the pods that its webhooks for pods see, "" if it has none
    - ``environment`` is added to its environment
    - ``certificates`` is the fixed place from which it reads certificates, such as ``/tmp/x/certs``; there is nothing
      else below the first directory of that place for it. "" if a flag sets another
    - ``makes_certificates``: it makes those of its webhooks itself, for names that the API server cannot use here; so
      its webhooks are not called
    - ``groups`` are the API groups whose webhooks are called; empty: all
    - ``health`` is the fixed port and the path of its health check; None for one whose port a flag sets
    """

    module: GoModule
    program: str
    definitions: str
    flags: Callable[[Place], list[str]]
    webhooks: str = ""
    pods: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    certificates: str = ""
    makes_certificates: bool = False
    groups: frozenset[str] = frozenset()
    health: tuple[int, str] | None = None

    @property
    def name(self) -> str:
        """Its project's name."""
        return self.module.name

    @property
    def directory(self) -> Path:
        """The directory of the built program."""
        return self.module.directory(_CACHE / self.module.root.name)

    def missing(self) -> str:
        """Return why it cannot be run on this machine, or "" when it can."""
        return "" if self.directory.is_dir() else f"no {self.name} {self.module.version}: run `make platforms`"

    def build(self) -> Path:
        """Build it if necessary; return its program's directory. Raises PackagesError."""
        return self.module.ensure(_CACHE / self.module.root.name)


def _lws_flags(place: Place) -> list[str]:
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": operators.HOST, "port": place.webhook_port, "certDir": str(place.directory)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": place.health_address},
    }
    return [f"--config={place.write('config.yaml', config)}", "--zap-log-level=info"]


def _training_operator_flags(place: Place) -> list[str]:
    """Return its flags; the init container that waits for the master's name does nothing, as there is no DNS here."""
    waits_for_master = {
        "name": "init-pytorch",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["true"],
    }
    return [
        "--metrics-bind-address=0",
        f"--health-probe-bind-address={place.health_address}",
        f"--webhook-server-port={place.webhook_port}",
        f"--pytorch-init-container-template-file={place.write('init-container.yaml', [waits_for_master])}",
    ]


def _kueue_flags(place: Place) -> list[str]:
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": operators.HOST, "port": place.webhook_port, "certDir": str(place.directory)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": place.health_address},
        "integrations": {"frameworks": ["batch/job"]},
    }
    return [f"--config={place.write('config.yaml', config)}", "--feature-gates=VisibilityOnDemand=false"]


def _trainer_flags(place: Place) -> list[str]:
    config = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
        "webhook": {"host": operators.HOST, "port": place.webhook_port},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": place.health_address},
    }
    return [f"--config={place.write('config.yaml', config)}"]


def _jobset_flags(place: Place, *, gates: Mapping[str, bool] = MappingProxyType({})) -> list[str]:
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "featureGates": dict(gates),
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": operators.HOST, "port": place.webhook_port, "certDir": str(place.directory)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": place.health_address},
    }
    return [f"--config={place.write('config.yaml', config)}"]


def _module(name: str, *, root: str, requires: str, package: str) -> GoModule:
    return GoModule(
        name=name, root=_ROOT / root, requires=requires, packages=(package,), hint=_HINT, duration=_DURATION
    )


LEADER_WORKER_SET: Final = Platform(
    module=_module("LeaderWorkerSet", root="lws", requires="sigs.k8s.io/lws", package="sigs.k8s.io/lws/cmd"),
    program="cmd",
    definitions="config/crd/bases/*.yaml",
    flags=_lws_flags,
    webhooks="config/webhook/manifests.yaml",
    pods="leaderworkerset.sigs.k8s.io/name",
)
KUBERAY: Final = Platform(
    module=_module(
        "KubeRay",
        root="kuberay",
        requires="github.com/ray-project/kuberay/ray-operator",
        package="github.com/ray-project/kuberay/ray-operator",
    ),
    program="ray-operator",
    definitions="config/crd/bases/*.yaml",
    flags=lambda place: [
        "--enable-leader-election=false",
        "--metrics-addr=0",
        f"--health-probe-bind-address={place.health_address}",
    ],
)
TRAINING_OPERATOR: Final = Platform(
    module=_module(
        "training-operator",
        root="training-operator",
        requires="github.com/kubeflow/training-operator",
        package="github.com/kubeflow/training-operator/cmd/training-operator.v1",
    ),
    program="training-operator.v1",
    definitions="manifests/base/crds/kubeflow.org_*.yaml",
    flags=_training_operator_flags,
    webhooks="manifests/base/webhook/manifests.yaml",
    environment={"MY_POD_NAMESPACE": NAMESPACE},
    certificates="/tmp/k8s-webhook-server/serving-certs",
    makes_certificates=True,
)
KUEUE: Final = Platform(
    module=_module("Kueue", root="kueue", requires="sigs.k8s.io/kueue", package="sigs.k8s.io/kueue/cmd/kueue"),
    program="kueue",
    definitions="config/components/crd/bases/*.yaml",
    flags=_kueue_flags,
    webhooks="config/components/webhook/manifests.yaml",
    certificates="/etc/kueue/metrics/certs",
    groups=frozenset({"batch", "kueue.x-k8s.io"}),
)
MPI_OPERATOR: Final = Platform(
    module=_module(
        "mpi-operator",
        root="mpi-operator",
        requires="github.com/kubeflow/mpi-operator",
        package="github.com/kubeflow/mpi-operator/cmd/mpi-operator",
    ),
    program="mpi-operator",
    definitions="manifests/base/kubeflow.org_mpijobs.yaml",
    flags=lambda place: [f"--kubeConfig={place.kubeconfig}", f"--lock-namespace={NAMESPACE}"],
    health=(8080, "healthz"),
)
TRAINER: Final = Platform(
    module=_module(
        "Trainer",
        root="trainer",
        requires="github.com/kubeflow/trainer/v2",
        package="github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
    ),
    program="trainer-controller-manager",
    definitions="manifests/base/crds/trainer.kubeflow.org_*.yaml",
    flags=_trainer_flags,
    webhooks="manifests/base/webhook/manifests.yaml",
    certificates="/tmp/k8s-webhook-server/serving-certs",
)
JOBSET: Final = Platform(
    module=modules.JOBSET,
    program="jobset",
    definitions="config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",
    flags=_jobset_flags,
    webhooks="config/components/webhook/manifests.yaml",
    groups=frozenset({"jobset.x-k8s.io"}),
)
JOBSET_WITH_RESTARTS: Final = replace(JOBSET, flags=partial(_jobset_flags, gates={"InPlaceRestart": True}))
"""With the feature gate that is off in its releases."""
ALL: Final = (LEADER_WORKER_SET, KUBERAY, TRAINING_OPERATOR, KUEUE, MPI_OPERATOR, TRAINER, JOBSET)


@contextlib.asynccontextmanager
async def run(platform: Platform, dev: DevNode, api: kube.KubeClient) -> AsyncIterator[None]:
    """Run a controller next to Kubernetes' own for the length of the block; yields when it is ready.

    Raises PackagesError when it has not been built, processes.ProcessError or TimeoutError when it does not start.
    """
    if reason := platform.missing():
        raise PackagesError(reason)
    source = await asyncio.to_thread(platform.module.source)
    await operators.define(api, [*_documents(source, platform.definitions)])
    place = Place(
        dev.layout.root / "platforms" / platform.module.root.name,
        kubeconfig=dev.kubeconfig,
        webhook_port=loopback.free_port(),
        health_port=loopback.free_port(),
    )
    health_port, health_path = platform.health or (place.health_port, "readyz")
    place.directory.mkdir(parents=True, exist_ok=True)
    await operators.write_certificate(place.directory)
    log = place.directory / "controller.log"
    if platform.makes_certificates:
        await _prepare_certificates(platform, source, api)
    command = _with_certificates if platform.certificates else _as_it_is
    child = processes.Child.start(
        [*command(platform, place), *platform.flags(place)],
        name=platform.name,
        log=log,
        pid_file=place.directory / "controller.pid",
        environment={**os.environ, "KUBECONFIG": str(place.kubeconfig), **platform.environment},
    )
    try:
        await operators.until_ready(child, port=health_port, log=log, path=health_path)
        bundle = (place.directory / "tls.crt").read_bytes()
        configurations = [] if platform.makes_certificates else [*_webhooks(platform, source)]
        async with operators.webhooks(api, configurations, port=place.webhook_port, bundle=bundle):
            yield
    finally:
        await child.stop(grace=_STOP_SECONDS)


def _as_it_is(platform: Platform, _: Place) -> list[str]:
    return [str(platform.directory / platform.program)]


def _with_certificates(platform: Platform, place: Place) -> list[str]:
    """Return the command that runs a copy of the program where the certificates are in their fixed place."""
    _, top, *below = Path(platform.certificates).parts
    certificates = place.directory.joinpath(top, *below)
    certificates.mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        shutil.copy(place.directory / name, certificates)
    program = shutil.copy(platform.directory / platform.program, place.directory)
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", str(place.directory / top), f"/{top}", str(program)]


async def _prepare_certificates(platform: Platform, source: Path, api: kube.KubeClient) -> None:
    """Create the Secret and the webhooks into which the controller writes what it has made; none is called."""
    secret = {"metadata": {"name": "training-operator-webhook-cert"}}
    await api.create(paths.collection("secrets", namespace=NAMESPACE), secret)
    for configuration in _webhooks(platform, source):
        configuration["metadata"]["name"] = "validator.training-operator.kubeflow.org"
        for each in configuration["webhooks"]:
            each["clientConfig"] = {"url": f"https://{operators.HOST}"}
            each["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "none"}}
        webhooks = paths.collection("validatingwebhookconfigurations", group="admissionregistration.k8s.io")
        await api.create(webhooks, configuration)


def _webhooks(platform: Platform, source: Path) -> Iterator[Json]:
    """Yield its webhooks' configurations, under its name; those for pods are limited to its own pods, as released."""
    for configuration in _documents(source, platform.webhooks) if platform.webhooks else ():
        configuration["metadata"]["name"] = f"{platform.module.root.name}-{configuration['metadata']['name']}"
        if platform.groups:
            its = configuration["webhooks"]
            configuration["webhooks"] = [each for each in its if platform.groups & {*each["rules"][0]["apiGroups"]}]
        for each in configuration["webhooks"]:
            if each["rules"][0]["resources"] == ["pods"]:
                each["objectSelector"] = {"matchExpressions": [{"key": platform.pods, "operator": "Exists"}]}
        yield configuration


def _documents(source: Path, pattern: str) -> Iterator[Json]:
    for path in sorted(source.glob(pattern)):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document and "kind" in document and document["kind"] != "Kustomization":
                yield document
