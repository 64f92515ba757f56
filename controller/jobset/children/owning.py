"""Owner references of a JobSet's children. Pure."""

from typing import Any

from kubemend.controller.jobset.spec import model
from kubemend.controller.jobset.spec.model import JobSet


def owner(jobset: JobSet) -> dict[str, Any]:
    """Return an owner reference to the JobSet: objects with it are deleted with the JobSet."""
    return {"apiVersion": model.API_VERSION, "kind": model.KIND, "name": jobset.name, "uid": jobset.uid}


def controller(jobset: JobSet) -> dict[str, Any]:
    """Return the owner reference of objects that the JobSet controls (SetControllerReference).

    For ``blockOwnerDeletion`` admission may require the right to update ``jobsets/finalizers``.
    """
    return {**owner(jobset), "controller": True, "blockOwnerDeletion": True}
