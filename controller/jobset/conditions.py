"""The conditions of a JobSet, and how to set one. Pure.

Types, reasons and messages are exactly upstream's, because kubectl, Kueue and Trainer read them
(``api/jobset/v1alpha2/jobset_types.go``, ``pkg/constants/constants.go``, updateCondition of
``pkg/controllers/jobset_controller.go``). Those with the prefix ``kubemend.io/`` have no counterpart upstream.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kubemend.controller.jobset.spec.model import Condition, Status

COMPLETED: Final = "Completed"
FAILED: Final = "Failed"
SUSPENDED: Final = "Suspended"
RESTARTING: Final = "RestartingJobSet"
STARTUP_IN_PROGRESS: Final = "StartupPolicyInProgress"
STARTUP_COMPLETED: Final = "StartupPolicyCompleted"
IN_PLACE: Final = "kubemend.io/InPlaceRestart"
VALID: Final = "kubemend.io/Valid"
CLAIMS: Final = "kubemend.io/VolumeClaimsMatch"

FIRST_FAILED_JOB: Final = "(first failed job: {})"

OURS: Final = frozenset(
    {COMPLETED, FAILED, SUSPENDED, RESTARTING, STARTUP_IN_PROGRESS, STARTUP_COMPLETED, IN_PLACE, VALID, CLAIMS}
)
"""The types that this controller sets. All others belong to other controllers and stay unchanged."""

_ONE_OF: Final = (STARTUP_IN_PROGRESS, STARTUP_COMPLETED)
"""While one of them is True the other one is not."""
_ADDED_WHEN_FALSE: Final = frozenset({IN_PLACE, VALID, CLAIMS})
"""These are added even if they were never True. All others are not added while they are False."""


def put(conditions: Sequence[Condition], new: Condition) -> tuple[Condition, ...]:
    """Return the conditions with this one set.

    Its time changes only with its status. Of the two about the startup the other one becomes False, and keeps its
    reason, message and time: upstream does so, and readers of these use the status.
    """
    found = tuple(_excluded_by(each, new) if each.type != new.type else _updated(each, new) for each in conditions)
    if any(each.type == new.type for each in conditions) or not (new.status or new.type in _ADDED_WHEN_FALSE):
        return found
    return (*found, new)


def is_true(status: Status, kind: str) -> bool:
    """Return whether the condition of this type exists and is True."""
    condition = status.condition(kind)
    return condition is not None and condition.status


def is_finished(status: Status) -> bool:
    """Return whether the JobSet has completed or failed, after which nothing is started."""
    return finished(status) is not None


def finished(status: Status) -> Condition | None:
    """Return the condition with the JobSet's end; None while it has not ended."""
    ends = (each for each in status.conditions if each.type in (COMPLETED, FAILED) and each.status)
    return next(ends, None)


def _updated(before: Condition, new: Condition) -> Condition:
    return replace(new, since=before.since) if before.status == new.status else new


def _excluded_by(other: Condition, new: Condition) -> Condition:
    excluded = new.status and other.status and new.type in _ONE_OF and other.type in _ONE_OF
    return replace(other, status=False) if excluded else other
