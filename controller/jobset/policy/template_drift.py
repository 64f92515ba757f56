"""Find Jobs that were created from another template than the current one, and decide about each. Pure.

Upstream allows no change of a template while Jobs run; kubemend does (``policy.template_changes``). A Job whose pods
would have to differ is recreated like one of a previous run, which costs no restart. If containers only have to read
something again, they are restarted in place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.children.buckets import Buckets
from kubemend.controller.jobset.plan import AnnotateJob, RequestRestart, Write
from kubemend.controller.jobset.policy import template_changes
from kubemend.controller.jobset.policy.template_changes import Change, TemplateHash
from kubemend.controller.jobset.spec import model
from kubemend.controller.jobset.spec.model import ChildJob, JobSet
from kubemend.controller.model import restart_resource

_RESET_STRATEGY: Final = "reset"
_UID_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class DriftPartition:
    """``buckets``: the outdated Jobs are in ``previous``, until they are gone.

    ``to_reset``: containers of these must read something again.
    """

    buckets: Buckets
    to_reset: tuple[ChildJob, ...] = ()


def partition(jobset: JobSet, buckets: Buckets) -> DriftPartition:
    """Separate outdated Jobs.

    While the JobSet is suspended, only those that are being deleted: Kueue changes templates then, and resuming merges.
    """
    examined = [each for each in buckets.of_this_run if each.deleting or not (each.end or jobset.spec.suspend)]
    if not examined:
        return DriftPartition(buckets)
    wanted = _wanted(jobset)
    changes = {job.uid: _change(wanted.get(job.replicated_job), job, jobset) for job in examined}
    outdated = frozenset(uid for uid, change in changes.items() if change is Change.RECREATE)
    to_reset = (job for job in examined if changes[job.uid] is Change.RESET and not job.deleting)
    return DriftPartition(buckets.but(outdated) if outdated else buckets, tuple(to_reset))


def resets(jobset: JobSet, jobs: Sequence[ChildJob]) -> tuple[tuple[Write, ...], ...]:
    """Return the writes that restart the gang so that these Jobs' containers read again, and record the request."""
    if not jobs:
        return ()
    wanted = _wanted(jobset)
    notes: tuple[Write, ...] = tuple(
        AnnotateJob(job.name, job.uid, template_changes.noted_by_reset(wanted[job.replicated_job])) for job in jobs
    )
    return (reset_request(jobset),), notes


def reset_request(jobset: JobSet) -> RequestRestart:
    """Return the request to restart the JobSet's gang so that ConfigMaps, Secrets and volumes are read again.

    Its name depends on the spec's generation: repeated requests create it once.
    """
    name = f"{jobset.name}-{jobset.uid[:_UID_CHARACTERS]}-reset-{jobset.generation}"
    body = {
        "apiVersion": restart_resource.API_VERSION,
        "kind": restart_resource.KIND,
        "metadata": {"name": name, "namespace": jobset.namespace, "ownerReferences": [naming.owner_reference(jobset)]},
        "spec": {
            "gang": {"kind": model.KIND, "name": jobset.name},
            "strategy": _RESET_STRATEGY,
            "reason": f"annotations of its pods' template changed, in generation {jobset.generation} of the JobSet",
        },
    }
    return RequestRestart(name, body)


def _wanted(jobset: JobSet) -> Mapping[str, TemplateHash]:
    return {each.name: template_changes.made_of(each) for each in jobset.spec.replicated_jobs}


def _change(wanted: TemplateHash | None, job: ChildJob, jobset: JobSet) -> Change:
    if wanted is None:
        return Change.NOTHING
    change = template_changes.what_changed(wanted, job)
    return Change.RECREATE if change is Change.RESET and not jobset.spec.is_in_place else change
