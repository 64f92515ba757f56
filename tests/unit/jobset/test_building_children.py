"""The Service, PersistentVolumeClaims and their volumes, and the request for a reset."""

from typing import Any

import pytest

from controller.jobset import building
from controller.restarts import names, objects
from tests.unit.jobset.manifests import jobset, replicated

OWNER = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train", "uid": "0b7e55ab-uid"}
CONTROLLER = {**OWNER, "controller": True, "blockOwnerDeletion": True}
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def claim(name: str = "data", **metadata: Any) -> dict[str, Any]:
    """A claim's template."""
    return {"metadata": {"name": name, **metadata}, "spec": SPEC}


def mounting(*names_: str, kind: str = "containers") -> dict[str, Any]:
    """A replicated Job with a container that mounts these."""
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in names_]
    return replicated(pods={kind: [{"name": "m", "image": "i", "volumeMounts": mounts}]})


def volumes(*policies: dict[str, Any], of: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The volumes of a Job's pods."""
    owner = jobset(of, volumeClaimPolicies=list(policies))
    body = building.job(owner, owner.spec.replicated_jobs[0], 0, attempt=0)
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
def test_the_service_is_headless_and_called_as_the_subdomain(network: dict[str, Any], name: str, publish: bool) -> None:
    assert building.service(jobset(network=network)) == {
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


def test_without_policies_there_are_no_claims() -> None:
    assert building.claims(jobset()) == ()
    assert volumes(of=mounting("data")) is None


def test_a_claim_is_made_of_its_template() -> None:
    template = claim(labels={"tier": "fast", "jobset.sigs.k8s.io/jobset-name": "other"}, annotations={"a": "b"})
    (body,) = building.claims(jobset(volumeClaimPolicies=[{"templates": [template]}]))
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
def test_a_claim_goes_with_its_jobset_unless_it_is_retained(policy: dict[str, Any], goes: bool) -> None:
    (body,) = building.claims(jobset(volumeClaimPolicies=[{"templates": [claim()], **policy}]))
    assert ("ownerReferences" in body["metadata"]) is goes


def test_claims_come_in_the_order_of_their_policies() -> None:
    policies = [{"templates": [claim("b"), claim("a")]}, {"templates": [claim("c")]}]
    found = building.claims(jobset(volumeClaimPolicies=policies))
    assert [body["metadata"]["name"] for body in found] == ["b-train", "a-train", "c-train"]


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_pod_gets_volumes_for_what_its_containers_mount(kind: str) -> None:
    policies = [{"templates": [claim("data"), claim("unused")]}, {"templates": [claim("checkpoints")]}]
    assert volumes(*policies, of=mounting("checkpoints", "data", kind=kind)) == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-train"}},
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints-train"}},
    ]


def test_a_job_that_mounts_none_gets_none() -> None:
    assert volumes({"templates": [claim()]}, of=replicated()) is None


def test_mounts_without_a_name_and_claims_without_a_spec_are_the_api_servers_to_refuse() -> None:
    mounts = [{"mountPath": "/data"}, {"name": None}]
    unnamed = replicated(pods={"containers": [{"name": "main", "image": "i", "volumeMounts": mounts}]})
    assert volumes({"templates": [{"metadata": {"name": "data"}}]}, of=unnamed) is None
    owner = jobset(volumeClaimPolicies=[{"templates": [{"metadata": {"name": "data"}}]}])
    assert [each["spec"] for each in building.claims(owner)] == [{}]


def test_its_own_volumes_stay() -> None:
    one = mounting("data")
    one["template"]["spec"]["template"]["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    found = volumes({"templates": [claim()]}, of=one)
    assert found is not None
    assert [each["name"] for each in found] == ["scratch", "data"]


def test_a_reset_is_a_request_that_our_rounds_understand() -> None:
    owner = jobset(generation=7)
    write = building.reset(owner)
    made = {"uid": "uid-restart", "creationTimestamp": "2026-01-31T08:00:00Z"}
    read = objects.parse({**write.body, "metadata": {**write.body["metadata"], **made}})
    assert read.is_request
    assert read.gang is not None
    assert (str(read.gang), read.spec.strategy) == ("ml/JobSet/train", "reset")
    assert write.body["metadata"]["ownerReferences"] == [OWNER]
    assert (write.body["apiVersion"], write.body["kind"]) == (names.API_VERSION, names.KIND)


def test_a_reset_is_asked_for_once_for_one_state_of_the_spec() -> None:
    assert building.reset(jobset(generation=7)) == building.reset(jobset(generation=7))
    assert building.reset(jobset(generation=7)).name != building.reset(jobset(generation=8)).name
