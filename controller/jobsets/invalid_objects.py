"""Reduce JobSets and their Jobs to the fields that are kept, and reject invalid ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from kubemend.controller.jobset.spec import model, reading
from kubemend.controller.jobset.spec.model import ChildJob, JobSet

log = structlog.get_logger(__name__)

GROUP: Final = "jobset.x-k8s.io"

_DISABLED: Final = "jobset.sigs.k8s.io/disable-in-place-restart"
"""The annotation with which upstream's sidecars do nothing (``shouldBypassBarrier`` in cmd/in-place-restart-agent)."""

MOST_OF_A_JOBSET: Final = 32 * 2**20
"""Bytes in memory. The API server accepts 1.5 MB for one JobSet, which needs up to ten times as much here."""
MOST_OF_A_NAMESPACE: Final = 64 * 2**20
MOST_OF_JOBSETS: Final = 96 * 2**20
"""Bytes of the JobSets of all namespaces."""
MOST_OF_A_JOB: Final = 2**20
"""Of a suspended Job the parts of its template that a resume merges are kept: usually 6 KiB."""
MOST_OF_JOBS: Final = 96 * 2**20
"""Bytes of all Jobs, of one namespace or of all, counted as if they shared no texts."""


@dataclass(frozen=True, slots=True)
class InvalidObject:
    """A managed JobSet that cannot be read. ``reason`` has the field, the problem and the hint."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    reason: str


@dataclass(frozen=True, slots=True)
class Others:
    """A JobSet of another controller. It may have been managed by kubemend before, so its version matters.

    ``in_place``: that controller restarts its pods in place, with a sidecar in each.
    """

    namespace: str
    name: str
    resource_version: str
    in_place: bool


@dataclass(frozen=True, slots=True)
class Owned:
    """A Job, and its JobSet's UID and name. A JobSet owns only Jobs in its own namespace: others could be forged."""

    namespace: str
    owner: str
    jobset: str
    job: ChildJob

    @property
    def place(self) -> tuple[str, str, str]:
        """Return the key that no two Jobs share at a time: owner, namespace and name."""
        return self.owner, self.namespace, self.job.name


Seen = JobSet | InvalidObject | Others


def jobset(obj: Mapping[str, Any]) -> Seen:
    """Return a JobSet with the fields that are kept."""
    if (obj.get("spec") or {}).get("managedBy") != model.MANAGED_BY:
        return _others(obj)
    try:
        return reading.jobset(obj)
    except reading.InvalidFieldError as error:
        meta = obj["metadata"]
        log.warning("jobset.invalid", jobset=f"{meta['namespace']}/{meta['name']}", error=str(error))
        return InvalidObject(meta["namespace"], meta["name"], meta["uid"], _version(meta), str(error))


def bare(found: Seen) -> Seen:
    """Return the reduced form of a JobSet that is too large: its identity, and the problem."""
    if not isinstance(found, JobSet):
        return found
    reason = (
        f"the JobSets of its namespace take more than {MOST_OF_A_NAMESPACE >> 20} MiB, or most of "
        f"{MOST_OF_JOBSETS >> 20} MiB for all, or this one more than {MOST_OF_A_JOBSET >> 20} MiB. "
        "It is not run. Make templates smaller, or delete finished JobSets"
    )
    return InvalidObject(found.namespace, found.name, found.uid, found.resource_version, reason)


def bare_job(found: Owned) -> Owned:
    """Return the reduced form of a Job that is too large. While suspended, it is not resumed (``children.resume``)."""
    return replace(found, job=replace(found.job, template=None, made_of="", failed_indexes=""))


def version(seen: Seen) -> str:
    """Return its resource version."""
    return seen.resource_version


def owner(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Return UID and name of the JobSet that controls an object; ("", "") if none does."""
    for each in obj["metadata"].get("ownerReferences") or ():
        if each.get("controller"):
            group = str(each["apiVersion"]).partition("/")[0]
            is_jobset = (group, each["kind"]) == (GROUP, model.KIND)
            return (str(each["uid"]), str(each["name"])) if is_jobset else ("", "")
    return "", ""


def is_same_job(one: ChildJob, other: ChildJob) -> bool:
    """Return whether two states of a Job are the same for its JobSet."""
    return replace(one, resource_version="") == replace(other, resource_version="")


def _others(obj: Mapping[str, Any]) -> Others:
    meta, spec = obj["metadata"], obj.get("spec") or {}
    strategy = (spec.get("failurePolicy") or {}).get("restartStrategy")
    in_place = strategy == model.RestartStrategy.IN_PLACE.value and _DISABLED not in (meta.get("annotations") or {})
    return Others(meta["namespace"], meta["name"], _version(meta), in_place)


def _version(meta: Mapping[str, Any]) -> str:
    return str(meta.get("resourceVersion", ""))
