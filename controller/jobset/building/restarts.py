"""The request for a round after a change that a restart in place brings about. Pure."""

from typing import Final

from controller.jobset import model
from controller.jobset.building import owning
from controller.jobset.model import JobSet
from controller.jobset.plan import RequestRestart

API_VERSION: Final = "restarts.kubemend.io/v1alpha1"
"""The Restart resource's (``controller.restarts.names``, which stands above the decisions)."""
STRATEGY: Final = "reset"

_UID_CHARACTERS: Final = 8


def reset(jobset: JobSet) -> RequestRestart:
    """Return the request to restart the JobSet's gang so that ConfigMaps, Secrets and volumes are read anew.

    Its name makes it happen once for one state of the spec, however often it is asked for.
    """
    name = f"{jobset.name}-{jobset.uid[:_UID_CHARACTERS]}-reset-{jobset.generation}"
    body = {
        "apiVersion": API_VERSION,
        "kind": "Restart",
        "metadata": {"name": name, "namespace": jobset.namespace, "ownerReferences": [owning.owner(jobset)]},
        "spec": {
            "gang": {"kind": model.KIND, "name": jobset.name},
            "strategy": STRATEGY,
            "reason": f"annotations of its pods' template changed, in generation {jobset.generation} of the JobSet",
        },
    }
    return RequestRestart(name, body)
