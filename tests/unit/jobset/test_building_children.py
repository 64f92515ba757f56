"""The Service, PersistentVolumeClaims and their volumes."""

from typing import Any

import pytest

from kubemend.controller.jobset import children
from tests.unit.jobset.manifests import jobset, replicated

OWNER = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train", "uid": "0b7e55ab-uid"}
CONTROLLER = {**OWNER, "controller": True, "blockOwnerDeletion": True}
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def claim(name: str = "data", **metadata: Any) -> dict[str, Any]:
    """Return a claim's template."""
    return {"metadata": {"name": name, **metadata}, "spec": SPEC}


def mounting(*names_: str, kind: str = "containers") -> dict[str, Any]:
    """Return a replicated Job with a container that mounts these."""
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in names_]
    return replicated(pods={kind: [{"name": "m", "image": "i", "volumeMounts": mounts}]})


def volumes(*policies: dict[str, Any], of: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the volumes of a Job's pods."""
    owner = jobset(of, volumeClaimPolicies=list(policies))
    body = children.job(owner, owner.spec.replicated_jobs[0], 0, attempt=0)
    found: list[dict[str, Any]] | None = body["spec"]["template"]["spec"].get("volumes")
    return found


@pytest.mark.parametrize(
    ("network", "name", "publish"),
    [
        ({}, "train", True),
        ({"subdomain": "net"}, "net", True),
        ({"publishNotReadyAddresses": False}, "train", False),
    ],
)
def test_service_is_headless_and_named_as_subdomain(network: dict[str, Any], name: str, publish: bool) -> None:
    assert children.service(jobset(network=network)) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "labels": {"jobset.sigs.k8s.io/jobset-name": "train"},
            "ownerReferences": [CONTROLLER],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {"jobset.sigs.k8s.io/jobset-name": "train"},
            "publishNotReadyAddresses": publish,
        },
    }


def test_no_policies_give_no_claims() -> None:
    assert children.claims(jobset()) == ()
    assert volumes(of=mounting("data")) is None


def test_claim_is_built_from_template() -> None:
    template = claim(labels={"tier": "fast", "jobset.sigs.k8s.io/jobset-name": "other"}, annotations={"a": "b"})
    (body,) = children.claims(jobset(volumeClaimPolicies=[{"templates": [template]}]))
    assert body == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data-train",
            "namespace": "ml",
            "labels": {"tier": "fast", "jobset.sigs.k8s.io/jobset-name": "train"},
            "annotations": {"a": "b"},
            "ownerReferences": [CONTROLLER],
        },
        "spec": SPEC,
    }


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        ({}, True),
        ({"retentionPolicy": {}}, True),
        ({"retentionPolicy": {"whenDeleted": "Delete"}}, True),
        ({"retentionPolicy": {"whenDeleted": "Retain"}}, False),
    ],
)
def test_claim_is_owned_unless_retained(policy: dict[str, Any], goes: bool) -> None:
    (body,) = children.claims(jobset(volumeClaimPolicies=[{"templates": [claim()], **policy}]))
    assert ("ownerReferences" in body["metadata"]) is goes


def test_claims_are_in_order_of_policies() -> None:
    policies = [{"templates": [claim("b"), claim("a")]}, {"templates": [claim("c")]}]
    found = children.claims(jobset(volumeClaimPolicies=policies))
    assert [body["metadata"]["name"] for body in found] == ["b-train", "a-train", "c-train"]


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_pod_gets_volumes_that_its_containers_mount(kind: str) -> None:
    policies = [{"templates": [claim("data"), claim("unused")]}, {"templates": [claim("checkpoints")]}]
    assert volumes(*policies, of=mounting("checkpoints", "data", kind=kind)) == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-train"}},
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints-train"}},
    ]


def test_job_without_mounts_gets_no_volumes() -> None:
    assert volumes({"templates": [claim()]}, of=replicated()) is None


def test_invalid_mounts_and_claims_are_left_to_api_server() -> None:
    mounts = [{"mountPath": "/data"}, {"name": None}]
    unnamed = replicated(pods={"containers": [{"name": "main", "image": "i", "volumeMounts": mounts}]})
    assert volumes({"templates": [{"metadata": {"name": "data"}}]}, of=unnamed) is None
    owner = jobset(volumeClaimPolicies=[{"templates": [{"metadata": {"name": "data"}}]}])
    assert [each["spec"] for each in children.claims(owner)] == [{}]


def test_own_volumes_stay() -> None:
    one = mounting("data")
    one["template"]["spec"]["template"]["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    found = volumes({"templates": [claim()]}, of=one)
    assert found is not None
    assert [each["name"] for each in found] == ["scratch", "data"]
