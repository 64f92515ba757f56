"""Build other projects' controllers that own training pods from their Go modules, and run them on a dev node's cluster.

``hack/platforms/*/go.mod`` requires each as a tool: its project's own main package, unchanged. Its definitions of
custom resources and its webhooks come out of the same module. ``python -m hack.devnode platforms`` builds all.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from hack.devnode import loopback, operators, processes
from hack.devnode.gobuild import GoModule
from hack.devnode.node import DevNode
from hack.devnode.packages import CHECKOUT, PackagesError
from kubemend.common.kube import client as kube

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

    def write(self, name: str, content: Json) -> Path:
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
    """

    module: GoModule
    program: str
    definitions: str
    flags: Callable[[Place], list[str]]
    webhooks: str = ""
    pods: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

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


LEADER_WORKER_SET: Final = Platform(
    module=GoModule(
        name="LeaderWorkerSet",
        root=_ROOT / "lws",
        requires="sigs.k8s.io/lws",
        packages=("sigs.k8s.io/lws/cmd",),
        hint=_HINT,
        duration=_DURATION,
    ),
    program="cmd",
    definitions="config/crd/bases/*.yaml",
    flags=_lws_flags,
    webhooks="config/webhook/manifests.yaml",
    pods="leaderworkerset.sigs.k8s.io/name",
)
ALL: Final = (LEADER_WORKER_SET,)


@contextlib.asynccontextmanager
async def run(platform: Platform, dev: DevNode, api: kube.KubeClient) -> AsyncIterator[None]:
    """Run a controller beside Kubernetes' own for the length of the block; yields when it is ready.

    Raises PackagesError when it has not been built, processes.ProcessError or TimeoutError when it does not start.
    """
    if why := platform.missing():
        raise PackagesError(why)
    source = await asyncio.to_thread(platform.module.source)
    await operators.define(api, [*_documents(source, platform.definitions)])
    place = Place(
        dev.layout.root / "platforms" / platform.module.root.name,
        kubeconfig=dev.kubeconfig,
        webhook_port=loopback.free_port(),
        health_port=loopback.free_port(),
    )
    place.directory.mkdir(parents=True, exist_ok=True)
    await operators.write_certificate(place.directory)
    log = place.directory / "controller.log"
    child = processes.Child.start(
        [str(platform.directory / platform.program), *platform.flags(place)],
        name=platform.name,
        log=log,
        pid_file=place.directory / "controller.pid",
        environment={**os.environ, "KUBECONFIG": str(place.kubeconfig), **platform.environment},
    )
    try:
        await operators.until_ready(child, port=place.health_port, log=log)
        bundle = (place.directory / "tls.crt").read_bytes()
        configurations = [*_webhooks(platform, source)]
        async with operators.webhooks(api, configurations, port=place.webhook_port, bundle=bundle):
            yield
    finally:
        await child.stop(grace=_STOP_SECONDS)


def _webhooks(platform: Platform, source: Path) -> Iterator[Json]:
    """Yield its webhooks' configurations; those for pods are limited to its own pods, as its release limits them."""
    for configuration in _documents(source, platform.webhooks) if platform.webhooks else ():
        for each in configuration["webhooks"]:
            if each["rules"][0]["resources"] == ["pods"]:
                each["objectSelector"] = {"matchExpressions": [{"key": platform.pods, "operator": "Exists"}]}
        yield configuration


def _documents(source: Path, pattern: str) -> Iterator[Json]:
    for path in sorted(source.glob(pattern)):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document and "kind" in document and document["kind"] != "Kustomization":
                yield document
