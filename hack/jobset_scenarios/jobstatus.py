"""The statuses that the Job controller would write, such as a real API server takes. Pure.

Source of what follows from what: ``validateJobStatus`` in pkg/apis/batch/validation of Kubernetes 1.36.
"""

from collections.abc import Mapping
from typing import Any, Final

from common.kube import timestamps
from hack.jobset_scenarios.model import JobState, SetJobs

Json = Mapping[str, Any]

_STARTED_BEFORE: Final = 3600
"""Seconds that a Job has run when it ends, where nothing else is known of its start."""


def after(action: SetJobs, job: Json, *, began: float, now: float) -> dict[str, Any]:
    """Return the parts of a Job's status that change. ``began`` is the scenario's beginning; Unix seconds."""
    status = job.get("status") or {}
    at = now if action.at is None else began + action.at
    pods = int(job["spec"].get("parallelism", 1))
    started = {} if status.get("startTime") else {"startTime": timestamps.rfc3339(at - _STARTED_BEFORE)}
    if action.state is JobState.STOPPED:
        return {"active": 0, "ready": 0, "conditions": _with(status, [_condition("Suspended", at)])}
    if action.state is JobState.COUNTS:
        new = [_condition(kind, at) for kind in action.conditions]
        return {**started, **action.counts, "conditions": _with(status, new)}
    if action.state in (JobState.ACTIVE, JobState.READY):
        running = {"active": pods, "ready": pods if action.state is JobState.READY else 0}
        return {**started, **running, "conditions": _resumed(status, at)}
    over = {**started, "active": 0, "ready": 0}
    if action.state is JobState.FAIL:
        why = {"reason": action.reason or "BackoffLimitExceeded", "message": action.message or "it failed"}
        ends = [_condition("FailureTarget", at, **why), _condition("Failed", at, **why)]
        return {**over, "failed": status.get("failed", 0) + 1, "conditions": _with(status, ends)}
    ends = [_condition("SuccessCriteriaMet", at), _condition("Complete", at)]
    return {**over, **_successes(job), "completionTime": timestamps.rfc3339(at), "conditions": _with(status, ends)}


def is_over(job: Json) -> bool:
    """Whether a Job has ended: the Job controller says nothing more about it."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _successes(job: Json) -> dict[str, Any]:
    count = int(job["spec"].get("completions") or job["spec"].get("parallelism", 1))
    if job["spec"].get("completionMode") != "Indexed":
        return {"succeeded": count}
    return {"succeeded": count, "completedIndexes": "0" if count == 1 else f"0-{count - 1}"}


def _condition(kind: str, at: float, **why: str) -> dict[str, str]:
    moment = timestamps.rfc3339(at)
    return {"type": kind, "status": "True", "lastProbeTime": moment, "lastTransitionTime": moment, **why}


def _with(status: Json, new: list[dict[str, str]]) -> list[Json]:
    kinds = {each["type"] for each in new}
    return [*(each for each in status.get("conditions") or () if each["type"] not in kinds), *new]


def _resumed(status: Json, at: float) -> list[Json]:
    """Return the conditions of a Job that runs; one that was suspended is not any more."""
    conditions = [*(status.get("conditions") or ())]
    if any(each["type"] == "Suspended" for each in conditions):
        return _with(status, [{**_condition("Suspended", at), "status": "False"}])
    return conditions
