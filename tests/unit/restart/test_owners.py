"""Which owners count restarts of their pods."""

import pytest

from kubemend.agent.model.workloads import OwnerRef, RestartPolicy
from kubemend.agent.restart import owners
from tests.unit.restart import builders


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        ("PyTorchJob", "pytorchjobs"),
        ("TFJob", "tfjobs"),
        ("MPIJob", "mpijobs"),
        ("XGBoostJob", "xgboostjobs"),
        ("PaddleJob", "paddlejobs"),
        ("JAXJob", "jaxjobs"),
    ],
)
@pytest.mark.parametrize("policy", RestartPolicy)
def test_kubeflow_job_counts_under_any_pod_policy(kind: str, resource: str, policy: RestartPolicy) -> None:
    pod = builders.pod(owner=OwnerRef("kubeflow.org", kind, "train"), restart_policy=policy)
    counting = owners.counting(pod)
    assert counting is not None
    assert (counting.resource, counting.name, counting.limit) == (resource, "train", ("runPolicy", "backoffLimit"))


@pytest.mark.parametrize(
    ("owner", "kind"),
    [
        (None, ""),
        *((OwnerRef("apps", kind, "train"), "") for kind in ("StatefulSet", "DaemonSet", "ReplicaSet")),
        *((OwnerRef("", kind, "train"), "") for kind in ("ReplicationController", "Node")),
        (OwnerRef("ray.io", "RayCluster", "train"), ""),
        (OwnerRef("ray.example.com", "RayCluster", "train"), "RayCluster.ray.example.com"),
        (OwnerRef("", "Pod", "driver"), "Pod"),
        (OwnerRef("batch", "Job", "train"), ""),
        (OwnerRef("kubeflow.org", "PyTorchJob", "train"), ""),
        (OwnerRef("batch.volcano.sh", "Job", "train", version="v1alpha1"), "Job.batch.volcano.sh"),
        (OwnerRef("kubeflow.org", "MPIJob", "train", version="v2beta1"), ""),
        (OwnerRef("kubeflow.org", "NewJob", "train"), "NewJob.kubeflow.org"),
    ],
)
def test_owner_of_unknown_kind_may_count(owner: OwnerRef | None, kind: str) -> None:
    assert owners.unknown(builders.pod(owner=owner)) == kind
