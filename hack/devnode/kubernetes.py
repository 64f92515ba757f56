"""Build Kubernetes' own programs for the dev cluster, once, from its Go modules.

``hack/kubernetes`` is a Go module that requires Kubernetes and etcd and has a main package for each program. ``ensure``
builds them into ``.dev/kubernetes/<version>``. If ``$KUBEBUILDER_ASSETS`` is set (envtest's convention) the programs of
that directory are used instead; an empty value means that there are none.
"""

import os
import pathlib
import re
import subprocess
from collections.abc import Mapping
from typing import Final

from hack.devnode.gobuild import GoModule
from hack.devnode.packages import CHECKOUT, PackagesError

PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
DEFAULT_CACHE: Final = CHECKOUT / ".dev" / "kubernetes"

_VARIABLE: Final = "KUBEBUILDER_ASSETS"
_ROOT: Final = CHECKOUT / "hack" / "kubernetes"


def _stamps(version: str) -> dict[str, str]:
    """Return the stamps of Kubernetes' own build: kubelet, for example, reports them to the API server."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{place}.{key}": value for place in places for key, value in values.items()}


_MODULE: Final = GoModule(
    name="Kubernetes",
    root=_ROOT,
    requires="k8s.io/kubernetes",
    packages=("./cmd/...",),
    hint=f"make the Go modules reachable, or set {_VARIABLE} to a directory with {', '.join(PROGRAMS)}",
    duration="about ten minutes on two cores",
    stamps=_stamps,
)


def version() -> str:
    """Return the version of Kubernetes in the dev cluster, such as ``v1.36.3``."""
    return _MODULE.version


def directory(cache: pathlib.Path = DEFAULT_CACHE) -> pathlib.Path:
    """Return the directory of the built programs: a new version, or another main package, is another directory."""
    return _MODULE.directory(cache)


def assets(environ: Mapping[str, str] = os.environ) -> pathlib.Path | None:
    """Return the directory of the real programs: ``$KUBEBUILDER_ASSETS``, else the built ones, else None."""
    if _VARIABLE in environ:
        return pathlib.Path(environ[_VARIABLE]) if environ[_VARIABLE] else None
    built = directory()
    return built if built.is_dir() else None


def missing(*programs: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return why these programs are unavailable on this machine, or "" when they are available."""
    where = assets(environ)
    if where is None:
        return f"no real {' and '.join(programs)}: run `make kubernetes`, or set ${_VARIABLE}"
    lacking = [name for name in programs if not (where / name).is_file()]
    return f"{where} lacks {' and '.join(lacking)}" if lacking else ""


def program(name: str) -> pathlib.Path:
    """Return the path of a real program. Raises PackagesError when it is unavailable."""
    where = assets()
    if where is None or not (where / name).is_file():
        raise PackagesError(missing(name))
    return where / name


def ensure(cache: pathlib.Path = DEFAULT_CACHE) -> pathlib.Path:
    """Return the directory of the real programs, after building them if necessary.

    Concurrent callers are allowed. Raises PackagesError with one line: what failed, and the hint.
    """
    if os.environ.get(_VARIABLE):
        if reason := missing(*PROGRAMS):
            raise PackagesError(reason)
        return pathlib.Path(os.environ[_VARIABLE])
    return _MODULE.ensure(cache)


def reported(where: pathlib.Path) -> dict[str, str]:
    """Return the version that each program reports, by name."""
    flags = {"kubectl": ("version", "--client", "--output=json")}
    pattern = re.compile(r"v?(\d+\.\d+\.\d+)")
    answers = {}
    for name in PROGRAMS:
        command = [str(where / name), *flags.get(name, ("--version",))]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        found = pattern.search(answer.stdout)
        answers[name] = f"v{found[1]}" if found else "unknown"
    return answers
