"""Compose the archive and the manifest of the plugin ``mend``."""

import gzip
import hashlib
import io
import pathlib
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hack.devnode.gobuild import GoModule
from hack.devnode.packages import CHECKOUT

NAME: Final = "mend"
ARCHIVE: Final = f"kubectl-{NAME}.tar.gz"
MANIFEST: Final = f"{NAME}.yaml"

_PROGRAM: Final = f"kubectl-{NAME}"
_HERE: Final = pathlib.Path(__file__).parent
_CAVEATS: Final = """\
Needs uv or pipx, which run the release that this plugin names, and Python 3.11 or later.
The cluster needs kubemend: its agents and, for gangs, its controller.
"""

KREW: Final = GoModule(
    name="krew",
    root=_HERE,
    requires="sigs.k8s.io/krew",
    packages=("sigs.k8s.io/krew/cmd/krew", "sigs.k8s.io/krew/cmd/validate-krew-manifest"),
    hint="make the Go modules reachable",
    duration="half a minute",
)
"""Krew itself, and its index's check of manifests; for tests."""


@dataclass(frozen=True, slots=True)
class Project:
    """Hold the manifest's facts about the project: version without ``v``, and one sentence."""

    version: str
    description: str


def project() -> Project:
    """Read the project's version and description."""
    found = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    return Project(version=found["version"], description=found["description"])


def wheel(of: Project, *, releases: str) -> str:
    """Return the address of the project's wheel, which the plugin runs; ``releases`` as for ``manifest``."""
    return f"{_release(of, releases)}/kubemend-{of.version}-py3-none-any.whl"


def archive(of: Project, *, releases: str) -> bytes:
    """Return the plugin's archive: equal projects and addresses have equal archives."""
    program = (_HERE / _PROGRAM).read_text("utf-8").replace("@WHEEL@", wheel(of, releases=releases))
    made = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=made, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        _add(tar, _PROGRAM, program.encode(), mode=0o755)
        _add(tar, "LICENSE", (CHECKOUT / "LICENSE").read_bytes(), mode=0o644)
    return made.getvalue()


def manifest(of: Project, *, releases: str, packed: bytes) -> Mapping[str, Any]:
    """Return the manifest of an archive that is published below the address of releases."""
    platform = {
        "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["darwin", "linux"]}]},
        "uri": f"{_release(of, releases)}/{ARCHIVE}",
        "sha256": hashlib.sha256(packed).hexdigest(),
        "bin": _PROGRAM,
    }
    spec = {
        "version": f"v{of.version}",
        "homepage": releases,
        "shortDescription": "Restart GPU workloads in place and show why",
        "description": of.description,
        "caveats": _CAVEATS,
        "platforms": [platform],
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": spec,
    }


def _release(of: Project, releases: str) -> str:
    return f"{releases.rstrip('/')}/v{of.version}"


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
