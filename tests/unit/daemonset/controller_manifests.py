"""The controller's manifests as ``kubectl kustomize`` renders them, without needing it."""

from typing import Final

from tests.unit.daemonset import manifests
from tests.unit.daemonset.manifests import Json

CONTROLLER: Final = manifests.DAEMONSET / "controller"
CRDS: Final = manifests.DAEMONSET / "crds"


def render() -> list[Json]:
    """Return the objects of the controller, and of the directories that it names."""
    return manifests.build(CONTROLLER)


def one(kind: str, *, name: str = "") -> Json:
    """Return the only object of a kind, or the one of that name."""
    (found,) = [obj for obj in render() if obj["kind"] == kind and name in ("", obj["metadata"]["name"])]
    return found


def container() -> Json:
    """Return the controller's container."""
    (found,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    wanted: Json = found
    return wanted
