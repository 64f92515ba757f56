"""The request for a round after a change that a restart in place brings about. Pure."""

from typing import Final

from controller.jobset import model
from controller.jobset.building import owning
from controller.jobset.model import JobSet
from controller.jobset.plan import RequestRestart
from controller.model import restart_resource

STRATEGY: Final = "reset"

_UID_CHARACTERS: Final = 8


def reset(jobset: JobSet) -> RequestRestart:
    """Return the request to restart the JobSet's gang so that ConfigMaps, Secrets and volumes are read anew.

    Its name makes it happen once for one state of the spec, however often it is asked for.
    """
    name = f"{jobset.name}-{jobset.uid[:_UID_CHARACTERS]}-reset-{jobset.generation}"
    body = {
        "apiVersion": restart_resource.API_VERSION,
        "kind": restart_resource.KIND,
        "metadata": {"name": name, "namespace": jobset.namespace, "ownerReferences": [owning.owner(jobset)]},
        "spec": {
            "gang": {"kind": model.KIND, "name": jobset.name},
            "strategy": STRATEGY,
            "reason": f"annotations of its pods' template changed, in generation {jobset.generation} of the JobSet",
        },
    }
    return RequestRestart(name, body)
