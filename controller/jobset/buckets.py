"""A JobSet's Jobs, sorted by what they are to the run that is on. Pure. Source: upstream's getChildJobs."""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.jobset import conditions
from controller.jobset.model import ChildJob, Status


@dataclass(frozen=True, slots=True)
class Buckets:
    """``previous`` are of a run that a restart has ended; the others are of this one, by how they ended."""

    active: tuple[ChildJob, ...] = ()
    successful: tuple[ChildJob, ...] = ()
    failed: tuple[ChildJob, ...] = ()
    previous: tuple[ChildJob, ...] = ()

    @property
    def of_this_run(self) -> tuple[ChildJob, ...]:
        """All but the ``previous``."""
        return (*self.active, *self.successful, *self.failed)

    @property
    def names(self) -> frozenset[str]:
        """The names that are taken: a Job's successor is not created before that Job is gone."""
        return frozenset(job.name for job in (*self.of_this_run, *self.previous))


def sort(status: Status, jobs: Iterable[ChildJob]) -> Buckets:
    """Sort them; each bucket is in the order of its Jobs' names."""
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
    """A Job whose label cannot be read is of this run, unless a restart is on its way: then it goes with the others.

    Upstream's reconcile fails for ever on such a label. One restart mends it here, and nothing is killed for a label.
    Once it is being deleted it stays gone, though a suspension has ended that restart meanwhile.
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
