"""Decide whether a Job counts a pod that kubemend replaces as failed. Pure.

The Job controller counts each pod that has ended and still has its finalizer. Before it creates the next pod it waits
10 s after the Job's first failed pod, and twice as long after each further one, up to ten minutes
(``pkg/controller/job/backoff_utils.go``): for as long as the Job exists, and also after pods that its
``podFailurePolicy`` ignores. Without the finalizer a pod counts neither for that nor for ``backoffLimit``
(``getValidPodsWithFilter`` in ``job_controller.go``), and its replacement is created at once.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from kubemend.common import conditions

FINALIZER: Final = "batch.kubernetes.io/job-tracking"
"""The Job controller's, on each pod whose end it has not counted yet."""

INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
"""The annotation of pods whose Job counts the failures of each index (KEP-3850)."""

_JOB_CONTROLLER: Final = (None, "kubernetes.io/job-controller")
"""``spec.managedBy`` of Jobs that the Job controller reconciles (KEP-4368)."""
_ENDED: Final = ("Succeeded", "Failed")
_JOB_ENDS: Final = ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")
_MOST_DIGITS: Final = 10


def counting_job(pod: Mapping[str, Any]) -> str | None:
    """Return the name of the Job that will count a pod's end; None if none will, or if the pod has ended by itself."""
    if FINALIZER not in (pod["metadata"].get("finalizers") or ()) or pod["status"].get("phase") in _ENDED:
        return None
    return job_of(pod["metadata"])


def job_of_failed_index(pod: Mapping[str, Any]) -> str | None:
    """Return the name of the Job that may have given up a failed pod's index (``backoffLimitPerIndex``); else None."""
    is_counted_alone = INDEX_FAILURES in (pod["metadata"].get("annotations") or {})
    return job_of(pod["metadata"]) if is_counted_alone and pod["status"].get("phase") == "Failed" else None


def job_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the name of the Job that controls a pod; None if another object does, or none."""
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            is_job = owner["kind"] == "Job" and owner["apiVersion"].startswith("batch/")
            return str(owner["name"]) if is_job else None
    return None


def may_leave_out(job: Mapping[str, Any], *, marks: Collection[str]) -> bool:
    """Return whether a Job need not count a pod that is replaced with these conditions (types) as failed.

    A rule of its ``podFailurePolicy`` for one of them decides: the first that matches, as for the Job controller. Rules
    for exit codes are about programs that end by themselves.
    """
    spec = job.get("spec") or {}
    if spec.get("managedBy") not in _JOB_CONTROLLER:
        return False
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        if any(_matches(pattern, marks) for pattern in rule.get("onPodConditions") or ()):
            return bool(rule["action"] == "Ignore")
    return True


def replaces(job: Mapping[str, Any] | None, *, uid: str, index: str, others: int) -> bool:
    """Return whether a Job creates a new pod for one of its pods that is gone; None: the Job is gone, too.

    ``uid`` is the Job's as the pod named it, ``index`` the pod's (its label; "" without one). ``others`` are its pods
    that are neither over nor being deleted: it runs at most ``parallelism`` of them.
    """
    if job is None:
        return False
    meta, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    if meta.get("uid") != uid:
        return True  # another Job of that name, whose pods take the same places
    ends = (each for each in status.get("conditions") or () if each.get("type") in _JOB_ENDS)
    if meta.get("deletionTimestamp") or spec.get("suspend") or any(each.get("status") == "True" for each in ends):
        return False
    completions = spec.get("completions")
    beyond = completions is not None and index.isdecimal() and int(index[:_MOST_DIGITS]) >= completions
    return not beyond and others < spec.get("parallelism", math.inf)


def is_left_out(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod may still run, and its Job would not count its end: it was to be replaced.

    Its Job would run the index of such a pod again after it has succeeded. The mark may be False by now: Kubernetes
    takes it back after two minutes (``stalePodDisruptionTimeout`` in ``pkg/controller/disruption``).
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    return (
        job_of(metadata) is not None
        and FINALIZER not in (metadata.get("finalizers") or ())
        and not metadata.get("deletionTimestamp")
        and status.get("phase") not in _ENDED
        and any(each.get("type") == conditions.DISRUPTION_TARGET for each in status.get("conditions") or ())
    )


def _matches(pattern: Mapping[str, Any], marks: Collection[str]) -> bool:
    return pattern.get("type") in marks and pattern.get("status", "True") == "True"
