"""What marks pods that wait for a domain, and how they are let go. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from controller.jobset.model import Json
from controller.jobset.placement.model import Domain, Pod

GATE: Final = "kubemend.io/exclusive-placement"
"""The scheduling gate: while a pod has it, the scheduler leaves it alone (KEP-3521)."""
GATE_ENTRY: Final[Json] = {"name": GATE}
PLACEMENT: Final = "kubemend.io/placement"
"""Label of pods that are placed by us, to watch them by."""
EXCLUSIVE: Final = "exclusive"
LABELS: Final[Mapping[str, str]] = {PLACEMENT: EXCLUSIVE}


def waits(pod: Pod) -> bool:
    """Return whether it waits for us to say where it may go."""
    return GATE in pod.gates and bool(pod.topology) and not pod.over


def letting_go(pod: Pod, domain: Domain) -> dict[str, Any]:
    """Return the JSON merge patch that sends a pod to its domain and lifts our gate, and no other.

    A gated pod's node selector may be added to in the same write (ValidatePodUpdate, ``podIsGated``). The patch is for
    this very pod as it was seen: where somebody else has lifted a gate meanwhile it is a conflict.
    """
    return {
        "metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version},
        "spec": {
            "nodeSelector": {domain.topology: domain.value},
            "schedulingGates": [{"name": each} for each in pod.gates if each != GATE],
        },
    }
