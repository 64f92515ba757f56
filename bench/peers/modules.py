"""Build programs of other projects with the same purpose as kubemend, once, from their Go modules.

``python -m bench.peers`` compares them with kubemend. Each is its project's own main package, unchanged:
``hack/peers/*/go.mod`` requires it as a tool.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from hack.devnode.gobuild import GoModule
from hack.devnode.packages import CHECKOUT

_CACHE: Final = CHECKOUT / ".dev" / "peers"
_ROOT: Final = CHECKOUT / "hack" / "peers"
_HINT: Final = "make the Go modules reachable"
_DURATION: Final = "some minutes on two cores"


def _version_in(variable: str) -> Callable[[str], Mapping[str, str]]:
    return lambda version: {variable: version}


JOBSET: Final = GoModule(
    name="JobSet",
    root=_ROOT / "jobset",
    requires="sigs.k8s.io/jobset",
    packages=("sigs.k8s.io/jobset", "sigs.k8s.io/jobset/cmd/in-place-restart-agent"),
    hint=_HINT,
    duration=_DURATION,
    stamps=_version_in("sigs.k8s.io/jobset/pkg/version.GitVersion"),
)
NODE_PROBLEM_DETECTOR: Final = GoModule(
    name="node-problem-detector",
    root=_ROOT / "npd",
    requires="k8s.io/node-problem-detector",
    packages=("k8s.io/node-problem-detector/cmd/nodeproblemdetector",),
    hint=_HINT,
    duration=_DURATION,
    stamps=_version_in("k8s.io/node-problem-detector/pkg/version.version"),
)
MODULES: Final = (JOBSET, NODE_PROBLEM_DETECTOR)


def programs(module: GoModule) -> pathlib.Path:
    """Return the directory of a peer's programs, which are built if necessary. Raises packages.PackagesError."""
    return module.ensure(_CACHE / module.root.name)


def manifest(module: GoModule, path: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest that the peer's module publishes. Raises packages.PackagesError."""
    documents = yaml.safe_load_all((module.source() / path).read_text(encoding="utf-8"))
    return [each for each in documents if each]
