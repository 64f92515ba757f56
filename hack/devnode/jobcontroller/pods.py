"""A Job's pods: what the Job controller reads off them, and how it makes them. Pure.

Source: pkg/controller/job and pkg/controller/controller_utils.go of Kubernetes 1.36.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]

FINALIZER: Final = "batch.kubernetes.io/job-tracking"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"

_OVER: Final = frozenset({"Succeeded", "Failed"})


def phase(pod: Mapping[str, Any]) -> str:
    """Return a pod's phase."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_over(pod: Mapping[str, Any]) -> bool:
    """Whether it has come to its end."""
    return phase(pod) in _OVER


def is_deleting(pod: Mapping[str, Any]) -> bool:
    """Whether its deletion has been asked for."""
    return "deletionTimestamp" in pod["metadata"]


def is_active(pod: Mapping[str, Any]) -> bool:
    """Whether it counts as running (``IsPodActive``)."""
    return not is_over(pod) and not is_deleting(pod)


def is_terminating(pod: Mapping[str, Any]) -> bool:
    """Whether it is being deleted, and still runs as far as anybody knows (``IsPodTerminating``)."""
    return not is_over(pod) and is_deleting(pod)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether it is Ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def is_tracked(pod: Mapping[str, Any]) -> bool:
    """Whether it has not been counted yet: it has the finalizer."""
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def index(pod: Mapping[str, Any]) -> int:
    """Return its completion index; -1 without one."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdecimal() else -1


def failures(pod: Mapping[str, Any]) -> int:
    """Return how often its index had failed before it."""
    text = (pod["metadata"].get("annotations") or {}).get(FAILURES, "")
    return int(text) if text.isdecimal() else 0


def restarts(pod: Mapping[str, Any]) -> int:
    """Return the sum of its containers' restarts, init containers' too."""
    status = pod.get("status") or {}
    kinds = ("initContainerStatuses", "containerStatuses")
    return sum(each.get("restartCount", 0) for kind in kinds for each in status.get(kind) or ())


def finished_at(pod: Mapping[str, Any]) -> float:
    """Return when it ended, in Unix seconds (``getFinishedTime``)."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    states = [(each.get("state") or {}).get("terminated") for each in status.get("containerStatuses") or ()]
    ends = [state["finishedAt"] for state in states if state and state.get("finishedAt")]
    if ends and len(ends) == len(states):
        return max(map(_unix, ends))
    for each in status.get("conditions") or ():
        if each["type"] == "Ready" and each["status"] == "False" and each.get("lastTransitionTime"):
            return _unix(each["lastTransitionTime"])
    if is_deleting(pod):
        return _unix(metadata["deletionTimestamp"]) - float(metadata.get("deletionGracePeriodSeconds", 0))
    return _unix(metadata["creationTimestamp"])


def body(job: Mapping[str, Any], at: int, *, failed_before: int | None) -> Json:
    """Return the pod for an index; ``failed_before`` counts failures of it, None where the Job does not."""
    metadata, template = job["metadata"], job["spec"]["template"]
    of_template = template.get("metadata") or {}
    counted = {} if failed_before is None else {FAILURES: str(failed_before)}
    spec: Json = {**template["spec"], "hostname": f"{metadata['name']}-{at}"}
    for kind in ("initContainers", "containers"):
        if kind in spec:
            spec[kind] = [{**each, "env": _environment(each.get("env") or ())} for each in spec[kind]]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{metadata['name']}-{at}-",
            "namespace": metadata["namespace"],
            "labels": {**(of_template.get("labels") or {}), INDEX: str(at)},
            "annotations": {**(of_template.get("annotations") or {}), INDEX: str(at), **counted},
            "finalizers": [*(of_template.get("finalizers") or ()), FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def _environment(given: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if any(each["name"] == "JOB_COMPLETION_INDEX" for each in given):
        return [*given]
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    return [*given, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]


def _unix(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()
