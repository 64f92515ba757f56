"""Marks of pods that wait for a domain, and the patch that releases them. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from kubemend.controller.jobset.placement.model import Domain, Pod
from kubemend.controller.jobset.spec.model import Json

GATE: Final = "kubemend.io/exclusive-placement"
"""The scheduling gate: while a pod has it, the scheduler ignores the pod (KEP-3521)."""
GATE_ENTRY: Final[Json] = {"name": GATE}
PLACEMENT: Final = "kubemend.io/placement"
"""Label of the pods that kubemend places, for its Informer."""
EXCLUSIVE: Final = "exclusive"
LABELS: Final[Mapping[str, str]] = {PLACEMENT: EXCLUSIVE}


def waits(pod: Pod) -> bool:
    """Return whether it waits for a domain from kubemend."""
    return GATE in pod.gates and bool(pod.topology) and not pod.over


def release_patch(pod: Pod, domain: Domain) -> dict[str, Any]:
    """Return the JSON merge patch that sets a pod's domain and removes kubemend's gate, and no other.

    A gated pod's node selector may be extended in the same write (ValidatePodUpdate, ``podIsGated``). The patch is
    valid for the observed version only: if a gate was removed since, the result is a conflict.
    """
    return {
        "metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version},
        "spec": {
            "nodeSelector": {domain.topology: domain.value},
            "schedulingGates": [{"name": each} for each in pod.gates if each != GATE],
        },
    }
