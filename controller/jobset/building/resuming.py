"""How a suspended Job goes on: with what was set in the JobSet's template meanwhile, by Kueue above all. Pure.

Source: resumeJob of upstream's ``pkg/controllers/jobset_controller.go``, less two defects: there, tolerations and gates
come back in an order of Go's maps, and a toleration with ``tolerationSeconds`` is added anew by each resume.
"""

from collections.abc import Iterable
from typing import Any, Final

from controller.jobset import changes
from controller.jobset.changes import MadeOf
from controller.jobset.model import NO_JSON, ChildJob, Json, ReplicatedJob
from controller.jobset.plan import ResumeJob

_STRINGS: Final = (("metadata", "labels"), ("metadata", "annotations"), ("spec", "nodeSelector"))
_LISTS: Final = (("spec", "tolerations"), ("spec", "schedulingGates"))


def resume(replicated_job: ReplicatedJob, jobs: Iterable[ChildJob]) -> tuple[ResumeJob, ...]:
    """Return the writes that resume these suspended ``jobs`` of a replicated Job, in their order.

    Values of the JobSet's template go before a Job's; what the Job alone has, stays: others may have set it.
    """
    made_of = changes.made_of(replicated_job)
    return tuple(_resumed(job, replicated_job.pod_template, made_of) for job in jobs)


def _resumed(job: ChildJob, ours: Json, made_of: MadeOf) -> ResumeJob:
    theirs = job.template
    assert theirs is not None, f"Job {job.name} is not suspended"
    merged: dict[str, dict[str, Any]] = {"metadata": {}, "spec": {}}
    for part, field in _STRINGS:
        if found := {**_part(theirs, part, field, {}), **_part(ours, part, field, {})}:
            merged[part][field] = found
    for part, field in _LISTS:
        if union := _union(_part(theirs, part, field, ()), _part(ours, part, field, ())):
            merged[part][field] = union
    annotations = changes.noted_by_resume(made_of, job)
    return ResumeJob(job.name, job.uid, clear_start=job.started, template=merged, annotations=annotations)


def _part(template: Json, part: str, field: str, empty: Any) -> Any:
    return (template.get(part) or NO_JSON).get(field) or empty


def _union(old: Iterable[Json], new: Iterable[Json]) -> list[Json]:
    """Return both, the old ones first, each but once."""
    found: list[Json] = []
    for each in (*old, *new):
        if each not in found:
            found.append(each)
    return found
