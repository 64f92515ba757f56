"""Select the Jobs that get a domain of their own, and mark their pods until they have it. Pure.

Annotations of the JobSet and the template select. Source: labelAndAnnotateObject and constructJob of upstream's
``pkg/controllers/jobset_controller.go``.
"""

from collections.abc import Mapping
from typing import Any, Final

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement.model import Domain, Pod
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


GATE: Final = "kubemend.io/exclusive-placement"
"""The scheduling gate: while a pod has it, the scheduler ignores the pod (KEP-3521)."""
GATE_ENTRY: Final[Json] = {"name": GATE}
PLACEMENT: Final = "kubemend.io/placement"
"""Label of the pods that kubemend places, for its Informer."""
EXCLUSIVE: Final = "exclusive"
LABELS: Final[Mapping[str, str]] = {PLACEMENT: EXCLUSIVE}


def waits(pod: Pod) -> bool:
    """Return whether it waits for a domain from kubemend."""
    return GATE in pod.gates and bool(pod.topology) and not pod.over


def release_patch(pod: Pod, domain: Domain) -> dict[str, Any]:
    """Return the JSON merge patch that sets a pod's domain and removes kubemend's gate, and no other.

    A gated pod's node selector may be extended in the same write (ValidatePodUpdate, ``podIsGated``). The patch is
    valid for the observed version only: if a gate was removed since, the result is a conflict.
    """
    return {
        "metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version},
        "spec": {
            "nodeSelector": {domain.topology: domain.value},
            "schedulingGates": [{"name": each} for each in pod.gates if each != GATE],
        },
    }
