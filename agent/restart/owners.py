"""Identify owners of pods that count container restarts against a limit of their own, and read that limit. Pure.

The reaction of such an owner is final: it fails the whole job. So no pod of an owner of an unknown kind is restarted,
unless the pod's annotation states that its owner does not count.
"""

from dataclasses import dataclass
from typing import Final

from kubemend.agent.model.workloads import OwnerRef, PodView, RestartPolicy
from kubemend.common import gangs

KUBEFLOW: Final = "kubeflow.org"
KUBEFLOW_JOB_NAME: Final = "training.kubeflow.org/job-name"
"""Label of all pods of one of Kubeflow's jobs (training-operator, pkg/apis/kubeflow.org/v1/common_types.go)."""

TRAINING: Final = {
    "PyTorchJob": "pytorchjobs",
    "TFJob": "tfjobs",
    "MPIJob": "mpijobs",
    "XGBoostJob": "xgboostjobs",
    "PaddleJob": "paddlejobs",
    "JAXJob": "jaxjobs",
}
"""Kubeflow's kinds, with their resources."""

_OF_MPI_OPERATOR: Final = "v2beta1"
"""The version of an MPIJob of mpi-operator, whose backoffLimit is that of its launcher's Job (newLauncherJob in
pkg/controller/mpi_job_controller.go). Workers have the MPIJob as their owner, and it counts no restarts of theirs."""

_COUNTS_NOTHING: Final = frozenset(
    {
        ("", "Node"),
        ("", "ReplicationController"),
        ("apps", "DaemonSet"),
        ("apps", "ReplicaSet"),
        ("apps", "StatefulSet"),
        ("batch", "Job"),  # under OnFailure it counts, and is read then
        ("ray.io", "RayCluster"),
    }
)
"""Kinds that depend on their pods' phases alone."""


@dataclass(frozen=True, slots=True)
class Counting:
    """An owner that sums up its pods' restartCounts. ``limit`` is the path, in its object, of the sum that fails it.

    A limit of 0 allows a sum of 0. ``default`` is the limit of an object that sets none; None: then it does not count.
    ``label`` selects its pods.
    """

    kind: str
    name: str
    resource: str
    group: str
    version: str
    limit: tuple[str, ...]
    default: int | None
    label: str


def counting(pod: PodView) -> Counting | None:
    """Return the owner that counts the pod's restarts; None if none is known to.

    ``pkg/controller/job`` counts under OnFailure only (``pastBackoffLimitOnFailure`` in job_controller.go);
    training-operator's ``PastBackoffLimit`` (pkg/core/job.go) under any pod policy, because it uses the replica's, and
    only if a backoffLimit is set.
    """
    match pod.owner:
        case OwnerRef(api_group="batch", kind="Job", name=name) if pod.restart_policy is RestartPolicy.ON_FAILURE:
            return Counting("Job", name, "jobs", "batch", "v1", ("backoffLimit",), 6, gangs.JOB_NAME)
        case OwnerRef(api_group="kubeflow.org", kind="MPIJob", version=version) if version == _OF_MPI_OPERATOR:
            return None
        case OwnerRef(api_group="kubeflow.org", kind=kind, name=name, version=version) if kind in TRAINING:
            limit = ("runPolicy", "backoffLimit")
            return Counting(
                kind,
                name,
                TRAINING[kind],
                KUBEFLOW,
                version or "v1",
                limit,
                None,
                KUBEFLOW_JOB_NAME,
            )
    return None


def unknown(pod: PodView) -> str:
    """Return the kind of an owner of which it is unknown whether it counts restarts; empty for a known kind."""
    owner = pod.owner
    if owner is None or (owner.api_group, owner.kind) in _COUNTS_NOTHING or counting(pod) is not None:
        return ""
    if (owner.api_group, owner.kind, owner.version) == (KUBEFLOW, "MPIJob", _OF_MPI_OPERATOR):
        return ""
    return f"{owner.kind}.{owner.api_group}" if owner.api_group else owner.kind
