"""Which Jobs are to have a domain for themselves, by the annotations of their JobSet and of their template. Pure.

Source: labelAndAnnotateObject and constructJob of upstream's ``pkg/controllers/jobset_controller.go``.
"""

from collections.abc import Mapping
from typing import Final

from controller.jobset import naming
from controller.jobset.model import NO_STRINGS, JobSet, Json, ReplicatedJob

_KNOWN: Final = (naming.EXCLUSIVE_TOPOLOGY, naming.NODE_SELECTOR)


def annotations(jobset: JobSet, replicated_job: ReplicatedJob) -> Mapping[str, str]:
    """Return the annotations of exclusive placement that Jobs and pods get; the template's go before the JobSet's."""
    found: dict[str, str] = {}
    for given in (jobset.annotations, _own(replicated_job.template)):
        if naming.EXCLUSIVE_TOPOLOGY in given:
            found |= {name: given[name] for name in _KNOWN if name in given}
    return found


def topology(pod_annotations: Mapping[str, str]) -> str:
    """Return the label of whose values a pod's Job is to have one for itself; "" where it is not.

    Like upstream's webhook for pods, by the pod's own annotations: those with labelled nodes hold just these.
    """
    return "" if naming.NODE_SELECTOR in pod_annotations else pod_annotations.get(naming.EXCLUSIVE_TOPOLOGY, "")


def wants_domain(jobset: JobSet, replicated_job: ReplicatedJob) -> bool:
    """Return whether its pods wait for a domain, with our gate: only where they say of which topology."""
    if wants_labelled_nodes(jobset, replicated_job):
        return False
    return bool(topology({**_own(replicated_job.pod_template), **annotations(jobset, replicated_job)}))


def wants_labelled_nodes(jobset: JobSet, replicated_job: ReplicatedJob) -> bool:
    """Return whether its pods go to the nodes that were labelled for them beforehand."""
    found = {**_own(replicated_job.template), **annotations(jobset, replicated_job)}  # of its Jobs, like upstream
    return naming.EXCLUSIVE_TOPOLOGY in found and naming.NODE_SELECTOR in found


def _own(template: Json) -> Mapping[str, str]:
    found: Mapping[str, str] = (template.get("metadata") or {}).get("annotations") or NO_STRINGS
    return found
