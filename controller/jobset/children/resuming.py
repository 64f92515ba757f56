"""Resume a suspended Job with changes of the JobSet's template in the meantime, mostly by Kueue. Pure.

Source: resumeJob of upstream's ``pkg/controllers/jobset_controller.go``, without two of its defects. There, tolerations
and gates come back in the order of Go's maps, and each resume adds a toleration with ``tolerationSeconds`` again.
"""

from collections.abc import Iterable
from typing import Any, Final

from kubemend.controller.jobset.plan import ResumeJob
from kubemend.controller.jobset.policy import template_changes
from kubemend.controller.jobset.policy.template_changes import TemplateHash
from kubemend.controller.jobset.spec.model import NO_JSON, ChildJob, Json, ReplicatedJob

_STRINGS: Final = (("metadata", "labels"), ("metadata", "annotations"), ("spec", "nodeSelector"))
_LISTS: Final = (("spec", "tolerations"), ("spec", "schedulingGates"))


def resume(replicated_job: ReplicatedJob, jobs: Iterable[ChildJob]) -> tuple[ResumeJob, ...]:
    """Return the writes that resume these suspended ``jobs`` of a replicated Job, in their order.

    Values of the JobSet's template override a Job's. Values that only the Job has stay: another controller may have set
    them. A Job of which these are not kept, because it is too large, stays suspended.
    """
    made_of, ours = template_changes.made_of(replicated_job), replicated_job.pod_template
    return tuple(_resumed(job, job.template, ours, made_of) for job in jobs if job.template is not None)


def _resumed(job: ChildJob, theirs: Json, ours: Json, made_of: TemplateHash) -> ResumeJob:
    merged: dict[str, dict[str, Any]] = {"metadata": {}, "spec": {}}
    for part, field in _STRINGS:
        if found := {**_part(theirs, part, field, {}), **_part(ours, part, field, {})}:
            merged[part][field] = found
    for part, field in _LISTS:
        if union := _union(_part(theirs, part, field, ()), _part(ours, part, field, ())):
            merged[part][field] = union
    annotations = template_changes.noted_by_resume(made_of, job)
    return ResumeJob(job.name, job.uid, clear_start=job.started, template=merged, annotations=annotations)


def _part(template: Json, part: str, field: str, empty: Any) -> Any:
    return (template.get(part) or NO_JSON).get(field) or empty


def _union(old: Iterable[Json], new: Iterable[Json]) -> list[Json]:
    """Return the union, the old ones first, without duplicates."""
    found: list[Json] = []
    for each in (*old, *new):
        if each not in found:
            found.append(each)
    return found
