"""Jobs that were made of another template than the JobSet has now: what is done about each. Pure.

Upstream allows no change of a template while Jobs run; ours does (``controller.jobset.changes``). A Job whose pods
would have to differ is recreated like one of a former run, which costs no restart; for what its containers only have to
read anew they are restarted in place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.jobset import building, changes
from controller.jobset.buckets import Buckets
from controller.jobset.changes import Change, MadeOf
from controller.jobset.model import ChildJob, JobSet
from controller.jobset.plan import AnnotateJob, Write


@dataclass(frozen=True, slots=True)
class Apart:
    """``buckets``: the outdated ones are ``previous`` now. ``to_reset``: their containers have to read anew."""

    buckets: Buckets
    to_reset: tuple[ChildJob, ...] = ()


def told_apart(jobset: JobSet, buckets: Buckets) -> Apart:
    """Tell them apart. While the JobSet is suspended nothing is: Kueue changes templates then, and resuming merges."""
    if jobset.spec.suspend or not buckets.active:
        return Apart(buckets)
    wanted = _wanted(jobset)
    kept: list[ChildJob] = []
    outdated: list[ChildJob] = []
    to_reset: list[ChildJob] = []
    for job in buckets.active:
        change = _change(wanted.get(job.replicated_job), job, jobset)
        (outdated if change is Change.RECREATE else kept).append(job)
        if change is Change.RESET:
            to_reset.append(job)
    apart = replace(buckets, active=tuple(kept), previous=(*buckets.previous, *outdated)) if outdated else buckets
    return Apart(apart, tuple(to_reset))


def resets(jobset: JobSet, jobs: Sequence[ChildJob]) -> tuple[tuple[Write, ...], ...]:
    """Return what restarts the gang so that these Jobs' containers read anew, and notes that it has been asked for."""
    if not jobs:
        return ()
    wanted = _wanted(jobset)
    notes: tuple[Write, ...] = tuple(
        AnnotateJob(job.name, job.uid, changes.noted_by_reset(wanted[job.replicated_job])) for job in jobs
    )
    return (building.reset(jobset),), notes


def _wanted(jobset: JobSet) -> Mapping[str, MadeOf]:
    return {each.name: changes.made_of(each) for each in jobset.spec.replicated_jobs}


def _change(wanted: MadeOf | None, job: ChildJob, jobset: JobSet) -> Change:
    if wanted is None:
        return Change.NOTHING
    change = changes.what_changed(wanted, job)
    return Change.RECREATE if change is Change.RESET and not jobset.spec.is_in_place else change
