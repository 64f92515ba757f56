"""What is kept of JobSets and of their Jobs, as the API server tells of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from controller.jobset import model, reading
from controller.jobset.model import ChildJob, JobSet

log = structlog.get_logger(__name__)

GROUP: Final = "jobset.x-k8s.io"


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A JobSet of ours that cannot be read. ``why`` says what, where and the mend."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    why: str


@dataclass(frozen=True, slots=True)
class Others:
    """A JobSet that somebody else runs."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A Job, and the UID of its JobSet."""

    owner: str
    job: ChildJob


OTHERS: Final = Others()
Seen = JobSet | NotUnderstood | Others


def jobset(obj: Mapping[str, Any]) -> Seen:
    """Return what to keep of a JobSet."""
    if (obj.get("spec") or {}).get("managedBy") != model.MANAGED_BY:
        return OTHERS
    try:
        return reading.jobset(obj)
    except reading.NotUnderstoodError as error:
        meta = obj["metadata"]
        log.warning("jobset.not_understood", jobset=f"{meta['namespace']}/{meta['name']}", error=str(error))
        return NotUnderstood(
            meta["namespace"], meta["name"], meta["uid"], str(meta.get("resourceVersion", "")), str(error)
        )


def version(seen: Seen) -> str:
    """Return its resource version; of others' it does not matter."""
    return "" if isinstance(seen, Others) else seen.resource_version


def owner(obj: Mapping[str, Any]) -> str:
    """Return the UID of the JobSet that controls an object; "" where none does."""
    for each in obj["metadata"].get("ownerReferences") or ():
        if each.get("controller"):
            group = str(each["apiVersion"]).partition("/")[0]
            return str(each["uid"]) if (group, each["kind"]) == (GROUP, model.KIND) else ""
    return ""


def alike(one: ChildJob, other: ChildJob) -> bool:
    """Whether two states of a Job are the same to its JobSet."""
    return replace(one, resource_version="") == replace(other, resource_version="")
