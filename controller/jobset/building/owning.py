"""Who owns a child. Pure."""

from typing import Any

from controller.jobset import model
from controller.jobset.model import JobSet


def owner(jobset: JobSet) -> dict[str, Any]:
    """Return an owner reference to the JobSet: what has it goes with the JobSet."""
    return {"apiVersion": model.API_VERSION, "kind": model.KIND, "name": jobset.name, "uid": jobset.uid}


def controller(jobset: JobSet) -> dict[str, Any]:
    """Return the owner reference of what the JobSet has made and looks after (SetControllerReference).

    For ``blockOwnerDeletion`` admission may ask for the right to update ``jobsets/finalizers``.
    """
    return {**owner(jobset), "controller": True, "blockOwnerDeletion": True}
