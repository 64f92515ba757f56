"""When a finished JobSet is deleted. Pure. Source: upstream's ttl_after_finished.go."""

from controller.jobset import conditions
from controller.jobset.model import JobSet, Status


def ends_at(jobset: JobSet, status: Status) -> float | None:
    """Return the Unix time at which ``ttlSecondsAfterFinished`` is over; None while it has no end.

    A JobSet that does not tell when it finished is kept: upstream's reconcile fails on it, for ever.
    """
    end = conditions.finished(status)
    if jobset.spec.ttl_seconds is None or end is None or not end.since:
        return None
    return end.since + jobset.spec.ttl_seconds
