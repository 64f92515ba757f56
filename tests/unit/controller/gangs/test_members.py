"""Members out of pod objects, and which of them may be deleted."""

from dataclasses import replace
from typing import Any

import pytest

from common.gangs import GangKey
from common.kube import shares
from controller.gangs import members, wishes
from controller.gangs.members import Bar
from controller.model.members import NodeName, Owner, PodPhase, PodRef, PodUid
from tests.unit.controller import builders


def pod(**metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "team",
            "name": "train-0-x7k2p",
            "uid": "uid-1",
            "creationTimestamp": "2023-11-14T22:13:20Z",
            "labels": {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/job-completion-index": "0"},
            "annotations": {"kubemend.io/restart": "InPlace", "other.io/secret": "x"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u0"},
                {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u1", "controller": True},
            ],
            **metadata,
        },
        "spec": {"nodeName": "node-0", "restartPolicy": "OnFailure"},
        "status": {"phase": "Running"},
    }


def test_a_pod_of_an_indexed_job_is_a_member() -> None:
    member = members.member(pod())
    assert member is not None
    assert member.pod == PodRef("team", "train-0-x7k2p", PodUid("uid-1"))
    assert (member.gang, member.slot) == (GangKey("team", "Job", "train"), "train/0")
    assert (member.node, member.phase, member.deleting) == (NodeName("node-0"), PodPhase.RUNNING, False)
    assert (member.restart_policy, member.created_at) == ("OnFailure", 1_700_000_000.0)
    assert member.owner == Owner("batch", "Job", "train", "u1")
    assert dict(member.annotations) == {"kubemend.io/restart": "InPlace"}


def test_a_member_knows_which_of_its_containers_restarts_are_for() -> None:
    obj = pod()
    gpus = {"limits": {"nvidia.com/gpu": "8"}}
    obj["spec"]["containers"] = [{"name": "trainer", "resources": gpus}, {"name": "shipper"}]
    member = members.member(obj)
    assert member is not None
    assert member.targets == {"trainer"}
    obj["metadata"]["annotations"]["kubemend.io/containers"] = "shipper"
    member = members.member(obj)
    assert member is not None
    assert member.targets == {"shipper"}


def test_a_gang_is_known_by_the_uid_of_what_it_is_named_after() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/jobset-uid": "uid-js"}
    of_jobset, of_job = members.member(pod(labels=labels)), members.member(pod())
    assert of_jobset is not None
    assert of_job is not None
    assert (of_jobset.gang_uid, of_job.gang_uid) == ("uid-js", "u1")


def test_the_newest_pod_tells_whose_name_it_is_by_now() -> None:
    former, newer = builders.member(0, gang_uid="uid-1"), builders.member(1, generation=1, gang_uid="uid-2")
    assert members.uid_of([newer, former]) == "uid-2"
    assert members.uid_of([]) == ""


def test_pods_of_several_owners_that_a_label_binds_have_no_uid_in_common() -> None:
    gang = GangKey("team", "Gang", "train")
    one, other = (builders.member(index, gang=gang, gang_uid=f"uid-{index}") for index in range(2))
    assert members.uid_of([one, other]) == ""
    assert members.uid_of([one, replace(other, gang_uid="uid-0")]) == "uid-0"


def test_a_pod_in_no_gang_is_none() -> None:
    assert members.member(pod(labels={})) is None


def test_a_bare_pod_that_was_just_created_is_a_member() -> None:
    bare = {"metadata": {"namespace": "team", "name": "p", "uid": "u", "labels": {"kubemend.io/gang": "g"}}}
    member = members.member(bare)
    assert member is not None
    assert (member.slot, member.node, member.phase, member.owner) == ("p", "", PodPhase.UNKNOWN, None)


def test_a_core_owner_has_no_group() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": "u", "controller": True}
    member = members.member(pod(ownerReferences=[owner]))
    assert member is not None
    assert member.owner == Owner("", "Node", "node-0", "u")


def test_a_deletion_timestamp_says_that_it_leaves() -> None:
    member = members.member(pod(deletionTimestamp="2023-11-14T22:13:20Z"))
    assert member is not None
    assert member.deleting


@pytest.mark.parametrize(
    ("changes", "namespaces", "bar"),
    [
        ({}, (), None),
        ({"annotations": {}}, (), Bar.NOT_OPTED_IN),
        ({"annotations": {}}, ("team",), None),
        ({"annotations": {"kubemend.io/restart": "Never"}}, (), Bar.NOT_OPTED_IN),
        ({"owner": None}, ("team",), Bar.NOBODY_RECREATES_IT),
        ({"owner": Owner("", "Node", "node-0", "u")}, (), Bar.NOBODY_RECREATES_IT),
    ],
)
def test_only_what_opted_in_and_comes_back_may_be_deleted(
    changes: dict[str, Any], namespaces: tuple[str, ...], bar: Bar | None
) -> None:
    assert members.bar(builders.member(0, **changes), namespaces=frozenset(namespaces)) is bar


def test_of_several_pods_of_a_slot_the_one_counts_that_can_run() -> None:
    failed = builders.member(0, phase=PodPhase.FAILED, created_at=5.0)
    leaving = builders.member(0, generation=1, deleting=True, created_at=4.0)
    old = builders.member(0, generation=2, created_at=1.0)
    new = builders.member(0, generation=3, created_at=2.0)
    other = builders.member(1)
    found = members.by_slot([other, failed, new, leaving, old])
    assert list(found.items()) == [("train/0", new), ("train/1", other)]
    assert members.by_slot([failed, leaving])["train/0"] is leaving


def test_of_a_long_annotation_no_more_is_kept_than_is_refused() -> None:
    member = members.member(pod(annotations={"kubemend.io/restart": "InPlace", "kubemend.io/hold": "x" * 250_000}))
    assert member is not None
    assert len(member.annotations["kubemend.io/hold"]) < 2000
    with pytest.raises(wishes.BadAnnotationError, match="too long"):
        wishes.of([member])


@pytest.mark.parametrize(
    "huge",
    [
        {"annotations": {f"kubemend.io/{number}": "x" * 60 for number in range(20_000)}},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "x" * 10**6, "uid": "u", "controller": True}]},
    ],
    ids=["annotations", "owner"],
)
def test_a_member_of_which_there_is_too_much_is_in_its_gang_and_its_gang_is_left_alone(huge: dict[str, Any]) -> None:
    whole = members.member(pod(**huge))
    assert whole is not None
    bounds = shares.Bounds(members.bare, one=members.MOST_OF_A_MEMBER, namespace=members.MOST_OF_A_NAMESPACE)
    member = shares.Shares(bounds).fit("uid-1", whole, namespace="team")
    assert shares.weight(member) < 5000
    assert (member.pod, member.gang, member.node, member.phase) == (whole.pod, whole.gang, whole.node, whole.phase)
    with pytest.raises(wishes.BadAnnotationError, match="not kept: the pod has more than 64 KiB"):
        wishes.of([member])
    assert members.bar(member) is Bar.NOT_OPTED_IN
