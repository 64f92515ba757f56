"""Convert pod objects to members, and decide which of them may be deleted."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.common import gangs
from kubemend.common.gangs import GangKey
from kubemend.common.kube import shares
from kubemend.controller.gangs import gang_options, members
from kubemend.controller.gangs.members import Bar
from kubemend.controller.model.members import NodeName, Owner, PodPhase, PodRef, PodUid
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


def test_pod_of_indexed_job_is_a_member() -> None:
    member = members.member(pod())
    assert member is not None
    assert member.pod == PodRef("team", "train-0-x7k2p", PodUid("uid-1"))
    assert (member.gang, member.slot) == (GangKey("team", "Job", "train"), "train/0")
    assert (member.node, member.phase, member.deleting) == (NodeName("node-0"), PodPhase.RUNNING, False)
    assert (member.restart_policy, member.created_at) == ("OnFailure", 1_700_000_000.0)
    assert member.owner == Owner("batch", "Job", "train", "u1")
    assert dict(member.annotations) == {"kubemend.io/restart": "InPlace"}


@pytest.mark.parametrize("label", ["other", "None"])
def test_pod_that_upstreams_sidecar_restarts_is_known_in_every_gang_and_alone(label: str) -> None:
    annotations = {"jobset.sigs.k8s.io/in-place-restart-attempt": "1"}
    moved = pod(annotations=annotations, labels={"jobset.sigs.k8s.io/jobset-name": "train", "kubemend.io/gang": label})
    member = members.single(moved) if label == "None" else members.member(moved)
    assert member is not None
    assert dict(member.annotations) == annotations


def test_member_has_its_target_containers() -> None:
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


def test_gang_has_uid_of_its_owner() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/jobset-uid": "uid-js"}
    of_jobset, of_job = members.member(pod(labels=labels)), members.member(pod())
    assert of_jobset is not None
    assert of_job is not None
    assert (of_jobset.gang_uid, of_job.gang_uid) == ("uid-js", "u1")


def test_newest_pod_decides_gang_uid() -> None:
    former, newer = builders.member(1, gang_uid="uid-1"), builders.member(0, generation=1, gang_uid="uid-2")
    assert members.uid_of([newer, former]) == "uid-2"
    assert members.uid_of([]) == ""


@pytest.mark.parametrize("kind", ["Gang", gangs.LWS])
def test_labelled_pods_of_several_owners_have_no_common_uid(kind: str) -> None:
    gang = GangKey("team", kind, "train")
    one, other = (builders.member(index, gang=gang, gang_uid=f"uid-{index}") for index in range(2))
    assert members.uid_of([one, other]) == ""
    assert members.uid_of([one, replace(other, gang_uid="uid-0")]) == "uid-0"


def test_pod_in_no_gang_is_no_member() -> None:
    assert members.member(pod(labels={})) is None


def test_pod_alone_is_in_no_gang_and_is_never_deleted_for_a_request() -> None:
    assert members.single(pod()) is None
    alone = members.single(pod(labels={}))
    assert alone is not None
    assert (alone.owner, alone.gang_uid) == (None, "uid-1")
    assert members.bar(alone) is Bar.SINGLE_POD


def test_grace_period_of_a_pod_is_kept() -> None:
    member = members.member(pod(annotations={members.GRACE_PERIOD: "5s"}))
    assert member is not None
    assert gang_options.grace_seconds(member) == 5.0


def test_newly_created_minimal_pod_is_a_member() -> None:
    bare = {"metadata": {"namespace": "team", "name": "p", "uid": "u", "labels": {"kubemend.io/gang": "g"}}}
    member = members.member(bare)
    assert member is not None
    assert (member.slot, member.node, member.phase, member.owner) == ("p", "", PodPhase.UNKNOWN, None)


def test_core_owner_has_no_group() -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-0", "uid": "u", "controller": True}
    member = members.member(pod(ownerReferences=[owner]))
    assert member is not None
    assert member.owner == Owner("", "Node", "node-0", "u")


@pytest.mark.parametrize(
    ("kind", "status", "reason", "deleting", "expected"),
    [
        ("kubemend.io/DeviceFailure", "True", "Xid79", True, "Xid79"),
        ("kubemend.io/DeviceFailure", "True", "Xid79", False, ""),
        ("kubemend.io/DeviceFailure", "False", "Xid79", True, ""),
        ("DisruptionTarget", "True", "NodeLost", True, ""),
        ("kubemend.io/DeviceFailure", "True", None, True, ""),
        ("kubemend.io/DeviceFailure", "True", "x" * 100_000, True, "x" * 64),
    ],
    ids=["deleted for its device", "not deleted", "taken back", "deleted for its node", "no code", "long code"],
)
def test_pod_that_is_deleted_because_of_a_device_has_the_faults_code(
    kind: str, status: str, reason: str | None, deleting: bool, expected: str
) -> None:
    obj = pod(**({"deletionTimestamp": "2023-11-14T22:13:21Z"} if deleting else {}))
    obj["status"]["conditions"] = [{"type": "Ready", "status": "True"}, {"type": kind, "status": status}]
    if reason is not None:
        obj["status"]["conditions"][1]["reason"] = reason
    member = members.member(obj)
    assert member is not None
    assert member.device_failure == expected


def test_deletion_timestamp_marks_member_as_deleting() -> None:
    member = members.member(pod(deletionTimestamp="2023-11-14T22:13:20Z"))
    assert member is not None
    assert member.deleting


OPTED_IN = {"kubemend.io/restart": "InPlace"}
RECREATES = {"kubemend.io/owner-recreates-pods": "true"}
CUSTOM = Owner("example.com", "Trainer", "llama", "u")
RECREATING = (
    ("", "ReplicationController"),
    ("apps", "DaemonSet"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("batch", "Job"),
    ("kubeflow.org", "MPIJob"),
    ("kubeflow.org", "PyTorchJob"),
    ("ray.io", "RayCluster"),
)


@pytest.mark.parametrize(
    ("changes", "namespaces", "bar"),
    [
        ({}, (), None),
        ({"annotations": {}}, (), Bar.NOT_OPTED_IN),
        ({"annotations": {}}, ("team",), None),
        ({"annotations": {"kubemend.io/restart": "Never"}}, (), Bar.NOT_OPTED_IN),
        ({"owner": None}, ("team",), Bar.NO_CONTROLLER),
        ({"owner": Owner("", "Node", "node-0", "u")}, (), Bar.NO_CONTROLLER),
        ({"owner": Owner("argoproj.io", "Workflow", "steps", "u")}, (), Bar.UNKNOWN_OWNER),
        ({"owner": Owner("example.com", "Job", "steps", "u")}, ("team",), Bar.UNKNOWN_OWNER),
        ({"owner": Owner("", "Pod", "driver", "u")}, (), Bar.UNKNOWN_OWNER),
        (
            {"owner": CUSTOM, "annotations": OPTED_IN | {gangs.OWNER_RECREATES: "false"}},
            (),
            Bar.UNKNOWN_OWNER,
        ),
        ({"owner": CUSTOM, "annotations": OPTED_IN | RECREATES}, (), None),
        ({"owner": CUSTOM, "annotations": RECREATES}, (), Bar.NOT_OPTED_IN),
        (
            {"owner": None, "annotations": OPTED_IN | RECREATES},
            (),
            Bar.NO_CONTROLLER,
        ),
        *(({"owner": Owner(group, kind, "o", "u")}, (), None) for group, kind in RECREATING),
    ],
)
def test_only_opted_in_pod_with_owner_that_recreates_it_may_be_deleted(
    changes: dict[str, Any], namespaces: tuple[str, ...], bar: Bar | None
) -> None:
    assert members.bar(builders.member(0, **changes), namespaces=frozenset(namespaces)) is bar


def test_owner_of_unknown_kind_is_named_with_what_to_do() -> None:
    of_unknown = builders.member(0, owner=replace(CUSTOM, kind="T" * 5000))
    assert members.kept(builders.member(0, owner=CUSTOM), Bar.UNKNOWN_OWNER) == (
        "its pod is not deleted: OwnerMayNotRecreate (kind Trainer.example.com; if llama creates a new one, annotate "
        'the pod template with kubemend.io/owner-recreates-pods: "true")'
    )
    assert len(members.kept(of_unknown, Bar.UNKNOWN_OWNER)) < 500
    assert members.kept(builders.member(0), Bar.NOT_OPTED_IN) == "its pod is not deleted: NotOptedIn"


@pytest.mark.parametrize(
    ("api_version", "kind", "at_random"),
    [
        ("v1", "ReplicationController", True),
        ("apps/v1", "ReplicaSet", True),
        ("batch/v1", "Job", True),
        ("ray.io/v1", "RayCluster", True),
        ("apps/v1", "StatefulSet", False),
        ("kubeflow.org/v1", "PyTorchJob", False),
        ("example.com/v1", "ReplicaSet", False),
    ],
)
def test_new_pod_of_any_name_replaces_one_of_an_owner_that_names_at_random(
    api_version: str, kind: str, *, at_random: bool
) -> None:
    owner = {"apiVersion": api_version, "kind": kind, "name": "train", "uid": "u1", "controller": True}
    found = members.member(pod(labels={"kubemend.io/gang": "llm"}, ownerReferences=[owner]))
    assert found is not None
    assert members.interchangeable(found) is at_random


def test_pod_of_an_indexed_job_is_replaced_by_its_index_only() -> None:
    found = members.member(pod())
    assert found is not None
    assert not members.interchangeable(found)


def test_by_slot_prefers_the_pod_that_can_run() -> None:
    failed = builders.member(0, phase=PodPhase.FAILED, created_at=5.0)
    leaving = builders.member(0, generation=1, deleting=True, created_at=4.0)
    old = builders.member(0, generation=3, created_at=1.0)
    new = builders.member(0, generation=2, created_at=2.0)
    other = builders.member(1)
    found = members.by_slot([other, failed, new, leaving, old])
    assert list(found.items()) == [("train/0", new), ("train/1", other)]
    assert members.by_slot([failed, leaving])["train/0"] is leaving


def test_long_annotation_is_cut_but_still_refused() -> None:
    member = members.member(pod(annotations={"kubemend.io/restart": "InPlace", "kubemend.io/hold": "x" * 250_000}))
    assert member is not None
    assert len(member.annotations["kubemend.io/hold"]) < 2000
    with pytest.raises(gang_options.BadAnnotationError, match="longer than"):
        gang_options.of([member])


@pytest.mark.parametrize(
    "huge",
    [
        {"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "x" * 10**6, "uid": "u", "controller": True}]},
    ],
    ids=["owner"],
)
def test_oversized_member_stays_in_gang_that_is_not_restarted(huge: dict[str, Any]) -> None:
    whole = members.member(pod(**huge))
    assert whole is not None
    bounds = shares.Bounds(
        members.bare,
        one=members.MOST_OF_A_MEMBER,
        namespace=members.MOST_OF_A_NAMESPACE,
        total=members.MOST_OF_A_WATCH,
    )
    member = shares.Shares(bounds).fit("uid-1", whole, namespace="team")
    assert shares.weight(member) < 5000
    assert (member.pod, member.gang, member.node, member.phase) == (whole.pod, whole.gang, whole.node, whole.phase)
    with pytest.raises(gang_options.BadAnnotationError, match="not kept: the pod has more than 64 KiB"):
        gang_options.of([member])
    assert members.bar(member) is Bar.NOT_OPTED_IN
