"""Count a JobSet's Jobs by state and replicated Job. Pure. Source: upstream's calculateReplicatedJobStatuses."""

from collections import Counter
from collections.abc import Sequence

from kubemend.controller.jobset.children.buckets import Buckets
from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import ChildJob, JobSet, ReplicatedJob, ReplicatedJobStatus


def counted(jobset: JobSet, buckets: Buckets) -> tuple[ReplicatedJobStatus, ...]:
    """Return ``replicatedJobsStatus`` in the order of names; the Jobs' restart counts stay unchanged.

    Jobs of previous runs do not count, nor do those of a replicated Job that is not in the spec.
    """
    before = {each.name: each for each in jobset.status.replicated_jobs}
    ready = Counter(job.replicated_job for job in buckets.active if is_ready(job))
    active = Counter(job.replicated_job for job in buckets.active if job.active > 0)
    suspended = Counter(job.replicated_job for job in buckets.active if job.suspended)
    succeeded = Counter(job.replicated_job for job in buckets.successful)
    failed = Counter(job.replicated_job for job in buckets.failed)
    return tuple(
        ReplicatedJobStatus(
            name=name,
            ready=ready[name],
            succeeded=succeeded[name],
            failed=failed[name],
            active=active[name],
            suspended=suspended[name],
            job_restarts=before[name].job_restarts if name in before else (),
            job_restarts_counted=before[name].job_restarts_counted if name in before else (),
        )
        for name in sorted({each.name for each in jobset.spec.replicated_jobs})
    )


def is_ready(job: ChildJob) -> bool:
    """Return whether as many of a Job's pods are ready or over as run at once.

    An index that failed for good (``backoffLimitPerIndex``) is over like one that succeeded: it will never become
    ready, and a JobSet that waits for it would wait indefinitely. (Upstream ignores failedIndexes.)
    """
    pods = job.parallelism if job.completions is None else min(job.parallelism, job.completions)
    return job.succeeded + _failed_for_good(job) + job.ready >= pods


def is_started(replicated_job: ReplicatedJob, counts: Sequence[ReplicatedJobStatus]) -> bool:
    """Return whether each of its Jobs is ready or over, succeeded or failed."""
    return any(
        each.name == replicated_job.name and each.ready + each.failed + each.succeeded == replicated_job.replicas
        for each in counts
    )


def is_complete(replicated_job: ReplicatedJob, counts: Sequence[ReplicatedJobStatus]) -> bool:
    """Return whether each of its Jobs has succeeded."""
    return any(each.name == replicated_job.name and each.succeeded == replicated_job.replicas for each in counts)


def all_ready(jobset: JobSet, counts: Sequence[ReplicatedJobStatus]) -> bool:
    """Return whether each Job of the JobSet is ready or has succeeded."""
    wanted = sum(each.replicas for each in jobset.spec.replicated_jobs)
    return wanted == sum(each.ready + each.succeeded for each in counts)


def _failed_for_good(job: ChildJob) -> int:
    try:
        return len(reading.indexes(job.failed_indexes))
    except reading.InvalidFieldError:
        return 0
