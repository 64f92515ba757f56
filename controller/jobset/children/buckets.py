"""Sort a JobSet's Jobs by their state in the current run. Pure. Source: upstream's getChildJobs."""

from collections.abc import Iterable
from dataclasses import dataclass

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.spec.model import ChildJob, Status


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
