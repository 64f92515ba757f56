"""Sort a JobSet's Jobs by their state in the current run, and count them by replicated Job. Pure.

Source: upstream's getChildJobs and calculateReplicatedJobStatuses.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import ChildJob, JobSet, ReplicatedJob, ReplicatedJobStatus, Status


@dataclass(frozen=True, slots=True)
class Buckets:
    """``previous`` belong to a run that a restart has ended; the others to the current one, by how they ended."""

    active: tuple[ChildJob, ...] = ()
    successful: tuple[ChildJob, ...] = ()
    failed: tuple[ChildJob, ...] = ()
    previous: tuple[ChildJob, ...] = ()

    @property
    def of_this_run(self) -> tuple[ChildJob, ...]:
        """Return all but the ``previous``."""
        return (*self.active, *self.successful, *self.failed)

    @property
    def names(self) -> frozenset[str]:
        """Return the names in use: a Job's successor is not created before that Job is deleted."""
        return frozenset(job.name for job in (*self.of_this_run, *self.previous))

    def but(self, outdated: Collection[str]) -> "Buckets":
        """Return them with the Jobs of these UIDs among the ``previous``."""

        def kept(bucket: Iterable[ChildJob]) -> tuple[ChildJob, ...]:
            return tuple(job for job in bucket if job.uid not in outdated)

        moved = (job for job in self.of_this_run if job.uid in outdated)
        return Buckets(kept(self.active), kept(self.successful), kept(self.failed), (*self.previous, *moved))


def sort(status: Status, jobs: Iterable[ChildJob]) -> Buckets:
    """Sort the Jobs; each bucket is in the order of its Jobs' names."""
    active, successful, failed, previous = [], [], [], []
    restarts = {each.name: each.job_restarts for each in status.replicated_jobs}
    for job in sorted(jobs, key=lambda each: each.name):
        if _is_previous(job, status, restarts):
            previous.append(job)
        elif job.end is None:
            active.append(job)
        elif job.end.failed:
            failed.append(job)
        else:
            successful.append(job)
    return Buckets(tuple(active), tuple(successful), tuple(failed), tuple(previous))


def _is_previous(job: ChildJob, status: Status, restarts: dict[str, tuple[int, ...]]) -> bool:
    """Return whether a Job belongs to a previous run.

    A Job whose label is invalid belongs to the current run, unless a restart is under way: then it is deleted with the
    others. Upstream's reconcile fails indefinitely on such a label. Here one restart fixes it, and no Job is deleted
    because of a label. Once such a Job is being deleted it stays ``previous``, even if a suspension has ended that
    restart.
    """
    if job.attempt is None:
        if job.deleting or conditions.is_true(status, conditions.RESTARTING):
            return True
    elif job.attempt < status.restarts:
        return True
    if job.job_attempt is None or job.index is None:
        return False
    of_job = restarts.get(job.replicated_job, ())
    return job.index < len(of_job) and job.job_attempt < of_job[job.index]


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
