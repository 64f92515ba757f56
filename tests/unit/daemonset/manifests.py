"""Render the manifests by ``kubectl kustomize``, each kustomization once."""

import copy
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.unit.daemonset import kubectl

Json = dict[str, Any]

REPOSITORY: Final = Path(__file__).parents[3]
DAEMONSET: Final = REPOSITORY / "daemonset"
BASE: Final = DAEMONSET / "base"
DEFAULT: Final = DAEMONSET / "default"
ADMISSION: Final = DAEMONSET / "admission"
COMPONENTS: Final[Mapping[str, Path]] = {
    path.parent.name: path.parent for path in sorted((DAEMONSET / "components").glob("*/kustomization.yaml"))
}
OVERLAYS: Final[Mapping[str, Path]] = {
    path.parent.name: path.parent for path in sorted((DAEMONSET / "overlays").glob("*/kustomization.yaml"))
}
VARIANTS: Final[Sequence[tuple[str, ...]]] = ((), *((name,) for name in COMPONENTS), tuple(COMPONENTS))
"""The installed variants: the base alone, with each component, and with all of them."""

INSTALLATIONS: Final = (DAEMONSET, DEFAULT, *OVERLAYS.values())
"""The variants that are complete for a cluster."""

POLICIES: Final = {"ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"}

CLUSTER_WIDE: Final = {
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    *POLICIES,
    *(f"{each}Binding" for each in POLICIES),
}
"""Kinds in the manifests without a namespace."""


def kustomization(directory: Path) -> Json:
    """Return a directory's kustomization."""
    found: Json = yaml.safe_load((directory / "kustomization.yaml").read_text())
    return found


def listed(directory: Path) -> list[str]:
    """Return the files that a kustomization names."""
    listed = kustomization(directory)
    return [*listed.get("resources", ()), *(patch["path"] for patch in listed.get("patches", ()))]


def build(directory: Path) -> list[Json]:
    """Return the objects of a kustomization."""
    return copy.deepcopy(_rendered(directory))


def render(variant: Sequence[str] = ()) -> list[Json]:
    """Return the objects of the base with these components."""
    return combined(BASE, *(COMPONENTS[name] for name in variant))


def combined(base: Path, *components: Path) -> list[Json]:
    """Return the objects of a kustomization with components."""
    return copy.deepcopy(_combined(base, components))


@functools.cache
def _rendered(directory: Path) -> list[Json]:
    return list(yaml.load_all(kubectl.run("kustomize", str(directory)), Loader=yaml.CSafeLoader))


@functools.cache
def _combined(base: Path, components: tuple[Path, ...]) -> list[Json]:
    """Render an operator's own kustomization, as docs/operations.md describes it."""
    with tempfile.TemporaryDirectory() as name:
        wanted = {
            "resources": [os.path.relpath(base, name)],
            "components": [os.path.relpath(component, name) for component in components],
        }
        (Path(name) / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
        return _rendered(Path(name))


def identity(obj: Json) -> tuple[str, str, str]:
    """Return kind, namespace and name."""
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def one(kind: str, variant: Sequence[str] = ()) -> Json:
    """Return the only object of a kind."""
    (found,) = [obj for obj in render(variant) if obj["kind"] == kind]
    return found


def pod(variant: Sequence[str] = ()) -> Json:
    """Return the spec of the agent's pods."""
    spec: Json = one("DaemonSet", variant)["spec"]["template"]["spec"]
    return spec


def agent(variant: Sequence[str] = ()) -> Json:
    """Return the agent's container."""
    (container,) = pod(variant)["containers"]
    found: Json = container
    return found
