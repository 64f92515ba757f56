"""Select the containers of a pod that restarts apply to: one rule for agent and controller. Pure.

A log shipper next to a training program may crash, and a debugger may fault on its GPU, without a restart of the gang:
containers that the pod does not name, and those without devices where others have some, are left to kubelet.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

CONTAINERS: Final = "kubemend.io/containers"
"""The annotation with a pod's targets, separated by commas."""

_LONGEST: Final = 1000
"""Characters of the annotation that are read, as in ``agent.restart.options``, which refuses a longer one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Describe a container of a pod's spec. ``is_main``: it is neither an init container nor a sidecar."""

    name: str
    is_main: bool
    holds_devices: bool = False


def of(candidates: Iterable[Candidate], *, named: Collection[str]) -> frozenset[str]:
    """Return the containers to restart: the named ones, else the main ones that hold devices.

    If none of the main ones holds a device, all of them.
    """
    if named:
        return frozenset(named)
    mains = [each for each in candidates if each.is_main]
    return frozenset(each.name for each in mains if each.holds_devices) or frozenset(each.name for each in mains)


def named(text: str) -> frozenset[str]:
    """Return the containers that the annotation names."""
    return frozenset(name.strip() for name in text[:_LONGEST].split(",") if name.strip())


def holds_devices(container: Mapping[str, Any]) -> bool:
    """Return whether a container of a v1 Pod's spec asks for a device: an extended resource, or a claim (KEP-4381)."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return bool(resources.get("claims")) or any(
        _is_extended(name) and str(quantity) != "0" for name, quantity in asked.items()
    )


def _is_extended(resource: str) -> bool:
    """Apply ``IsExtendedResourceName`` of Kubernetes (pkg/apis/core/v1/helper/helpers.go)."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")
