"""Select the Jobs that get a domain of their own, by annotations of the JobSet and the template. Pure.

Source: labelAndAnnotateObject and constructJob of upstream's ``pkg/controllers/jobset_controller.go``.
"""

from collections.abc import Mapping
from typing import Final

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.spec.model import NO_STRINGS, JobSet, Json, ReplicatedJob

_KNOWN: Final = (naming.EXCLUSIVE_TOPOLOGY, naming.NODE_SELECTOR)


def annotations(jobset: JobSet, replicated_job: ReplicatedJob) -> Mapping[str, str]:
    """Return the annotations of exclusive placement for Jobs and pods; the template's override the JobSet's."""
    found: dict[str, str] = {}
    for given in (jobset.annotations, _own(replicated_job.template)):
        if naming.EXCLUSIVE_TOPOLOGY in given:
            found |= {name: given[name] for name in _KNOWN if name in given}
    return found


def topology(pod_annotations: Mapping[str, str]) -> str:
    """Return the label whose values are domains for a pod's Job; "" without exclusive placement.

    Like upstream's webhook, it uses the pod's own annotations: pods with labelled nodes occupy just those nodes.
    """
    return "" if naming.NODE_SELECTOR in pod_annotations else pod_annotations.get(naming.EXCLUSIVE_TOPOLOGY, "")


def wants_domain(jobset: JobSet, replicated_job: ReplicatedJob) -> bool:
    """Return whether its pods wait for a domain, with kubemend's gate: only if they name a topology."""
    if wants_labelled_nodes(jobset, replicated_job):
        return False
    return bool(topology({**_own(replicated_job.pod_template), **annotations(jobset, replicated_job)}))


def wants_labelled_nodes(jobset: JobSet, replicated_job: ReplicatedJob) -> bool:
    """Return whether its pods go to nodes that were labelled for them beforehand."""
    found = {**_own(replicated_job.template), **annotations(jobset, replicated_job)}  # the template's, like upstream
    return naming.EXCLUSIVE_TOPOLOGY in found and naming.NODE_SELECTOR in found


def _own(template: Json) -> Mapping[str, str]:
    found: Mapping[str, str] = (template.get("metadata") or {}).get("annotations") or NO_STRINGS
    return found
