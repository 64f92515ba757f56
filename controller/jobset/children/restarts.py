"""Build the request for a round after a change that a restart in place applies. Pure."""

from typing import Final

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.plan import RequestRestart
from kubemend.controller.jobset.spec import model
from kubemend.controller.jobset.spec.model import JobSet
from kubemend.controller.model import restart_resource

STRATEGY: Final = "reset"

_UID_CHARACTERS: Final = 8


def reset(jobset: JobSet) -> RequestRestart:
    """Return the request to restart the JobSet's gang so that ConfigMaps, Secrets and volumes are read again.

    Its name depends on the spec's generation: repeated requests create it once.
    """
    name = f"{jobset.name}-{jobset.uid[:_UID_CHARACTERS]}-reset-{jobset.generation}"
    body = {
        "apiVersion": restart_resource.API_VERSION,
        "kind": restart_resource.KIND,
        "metadata": {"name": name, "namespace": jobset.namespace, "ownerReferences": [naming.owner_reference(jobset)]},
        "spec": {
            "gang": {"kind": model.KIND, "name": jobset.name},
            "strategy": STRATEGY,
            "reason": f"annotations of its pods' template changed, in generation {jobset.generation} of the JobSet",
        },
    }
    return RequestRestart(name, body)
