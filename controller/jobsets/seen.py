"""What is kept of JobSets and of their Jobs, as the API server tells of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from controller.jobset import model, reading
from controller.jobset.model import ChildJob, JobSet

log = structlog.get_logger(__name__)

GROUP: Final = "jobset.x-k8s.io"


MOST_OF_A_JOBSET: Final = 32 * 2**20
"""Bytes in memory: of one JobSet the API server takes 1.5 MB, which are up to ten times as many here."""
MOST_OF_A_NAMESPACE: Final = 64 * 2**20


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
    """A JobSet that somebody else runs. It may have been ours before, so its version tells, too."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Owned:
    """A Job, and the UID of its JobSet: that of this very namespace, else anybody could lend it to anybody's."""

    namespace: str
    owner: str
    job: ChildJob

    @property
    def place(self) -> tuple[str, str, str]:
        """What no two Jobs have at a time: whose it is, its namespace and its name."""
        return self.owner, self.namespace, self.job.name


Seen = JobSet | NotUnderstood | Others


def jobset(obj: Mapping[str, Any]) -> Seen:
    """Return what to keep of a JobSet."""
    if (obj.get("spec") or {}).get("managedBy") != model.MANAGED_BY:
        return Others(_version(obj["metadata"]))
    try:
        return reading.jobset(obj)
    except reading.NotUnderstoodError as error:
        meta = obj["metadata"]
        log.warning("jobset.not_understood", jobset=f"{meta['namespace']}/{meta['name']}", error=str(error))
        return NotUnderstood(meta["namespace"], meta["name"], meta["uid"], _version(meta), str(error))


def bare(found: Seen) -> Seen:
    """Return what is kept of a JobSet where there is too much of them: who it is, and what is wrong."""
    if not isinstance(found, JobSet):
        return found
    why = (
        f"the JobSets of its namespace take more than {MOST_OF_A_NAMESPACE >> 20} MiB, or this one more than "
        f"{MOST_OF_A_JOBSET >> 20} MiB: nothing is done for it; make templates smaller, or delete what is over"
    )
    return NotUnderstood(found.namespace, found.name, found.uid, found.resource_version, why)


def version(seen: Seen) -> str:
    """Return its resource version."""
    return seen.resource_version


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


def _version(meta: Mapping[str, Any]) -> str:
    return str(meta.get("resourceVersion", ""))
