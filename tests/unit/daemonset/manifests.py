"""The manifests as ``kubectl kustomize`` renders them, without needing it: only the features that they use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hack.devnode.api import patching

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
"""What is installed: the base alone, with each component, and with all of them."""

INSTALLATIONS: Final = (DAEMONSET, DEFAULT, *OVERLAYS.values())
"""What is all that a cluster needs."""

CLUSTER_WIDE: Final = {
    "Namespace",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
"""Kinds of ours that are in no namespace."""

_UNDERSTOOD: Final = {"apiVersion", "kind", "namespace", "resources", "components", "images", "patches"}


def kustomization(directory: Path) -> Json:
    """Return a directory's kustomization; fails on what ``render`` would not do."""
    found: Json = yaml.safe_load((directory / "kustomization.yaml").read_text())
    assert found.keys() <= _UNDERSTOOD, f"{directory}: {found.keys() - _UNDERSTOOD} is not understood"
    return found


def listed(directory: Path) -> list[str]:
    """Return the files that a kustomization names."""
    told = kustomization(directory)
    return [*told.get("resources", ()), *(patch["path"] for patch in told.get("patches", ()))]


def build(directory: Path, *, into: Sequence[Json] = ()) -> list[Json]:
    """Return the objects of a kustomization; of a component, those that it makes of the ones that are there."""
    told = kustomization(directory)
    objects = list(into)
    for name in told.get("resources", ()):
        path = (directory / name).resolve()
        objects += build(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for name in told.get("components", ()):
        objects = build((directory / name).resolve(), into=objects)
    for patch in told.get("patches", ()):
        objects = _patched(objects, yaml.safe_load((directory / patch["path"]).read_text()))
    return objects


def render(variant: Sequence[str] = ()) -> list[Json]:
    """Return the objects of the base with these components."""
    objects = build(BASE)
    for name in variant:
        objects = build(COMPONENTS[name], into=objects)
    return objects


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


def _patched(objects: list[Json], patch: Json) -> list[Json]:
    assert identity(patch) in map(identity, objects), f"a patch of {identity(patch)}, which is not there"
    if patch.get("$patch") == "delete":
        return [obj for obj in objects if identity(obj) != identity(patch)]
    return [patching.strategic(obj, patch) if identity(obj) == identity(patch) else obj for obj in objects]
