"""The JobSet resource: what its definition accepts, defaults and refuses, and how it reads."""

import asyncio
import re
from typing import Any

import pytest

from hack.devnode import kubernetes
from kubemend.common.kube import client, errors
from kubemend.controller.jobset import writing
from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import Condition, ReplicatedJobStatus, Status
from tests.contract.api import jobsets
from tests.control_plane import ControlPlane
from tests.unit.jobset import refused, refused_changes, written
from tests.unit.jobset.refused import Case
from tests.unit.jobset.refused_changes import Change
from tests.unit.jobset.written import jobset, replicated

STATUS = Status(
    conditions=(
        Condition("Suspended", status=False, reason="ResumeJobs", message="jobset is resumed", since=1769846400.0),
        Condition("kubemend.io/InPlaceRestart", status=True, reason="Restarting", message="", since=1769846401.0),
    ),
    restarts=2,
    restarts_counted=1,
    terminal_state="Completed",
    replicated_jobs=(
        ReplicatedJobStatus("driver", succeeded=1),
        ReplicatedJobStatus("workers", ready=1, active=2, job_restarts=(0, 3), job_restarts_counted=(0, 1)),
    ),
    previous_in_place=0,
    current_in_place=1,
)


@pytest.fixture(autouse=True)
async def resource(api: client.KubeClient) -> None:
    """The definition is installed."""
    await jobsets.install(api)


async def create(api: client.KubeClient, namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
    """Create it as upstream's, so that our policy does not apply."""
    return await api.create(jobsets.collection(namespace), jobsets.others(obj))


@pytest.mark.parametrize("case", refused.BY_SCHEMA, ids=lambda case: case.name)
async def test_what_the_schema_forbids_is_refused(api: client.KubeClient, namespace: str, case: Case) -> None:
    with pytest.raises(errors.InvalidError, match=re.escape(case.answer)):
        await create(api, namespace, case.refused)
    await create(api, namespace, case.allowed)


def managed(by: str) -> dict[str, Any]:
    """Return a JobSet of this manager."""
    return written.changed(jobset(), lambda spec: spec.update(managedBy=by))


@pytest.mark.parametrize(
    ("manager", "refusal"),
    [
        ("", "should match"),
        ("kubemend.io", "should match"),
        ("/jobset-controller", "should match"),
        ("kubemend.io/", "should match"),
        ("Kubemend.io/jobset-controller", "should match"),
        ("kubemend.io/jobset controller", "should match"),
        (f"a.io/{'x' * 59}", "Too long"),
    ],
)
async def test_a_manager_is_a_path_with_a_domain_as_upstreams_webhook_has_it(
    api: client.KubeClient, namespace: str, manager: str, refusal: str
) -> None:
    with pytest.raises(errors.InvalidError, match=refusal):
        await api.create(jobsets.collection(namespace), managed(manager))


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "a/b", f"a.io/{'x' * 58}", "a.io/B_c/d~e"])
async def test_any_path_with_a_domain_can_be_a_manager(api: client.KubeClient, namespace: str, manager: str) -> None:
    made = await api.create(jobsets.collection(namespace), managed(manager))
    assert made["spec"]["managedBy"] == manager


@pytest.mark.parametrize("case", refused.BY_DEFINITION, ids=lambda case: case.name)
async def test_what_a_rule_of_the_definition_forbids_is_refused(
    api: client.KubeClient, namespace: str, case: Case
) -> None:
    with pytest.raises(errors.InvalidError, match=re.escape(case.answer)):
        await create(api, namespace, case.refused)
    await create(api, namespace, case.allowed)


@pytest.mark.parametrize("change", refused_changes.BY_DEFINITION, ids=lambda change: change.name)
async def test_immutable_fields_cannot_be_changed(api: client.KubeClient, namespace: str, change: Change) -> None:
    before = await create(api, namespace, change.before)
    path = f"{jobsets.collection(namespace)}/{before['metadata']['name']}"
    version = {"resourceVersion": before["metadata"]["resourceVersion"]}
    with pytest.raises(errors.InvalidError, match=change.answer):
        await api.update(path, _of_version(jobsets.others(change.refused), version))
    await api.update(path, _of_version(jobsets.others(change.allowed), version))


