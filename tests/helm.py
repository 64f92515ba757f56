"""Build Helm once, from its Go module, and render charts with it."""

import json
import pathlib
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from hack.devnode.gobuild import GoModule
from hack.devnode.packages import CHECKOUT

_CACHE: Final = CHECKOUT / ".dev" / "helm"
_SECONDS: Final = 120.0
_MODULE: Final = GoModule(
    name="Helm",
    root=CHECKOUT / "hack" / "helm",
    requires="helm.sh/helm/v4",
    packages=("helm.sh/helm/v4/cmd/helm",),
    hint="make the Go modules reachable",
    duration="some minutes on two cores",
)


def ensure() -> pathlib.Path:
    """Return the program, after building it if necessary. Raises packages.PackagesError."""
    return _MODULE.ensure(_CACHE) / "helm"


def run(*arguments: str, values: Mapping[str, Any] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Helm to its end, with values as a file on its standard input. Raises packages.PackagesError."""
    command = [str(ensure()), *arguments, *(("--values=-",) if values is not None else ())]
    given = json.dumps(values) if values is not None else None
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False)
