"""Names of a JobSet's children, and the labels, annotations and owner references that identify them. Pure.

kubectl plugins, Kueue, Trainer and users' start scripts (through the downward API) read them. So they are exactly
upstream's: ``api/jobset/v1alpha2/jobset_types.go``, ``pkg/constants``, ``pkg/util/placement`` and
``labelAndAnnotateObject`` of ``pkg/controllers/jobset_controller.go``.
"""

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any, Final

from kubemend.controller.jobset.spec import model
from kubemend.controller.jobset.spec.model import JobSet, ReplicatedJob

PREFIX: Final = "jobset.sigs.k8s.io/"
JOBSET_NAME: Final = PREFIX + "jobset-name"
JOBSET_UID: Final = PREFIX + "jobset-uid"
REPLICATED_JOB_NAME: Final = PREFIX + "replicatedjob-name"
REPLICATED_JOB_REPLICAS: Final = PREFIX + "replicatedjob-replicas"
GLOBAL_REPLICAS: Final = PREFIX + "global-replicas"
RESTART_ATTEMPT: Final = PREFIX + "restart-attempt"
"""``status.restarts`` when the Job was created: a Job with a lower one belongs to a previous run and is deleted."""
JOB_RESTART_ATTEMPT: Final = PREFIX + "job-restart-attempt"
"""The same for one Job: ``status.replicatedJobsStatus[].jobRestarts`` at its index."""
JOB_INDEX: Final = PREFIX + "job-index"
JOB_KEY: Final = PREFIX + "job-key"
JOB_GLOBAL_INDEX: Final = PREFIX + "job-global-index"
GROUP_NAME: Final = PREFIX + "group-name"
GROUP_REPLICAS: Final = PREFIX + "group-replicas"
JOB_GROUP_INDEX: Final = PREFIX + "job-group-index"
COORDINATOR: Final = PREFIX + "coordinator"

EXCLUSIVE_TOPOLOGY: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
"""Annotation: each Job has a domain of this topology key for itself (``controller.jobset.placement``)."""
NODE_SELECTOR: Final = "alpha.jobset.sigs.k8s.io/node-selector"
"""Annotation in addition: the nodes were labelled beforehand, by NAMESPACED_JOB, for the Job they are reserved for."""
NAMESPACED_JOB: Final = "alpha.jobset.sigs.k8s.io/namespaced-job"
NO_SCHEDULE: Final = "alpha.jobset.sigs.k8s.io/no-schedule"

MADE_OF: Final = "kubemend.io/made-of"
"""Annotation of a Job, kubemend's own: hashes of its template (``controller.jobset.policy.template_changes``)."""
PLACED_BY: Final = "kubemend.io/placed-by"
"""The same: node selector, tolerations and scheduling gates that its pods have from its JobSet's template, as JSON."""
MOST_PLACED_BY: Final = 16 * 1024
"""Characters; more are neither written nor read."""


def job_name(jobset: str, replicated_job: str, index: int) -> str:
    """Return a Job's name; its pods' hostnames add their index: ``<job>-<pod index>``."""
    return f"{jobset}-{replicated_job}-{index}"


def job_key(namespace: str, job: str) -> str:
    """Return a cluster-wide unique key of a Job that fits into a label: SHA-1 in hex.

    Upstream's API comment names SHA-256; its code uses SHA-1.
    """
    return hashlib.sha1(f"{namespace}/{job}".encode(), usedforsecurity=False).hexdigest()


def namespaced_job(namespace: str, job: str) -> str:
    """Return the value of NAMESPACED_JOB on the nodes for this Job; a label's value must not contain ``/``."""
    return f"{namespace}_{job}"


def claim_name(jobset: str, template: str) -> str:
    """Return the name of the PersistentVolumeClaim made from this template."""
    return f"{template}-{jobset}"


def coordinator(jobset: JobSet) -> str | None:
    """Return the address of the coordinator's pod in the cluster's DNS, without the namespace; None without one."""
    pod = jobset.spec.coordinator
    if pod is None:
        return None
    job = job_name(jobset.name, pod.replicated_job, pod.job_index)
    return f"{job}-{pod.pod_index}.{jobset.spec.network.subdomain}"


def replicas(jobs: Sequence[ReplicatedJob]) -> int:
    """Return how many Jobs these replicated Jobs have in all."""
    return sum(each.replicas for each in jobs)


def first_index(jobs: Sequence[ReplicatedJob], name: str) -> int:
    """Return the index that the first Job of ``name`` has among all Jobs of ``jobs``, in their order."""
    return replicas(tuple(itertools.takewhile(lambda each: each.name != name, jobs)))


def group(jobs: Sequence[ReplicatedJob], name: str) -> tuple[ReplicatedJob, ...]:
    """Return the replicated Jobs of the group ``name``, in their order."""
    return tuple(each for each in jobs if each.group == name)


def owner_reference(jobset: JobSet) -> dict[str, Any]:
    """Return an owner reference to the JobSet: objects with it are deleted with the JobSet."""
    return {"apiVersion": model.API_VERSION, "kind": model.KIND, "name": jobset.name, "uid": jobset.uid}


def controller_reference(jobset: JobSet) -> dict[str, Any]:
    """Return the owner reference of objects that the JobSet controls (SetControllerReference).

    For ``blockOwnerDeletion`` admission may require the right to update ``jobsets/finalizers``.
    """
    return {**owner_reference(jobset), "controller": True, "blockOwnerDeletion": True}