def test_every_rule_of_the_definition_has_a_case() -> None:
    cases = [case.answer for case in refused.BY_DEFINITION]
    cases += [change.answer for change in refused_changes.BY_DEFINITION]
    rules = [rule["message"] for rule in _rules(*jobsets.documents("crd.yaml"))]
    assert sorted(rules) == sorted(cases)


async def test_defaults_are_upstreams(api: client.KubeClient, namespace: str) -> None:
    policies: list[dict[str, Any]] = [{"retentionPolicy": {}}]
    made = await create(api, namespace, jobset(failurePolicy={"maxRestarts": 1}, volumeClaimPolicies=policies))
    (job,) = made["spec"]["replicatedJobs"]
    assert (job["replicas"], job["groupName"]) == (1, "default")
    assert made["spec"]["failurePolicy"] == {"maxRestarts": 1, "restartStrategy": "Recreate"}
    assert made["spec"]["volumeClaimPolicies"] == [{"retentionPolicy": {"whenDeleted": "Delete"}}]
    assert {"network", "successPolicy", "startupPolicy"}.isdisjoint(made["spec"])


async def test_template_is_stored_unchanged(api: client.KubeClient, namespace: str) -> None:
    container = {
        "name": "main",
        "image": "trainer",
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": 8}},
        "volumeMounts": [{"name": "cache", "mountPath": "/cache", "subPath": "a"}],
        "ofANewerKubernetes": {"some": ["thing"]},
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "cache", "emptyDir": {"medium": "Memory"}}],
        "tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 30}],
        "schedulingGates": [{"name": "example.com/wait"}],
        "affinity": {"podAffinity": {}},
    }
    template = written.template(pod=pod, backoffLimitPerIndex=1, podFailurePolicy={"rules": []})
    template["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "creationTimestamp": "x"}
    made = await create(api, namespace, jobset({"name": "workers", "template": template}))
    del template["metadata"]["creationTimestamp"]  # upstream's drops it, too
    assert made["spec"]["replicatedJobs"][0]["template"] == template


async def test_a_status_is_written_and_read_whole(api: client.KubeClient, namespace: str) -> None:
    made = await create(api, namespace, jobset(replicated("driver"), replicated("workers")))
    path = f"{jobsets.collection(namespace)}/train"
    body = {**made, "spec": {}, "status": writing.status_json(STATUS)}
    written = await api.update(f"{path}/status", body)
    assert reading.jobset(written).status == STATUS
    assert written["spec"] == made["spec"]


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "Failed"}]},
        {"replicatedJobsStatus": [{"name": "workers"}]},
        {"restarts": "1"},
        {"currentInPlaceRestartAttempt": -1},
    ],
    ids=str,
)
async def test_half_a_status_is_refused(api: client.KubeClient, namespace: str, status: dict[str, Any]) -> None:
    made = await create(api, namespace, jobset())
    with pytest.raises(errors.InvalidError):
        await api.update(f"{jobsets.collection(namespace)}/train/status", {**made, "status": status})


async def test_kubectl_shows_the_columns_of_upstream(
    api: client.KubeClient, namespace: str, control_plane: ControlPlane
) -> None:
    made = await create(api, namespace, jobset(suspend=True))
    over = Condition("Completed", status=True, reason="AllJobsCompleted", message="", since=1769846400.0)
    status = writing.status_json(Status(conditions=(over,), restarts=2, terminal_state="Completed"))
    await api.update(f"{jobsets.collection(namespace)}/train/status", {**made, "status": status})
    process = await asyncio.create_subprocess_exec(
        kubernetes.program("kubectl"), "--kubeconfig", control_plane.kubeconfig, "--namespace", namespace,
        "get", "jobset", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    header, line = output.decode().splitlines()
    assert header.split() == ["NAME", "TERMINALSTATE", "RESTARTS", "COMPLETED", "SUSPENDED", "AGE"]
    assert line.split()[:-1] == ["train", "Completed", "2", "True", "true"]


def _of_version(obj: dict[str, Any], version: dict[str, str]) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], **version}}


def _rules(schema: Any) -> list[dict[str, str]]:
    """Return all CEL rules below here."""
    if isinstance(schema, list):
        return [rule for each in schema for rule in _rules(each)]
    if not isinstance(schema, dict):
        return []
    return [*schema.get("x-kubernetes-validations", ()), *(rule for each in schema.values() for rule in _rules(each))]
