"""The conditions of a JobSet, and how one is set. Pure.

Types, reasons and messages are upstream's to the letter, for kubectl, Kueue and Trainer read them
(``api/jobset/v1alpha2/jobset_types.go``, ``pkg/constants/constants.go``, updateCondition of
``pkg/controllers/jobset_controller.go``). What has our prefix is ours: upstream has no word for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from controller.jobset.model import Condition, Status

COMPLETED: Final = "Completed"
FAILED: Final = "Failed"
SUSPENDED: Final = "Suspended"
RESTARTING: Final = "RestartingJobSet"
STARTUP_IN_PROGRESS: Final = "StartupPolicyInProgress"
STARTUP_COMPLETED: Final = "StartupPolicyCompleted"
IN_PLACE: Final = "kubemend.io/InPlaceRestart"
VALID: Final = "kubemend.io/Valid"
CLAIMS: Final = "kubemend.io/ClaimsAsAsked"

FIRST_FAILED_JOB: Final = "(first failed job: {})"

OURS: Final = frozenset(
    {COMPLETED, FAILED, SUSPENDED, RESTARTING, STARTUP_IN_PROGRESS, STARTUP_COMPLETED, IN_PLACE, VALID, CLAIMS}
)
"""The types that this controller sets. All others are somebody else's, and stay as they are."""

_ONE_OF: Final = (STARTUP_IN_PROGRESS, STARTUP_COMPLETED)
"""While one of them is True the other one is not."""
_ALWAYS_SAID: Final = frozenset({IN_PLACE, VALID, CLAIMS})
"""A False one says something though it never was True. All others are not added while they are False."""


def put(conditions: Sequence[Condition], said: Condition) -> tuple[Condition, ...]:
    """Return the conditions with this one as it is said now.

    Its time changes with its status alone. Of the two about the startup the other one becomes False, and keeps its
    reason, message and time: upstream does so, and readers of these go by the status.
    """
    found = tuple(_against(each, said) if each.type != said.type else _said_again(each, said) for each in conditions)
    if any(each.type == said.type for each in conditions) or not (said.status or said.type in _ALWAYS_SAID):
        return found
    return (*found, said)


def is_true(status: Status, kind: str) -> bool:
    """Return whether the condition of this type is there and True."""
    condition = status.condition(kind)
    return condition is not None and condition.status


def is_finished(status: Status) -> bool:
    """Return whether the JobSet has completed or failed; nothing starts any more."""
    return finished(status) is not None


def finished(status: Status) -> Condition | None:
    """Return the condition that says how the JobSet ended; None while it has not."""
    ends = (each for each in status.conditions if each.type in (COMPLETED, FAILED) and each.status)
    return next(ends, None)


def _said_again(before: Condition, said: Condition) -> Condition:
    return replace(said, since=before.since) if before.status == said.status else said


def _against(other: Condition, said: Condition) -> Condition:
    excluded = said.status and other.status and said.type in _ONE_OF and other.type in _ONE_OF
    return replace(other, status=False) if excluded else other
