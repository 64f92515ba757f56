"""Suspending a JobSet's Jobs, and resuming them: what Kueue does to admit and to preempt. Pure.

Source: upstream's suspendJobs and resumeJobsIfNecessary.
"""

from collections.abc import Sequence
from typing import Final

from controller.jobset import building, conditions, startup
from controller.jobset.buckets import Buckets
from controller.jobset.draft import Draft
from controller.jobset.model import ChildJob, JobSet, ReplicatedJob, ReplicatedJobStatus
from controller.jobset.plan import SuspendJob, Write

_SUSPENDED: Final = "SuspendedJobs"
_SUSPENDED_MESSAGE: Final = "jobset is suspended"
_RESUMED: Final = "ResumeJobs"
_RESUMED_MESSAGE: Final = "jobset is resumed"
_JOBSET_SUSPENDED: Final = "JobSetSuspended"


def suspend(buckets: Buckets, *, draft: Draft) -> tuple[Write, ...]:
    """Return what suspends the Jobs that run, and say so. Neither costs a restart, nor does the resumption."""
    draft.say(conditions.SUSPENDED, is_so=True, reason=_SUSPENDED, message=_SUSPENDED_MESSAGE)
    draft.say(conditions.RESTARTING, is_so=False, reason=_JOBSET_SUSPENDED, message=_SUSPENDED_MESSAGE)
    running = (job for job in buckets.active if not job.suspended and not job.deleting)
    return tuple(SuspendJob(job.name, job.uid) for job in running)


def resume(
    jobset: JobSet, buckets: Buckets, counts: Sequence[ReplicatedJobStatus], *, draft: Draft
) -> tuple[tuple[Write, ...], ...]:
    """Return what resumes the suspended Jobs whose turn it is, replicated Job after replicated Job.

    The JobSet counts as resumed once nothing waits for its turn in order; what waits for ``dependsOn`` is not waited
    for.
    """
    turn = startup.turn(jobset, counts, in_order=startup.is_in_order(jobset))
    asleep = [job for job in buckets.active if job.suspended and not job.deleting]
    groups = tuple(_resumptions(each, asleep) for each in turn.now) if asleep else ()
    if turn.waits:
        startup.in_progress(draft)
    else:
        draft.say(conditions.SUSPENDED, is_so=False, reason=_RESUMED, message=_RESUMED_MESSAGE)
    return groups


def _resumptions(replicated_job: ReplicatedJob, asleep: Sequence[ChildJob]) -> tuple[Write, ...]:
    jobs = [job for job in asleep if job.replicated_job == replicated_job.name]
    return building.resume(replicated_job, jobs) if jobs else ()
