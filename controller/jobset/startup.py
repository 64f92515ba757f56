"""In which order replicated Jobs come to life: startupPolicy and dependsOn. Pure.

Source: upstream's startup_policy.go, depends_on.go, and reconcileReplicatedJobs and resumeJobsIfNecessary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.jobset import conditions, counting
from controller.jobset.draft import Draft
from controller.jobset.model import (
    Dependency,
    DependencyStatus,
    JobSet,
    ReplicatedJob,
    ReplicatedJobStatus,
    StartupOrder,
)

_IN_PROGRESS: Final = "InOrderStartupPolicyInProgress"
_IN_PROGRESS_MESSAGE: Final = "in order startup policy is in progress"
_COMPLETED: Final = "InOrderStartupPolicyCompleted"
_COMPLETED_MESSAGE: Final = "in order startup policy has completed"


@dataclass(frozen=True, slots=True)
class Turn:
    """Which replicated Jobs may have their Jobs now. ``waits``: later ones have to wait for the last of these."""

    now: tuple[ReplicatedJob, ...]
    waits: bool = False


def turn(jobset: JobSet, counts: Sequence[ReplicatedJobStatus], *, in_order: bool) -> Turn:
    """Return whose turn it is, in the order of the spec. What waits for another one is left out.

    ``in_order``: one after another, each once the one before it is ready or over; those that are need nothing.
    """
    ready = tuple(each for each in jobset.spec.replicated_jobs if _may_start(each, jobset, counts))
    if not in_order:
        return Turn(ready)
    pending = (each for each in ready if not counting.is_started(each, counts))
    following = next(pending, None)
    return Turn((following,), waits=True) if following is not None else Turn(())


def is_in_order(jobset: JobSet) -> bool:
    """Return whether ``startupPolicy`` is InOrder."""
    return jobset.spec.startup is StartupOrder.IN_ORDER


def in_progress(draft: Draft) -> None:
    """Say that replicated Jobs wait for others."""
    draft.say(conditions.STARTUP_IN_PROGRESS, is_so=True, reason=_IN_PROGRESS, message=_IN_PROGRESS_MESSAGE)


def completed(draft: Draft) -> None:
    """Say that all have started."""
    draft.say(conditions.STARTUP_COMPLETED, is_so=True, reason=_COMPLETED, message=_COMPLETED_MESSAGE)


def _may_start(replicated_job: ReplicatedJob, jobset: JobSet, counts: Sequence[ReplicatedJobStatus]) -> bool:
    return all(_holds(each, jobset, counts) for each in replicated_job.depends_on)


def _holds(dependency: Dependency, jobset: JobSet, counts: Sequence[ReplicatedJobStatus]) -> bool:
    holds = counting.is_complete if dependency.status is DependencyStatus.COMPLETE else counting.is_started
    return any(each.name == dependency.on and holds(each, counts) for each in jobset.spec.replicated_jobs)
