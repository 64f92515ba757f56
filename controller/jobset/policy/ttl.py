"""Compute when a finished JobSet is deleted. Pure. Source: upstream's ttl_after_finished.go."""

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.spec.model import JobSet, Status


def ends_at(jobset: JobSet, status: Status) -> float | None:
    """Return the Unix time at which ``ttlSecondsAfterFinished`` is over; None without one.

    A JobSet without the time at which it finished is kept: upstream's reconcile fails on it indefinitely.
    """
    end = conditions.finished(status)
    if jobset.spec.ttl_seconds is None or end is None or not end.since:
        return None
    return end.since + jobset.spec.ttl_seconds
