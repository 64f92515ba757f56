"""Determine the gang of a pod, identically on the node and in the controller. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

GANG: Final = "kubemend.io/gang"
"""Label: pods of one namespace with the same value restart together. ``None`` takes a pod out of its gang."""
ALONE: Final = "None"
HOLD: Final = "kubemend.io/hold"
"""Annotation: how long the members of a gang wait for those that are recreated. The controller reads it."""
OWNER_RECREATES: Final = "kubemend.io/owner-recreates-pods"
"""Annotation: whether the pod's controller creates a new pod for one that is deleted. The controller reads it."""
POD: Final = "Pod"
"""The kind of a gang of one: a pod in no gang for which a user has created a Restart object."""
JOBSET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
JOBSET_ATTEMPT: Final = "jobset.sigs.k8s.io/in-place-restart-attempt"
"""Annotation that upstream JobSet's sidecar writes on each pod that it restarts in place
(cmd/in-place-restart-agent/main.go)."""
JOB_NAME: Final = "batch.kubernetes.io/job-name"
JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"

LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS: Final = "LeaderWorkerSet"
_LONGEST_NAME: Final = 63
"""Characters of a label's value: rounds have the gang's name as a label."""

_KIND_OF_LABEL: Final = ((GANG, "Gang"), (JOBSET_NAME, "JobSet"))


@dataclass(frozen=True, order=True, slots=True)
class GangKey:
    """Identify a gang.

    ``kind`` is JobSet, Job, Pod, LeaderWorkerSet (one group, named as its leader), or Gang if only a label binds pods.
    """

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of ``str``. Raises ValueError."""
        parts = text.split("/")
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{text!r} is not a gang; write NAMESPACE/KIND/NAME")
        return cls(*parts)


def key(namespace: str, labels: Mapping[str, str]) -> GangKey | None:
    """Return the gang of a pod with these labels; None when it has none.

    JobSet's label is on each of its pods (jobset_controller.go, labelAndAnnotateObject), the Job's name and index on
    the pods of Indexed Jobs (pkg/controller/job/indexed_job_utils.go; the index as a label since Kubernetes 1.28), the
    LeaderWorkerSet's name and the group's index on the leader and the workers of each of its groups.
    """
    if labels.get(GANG) == ALONE:
        return None
    for label, kind in _KIND_OF_LABEL:
        if labels.get(label):
            return GangKey(namespace, kind, labels[label])
    if JOB_INDEX in labels and labels.get(JOB_NAME):
        return GangKey(namespace, "Job", labels[JOB_NAME])
    if JOB_INDEX not in labels and labels.get(LWS_NAME) and labels.get(LWS_GROUP):
        leader = f"{labels[LWS_NAME]}-{labels[LWS_GROUP]}"
        return GangKey(namespace, LWS, leader) if len(leader) <= _LONGEST_NAME else None
    return None


def slot(name: str, labels: Mapping[str, str]) -> str:
    """Return the identity of a member that survives its recreation: its index in its Job, else the pod's ``name``."""
    if labels.get(JOB_NAME) and labels.get(JOB_INDEX):
        return f"{labels[JOB_NAME]}/{labels[JOB_INDEX]}"
    return name
