"""Write a JobSet's status as an object of the API, the inverse of ``reading``. Pure.

Zero values are omitted if upstream's types have ``omitempty``; ``restarts`` does not.
"""

from typing import Any

from kubemend.common.kube import timestamps
from kubemend.controller.jobset.spec.model import Condition, ReplicatedJobStatus, Status


def status_json(status: Status) -> dict[str, Any]:
    """Return ``status`` for a PUT. Replicated Jobs come in the order of their names, conditions in theirs."""
    body = {
        "conditions": [_condition(each) for each in status.conditions],
        "restartsCountTowardsMax": status.restarts_counted,
        "terminalState": status.terminal_state,
        "replicatedJobsStatus": [
            _replicated_job(each) for each in sorted(status.replicated_jobs, key=lambda each: each.name)
        ],
    }
    attempts = {
        "previousInPlaceRestartAttempt": status.previous_in_place,
        "currentInPlaceRestartAttempt": status.current_in_place,
    }
    filled = {key: value for key, value in body.items() if value}
    return {"restarts": status.restarts, **filled, **{key: n for key, n in attempts.items() if n is not None}}


def _condition(condition: Condition) -> dict[str, Any]:
    if condition.foreign is not None:
        return dict(condition.foreign)
    return {
        "type": condition.type,
        "status": "True" if condition.status else "False",
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": timestamps.rfc3339(condition.since),
    }


def _replicated_job(status: ReplicatedJobStatus) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": status.name,
        "ready": status.ready,
        "succeeded": status.succeeded,
        "failed": status.failed,
        "active": status.active,
        "suspended": status.suspended,
    }
    if status.job_restarts:
        body["jobRestarts"] = list(status.job_restarts)
    if status.job_restarts_counted:
        body["jobRestartsCountTowardsMax"] = list(status.job_restarts_counted)
    return body
