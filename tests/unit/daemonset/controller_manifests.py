"""The controller's manifests as ``kubectl kustomize`` renders them, without needing it."""

from pathlib import Path
from typing import Final

import yaml

from tests.unit.daemonset import manifests
from tests.unit.daemonset.manifests import Json

CONTROLLER: Final = manifests.REPOSITORY / "daemonset" / "controller"
CRDS: Final = manifests.REPOSITORY / "daemonset" / "crds"


def render(directory: Path = CONTROLLER) -> list[Json]:
    """Return the objects of a kustomization, and of the directories that it names."""
    found: list[Json] = []
    for name in manifests.listed(directory):
        path = (directory / name).resolve()
        found += render(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    return found


def one(kind: str) -> Json:
    """Return the only object of a kind."""
    (found,) = [obj for obj in render() if obj["kind"] == kind]
    return found


def container() -> Json:
    """Return the controller's container."""
    (found,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    wanted: Json = found
    return wanted
