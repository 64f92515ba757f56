"""Read the kustomizations, and return their manifests with the conditions under which the chart has them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from hack.chart import conditional
from hack.devnode.packages import CHECKOUT

DAEMONSET: Final = CHECKOUT / "daemonset"

_ALWAYS: Final = ""
_OPTIONAL: Final = {"controller": "gangs", "admission": "admission", "jobset": "jobset"}
"""Directories that are components of the chart; ``controller`` comes with the component ``gangs``."""
_VALUES_DO: Final = ("containerd", "cri-o", "kind")
"""Overlays that are a component, or a few values, in the chart."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Hold an object: the template's name, the condition ("" for always), and the tree with conditions."""

    template: str
    condition: str
    tree: Mapping[str, Any]

    @property
    def identity(self) -> tuple[str, str]:
        """Return kind and name."""
        return self.tree["kind"], self.tree["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class Option:
    """Describe a boolean value of the chart, with the comment of its kustomization."""

    group: str
    name: str
    meaning: str
    default: bool = False

    @property
    def path(self) -> str:
        """Return the value as a pipeline."""
        return f".Values.{self.group}.{self.name}"


def options() -> list[Option]:
    """Return the chart's switches: every component, and the overlays that are more than components."""
    defaults = {Path(each).name for each in _kustomization(DAEMONSET / "default")["components"]}
    found = [
        Option("components", _camel(name), _meaning(DAEMONSET / directory), default=name in defaults)
        for name, directory in sorted(_components().items())
    ]
    return found + [Option("overlays", _camel(path.name), _meaning(path)) for path in _overlays()]


def manifests() -> list[Manifest]:
    """Return all objects of the chart. Raises conditional.ChartError."""
    found = [*_of(DAEMONSET / "base", _ALWAYS)]
    for name, directory in _OPTIONAL.items():
        found += _of(DAEMONSET / name, f".Values.components.{directory}")
    for name, directory in _components().items():
        if name not in _OPTIONAL:
            found += _of(DAEMONSET / directory, f".Values.components.{_camel(name)}")
    for patching, condition in _patching():
        for patch in _patches(patching):
            found = [_patched(each, patch, condition) for each in found]
    return found


def _components() -> dict[str, str]:
    found = {path.parent.name: f"components/{path.parent.name}" for path in DAEMONSET.glob("components/*/*.yaml")}
    return dict(sorted({**found, **{name: name for name in ("admission", "hub-from-nodes", "jobset")}}.items()))


def _overlays() -> list[Path]:
    return sorted(path for path in (DAEMONSET / "overlays").iterdir() if path.name not in _VALUES_DO)


def _patching() -> Iterator[tuple[Path, str]]:
    """Yield the directories with patches, and when these apply: components of overlays with the overlay, too."""
    by_overlays: dict[str, list[str]] = {}
    for overlay in _overlays():
        for each in _kustomization(overlay).get("components", ()):
            by_overlays.setdefault(Path(each).name, []).append(f".Values.overlays.{_camel(overlay.name)}")
    for name, directory in _components().items():
        conditions = [f".Values.components.{_camel(name)}", *by_overlays.get(name, ())]
        yield DAEMONSET / directory, conditional.either(*conditions)
    for overlay in _overlays():
        yield overlay, f".Values.overlays.{_camel(overlay.name)}"


def _of(directory: Path, condition: str) -> Iterator[Manifest]:
    """Yield the objects that a kustomization names itself."""
    for name in _kustomization(directory).get("resources", ()):
        path = (directory / name).resolve()
        if path.is_dir():
            yield from _of(path, condition)
        else:
            for tree in yaml.safe_load_all(path.read_text("utf-8")):
                yield Manifest(f"{directory.name}-{path.stem}.yaml", condition, tree)


def _patches(directory: Path) -> Iterator[Mapping[str, Any]]:
    for patch in _kustomization(directory).get("patches", ()):
        yield yaml.safe_load((directory / patch["path"]).read_text("utf-8"))


def _patched(manifest: Manifest, patch: Mapping[str, Any], condition: str) -> Manifest:
    if manifest.identity != (patch["kind"], patch["metadata"]["name"]):
        return manifest
    if patch.get("$patch") == "delete":
        kept = conditional.unless(condition)
        both = f"and {manifest.condition} ({kept})" if manifest.condition else kept
        return replace(manifest, condition=both)
    return replace(manifest, tree=conditional.merged(manifest.tree, patch, condition))


def _kustomization(directory: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load((directory / "kustomization.yaml").read_text("utf-8"))
    return found


def _meaning(directory: Path) -> str:
    """Return the comment at the head of a kustomization, without kubectl's command."""
    lines = (directory / "kustomization.yaml").read_text("utf-8").splitlines()
    head = lines[: next(at for at, line in enumerate(lines) if not line.startswith("#"))]
    comment = " ".join(line.removeprefix("#").strip() for line in head)
    return re.split(r"(?<=[.:]) |: kubectl", comment)[0].rstrip(":.")


def _camel(name: str) -> str:
    first, *more = name.split("-")
    return first + "".join(map(str.capitalize, more))
