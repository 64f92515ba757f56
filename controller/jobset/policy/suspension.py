"""Suspend and resume a JobSet's Jobs: Kueue admits and preempts by these. Pure.

Source: upstream's suspendJobs and resumeJobsIfNecessary.
"""

from collections.abc import Sequence
from typing import Final

from kubemend.controller.jobset import children, conditions
from kubemend.controller.jobset.children.buckets import Buckets
from kubemend.controller.jobset.plan import SuspendJob, Write
from kubemend.controller.jobset.policy import startup
from kubemend.controller.jobset.spec.model import ChildJob, JobSet, ReplicatedJob, ReplicatedJobStatus
from kubemend.controller.jobset.status_builder import StatusBuilder

_SUSPENDED: Final = "SuspendedJobs"
_SUSPENDED_MESSAGE: Final = "jobset is suspended"
_RESUMED: Final = "ResumeJobs"
_RESUMED_MESSAGE: Final = "jobset is resumed"
_JOBSET_SUSPENDED: Final = "JobSetSuspended"


def suspend(buckets: Buckets, *, draft: StatusBuilder) -> tuple[Write, ...]:
    """Return the writes that suspend running Jobs, and set the conditions. Suspending and resuming cost no restart."""
    draft.set_condition(conditions.SUSPENDED, is_so=True, reason=_SUSPENDED, message=_SUSPENDED_MESSAGE)
    draft.set_condition(conditions.RESTARTING, is_so=False, reason=_JOBSET_SUSPENDED, message=_SUSPENDED_MESSAGE)
    running = (job for job in buckets.active if not job.suspended and not job.deleting)
    return tuple(SuspendJob(job.name, job.uid) for job in running)


def resume(
    jobset: JobSet, buckets: Buckets, counts: Sequence[ReplicatedJobStatus], *, draft: StatusBuilder
) -> tuple[tuple[Write, ...], ...]:
    """Return the writes that resume the suspended Jobs that may start, one replicated Job after another.

    The JobSet counts as resumed once no replicated Job waits for its turn in order; one that waits for ``dependsOn``
    does not delay that.
    """
    turn = startup.turn(jobset, counts, in_order=startup.is_in_order(jobset))
    asleep = [job for job in buckets.active if job.suspended and not job.deleting]
    groups = tuple(_resumptions(each, asleep) for each in turn.now) if asleep else ()
    if turn.waits:
        startup.in_progress(draft)
    else:
        draft.set_condition(conditions.SUSPENDED, is_so=False, reason=_RESUMED, message=_RESUMED_MESSAGE)
    return groups


def _resumptions(replicated_job: ReplicatedJob, asleep: Sequence[ChildJob]) -> tuple[Write, ...]:
    jobs = [job for job in asleep if job.replicated_job == replicated_job.name]
    return children.resume(replicated_job, jobs) if jobs else ()
