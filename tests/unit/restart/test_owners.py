"""Which owners hold restarts against their pods."""

import pytest

from agent.model.workloads import OwnerRef, RestartPolicy
from agent.restart import owners
from tests.unit.restart import builders


@pytest.mark.parametrize("kind", owners.TRAINING)
@pytest.mark.parametrize("policy", RestartPolicy)
def test_kubeflows_jobs_count_whatever_the_pods_policy_is(kind: str, policy: RestartPolicy) -> None:
    pod = builders.pod(owner=OwnerRef("kubeflow.org", kind, "train"), restart_policy=policy)
    counting = owners.counting(pod)
    assert counting is not None
    assert (counting.name, counting.limit) == ("train", ("runPolicy", "backoffLimit"))


@pytest.mark.parametrize(
    ("owner", "kind"),
    [
        (None, ""),
        (OwnerRef("apps", "StatefulSet", "train"), ""),
        (OwnerRef("", "ReplicationController", "train"), ""),
        (OwnerRef("batch", "Job", "train"), ""),
        (OwnerRef("kubeflow.org", "PyTorchJob", "train"), ""),
        (OwnerRef("batch.volcano.sh", "Job", "train", version="v1alpha1"), "Job.batch.volcano.sh"),
        (OwnerRef("kubeflow.org", "NewJob", "train"), "NewJob.kubeflow.org"),
    ],
)
def test_an_owner_of_another_kind_may_count(owner: OwnerRef | None, kind: str) -> None:
    assert owners.unknown(builders.pod(owner=owner)) == kind
