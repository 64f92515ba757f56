"""The order in which replicated Jobs start: startupPolicy and dependsOn. Pure.

Source: upstream's startup_policy.go, depends_on.go, and reconcileReplicatedJobs and resumeJobsIfNecessary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.children import buckets
from kubemend.controller.jobset.spec.model import (
    Dependency,
    DependencyStatus,
    JobSet,
    ReplicatedJob,
    ReplicatedJobStatus,
    StartupOrder,
)
from kubemend.controller.jobset.status_builder import StatusBuilder

_IN_PROGRESS: Final = "InOrderStartupPolicyInProgress"
_IN_PROGRESS_MESSAGE: Final = "in order startup policy is in progress"
_COMPLETED: Final = "InOrderStartupPolicyCompleted"
_COMPLETED_MESSAGE: Final = "in order startup policy has completed"


@dataclass(frozen=True, slots=True)
class Turn:
    """Replicated Jobs whose Jobs may exist now. ``waits``: later ones must wait for the last of these."""

    now: tuple[ReplicatedJob, ...]
    waits: bool = False


def turn(jobset: JobSet, counts: Sequence[ReplicatedJobStatus], *, in_order: bool) -> Turn:
    """Return the replicated Jobs that may start, in the order of the spec; those that wait for another are left out.

    ``in_order``: one after another, each once the one before it is ready or over. Those that have started are left out,
    too.
    """
    ready = tuple(each for each in jobset.spec.replicated_jobs if _may_start(each, jobset, counts))
    if not in_order:
        return Turn(ready)
    pending = (each for each in ready if not buckets.is_started(each, counts))
    following = next(pending, None)
    return Turn((following,), waits=True) if following is not None else Turn(())


def is_in_order(jobset: JobSet) -> bool:
    """Return whether ``startupPolicy`` is InOrder."""
    return jobset.spec.startup is StartupOrder.IN_ORDER


def in_progress(draft: StatusBuilder) -> None:
    """Set the condition that replicated Jobs wait for others."""
    draft.set_condition(conditions.STARTUP_IN_PROGRESS, is_so=True, reason=_IN_PROGRESS, message=_IN_PROGRESS_MESSAGE)


def completed(draft: StatusBuilder) -> None:
    """Set the condition that all have started."""
    draft.set_condition(conditions.STARTUP_COMPLETED, is_so=True, reason=_COMPLETED, message=_COMPLETED_MESSAGE)


def _may_start(replicated_job: ReplicatedJob, jobset: JobSet, counts: Sequence[ReplicatedJobStatus]) -> bool:
    return all(_holds(each, jobset, counts) for each in replicated_job.depends_on)


def _holds(dependency: Dependency, jobset: JobSet, counts: Sequence[ReplicatedJobStatus]) -> bool:
    holds = buckets.is_complete if dependency.status is DependencyStatus.COMPLETE else buckets.is_started
    return any(each.name == dependency.on and holds(each, counts) for each in jobset.spec.replicated_jobs)
