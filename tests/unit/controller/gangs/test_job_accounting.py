"""Which replaced pods a Job counts as failed."""

from typing import Any

import pytest

from kubemend.common import conditions
from kubemend.controller.gangs import job_accounting
from tests.unit.controller.gangs.test_members import pod

TRACKED = {"finalizers": ["example.com/wait", job_accounting.FINALIZER]}
LOST = [conditions.DISRUPTION_TARGET]
DEVICE = [conditions.DISRUPTION_TARGET, conditions.DEVICE_FAILURE]
MARKED = {"conditions": [{"type": conditions.DISRUPTION_TARGET, "status": "True"}]}


def owners(kind: str, api_version: str) -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": api_version, "kind": kind, "name": "x", "uid": "u", "controller": True}]}


def in_phase(phase: str, **metadata: Any) -> dict[str, Any]:
    return {**pod(**metadata), "status": {"phase": phase}}


def rule(kind: str, action: str, **more: str) -> dict[str, Any]:
    return {"action": action, "onPodConditions": [{"type": kind, "status": "True", **more}]}


def job(*rules: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {**({"podFailurePolicy": {"rules": [*rules]}} if rules else {}), **spec}}


EXIT_CODES = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}}


def test_running_pod_with_finalizer_is_counted_by_its_job() -> None:
    assert job_accounting.counting_job(pod(**TRACKED)) == "train"


@pytest.mark.parametrize(
    "found",
    [
        pod(),
        pod(finalizers=["example.com/wait"]),
        pod(**TRACKED, ownerReferences=[]),
        pod(**TRACKED, **owners("ReplicaSet", "apps/v1")),
        pod(**TRACKED, **owners("Job", "batch.volcano.sh/v1alpha1")),
        in_phase("Succeeded", **TRACKED),
        in_phase("Failed", **TRACKED),
    ],
    ids=["no finalizers", "another's finalizer", "no owner", "ReplicaSet", "Volcano's Job", "succeeded", "failed"],
)
def test_other_pods_are_not_counted_by_a_job_or_have_ended_by_themselves(found: dict[str, Any]) -> None:
    assert job_accounting.counting_job(found) is None


@pytest.mark.parametrize(
    ("found", "marks", "may"),
    [
        (job(), LOST, True),
        (job(managedBy="kubernetes.io/job-controller"), LOST, True),
        (job(managedBy="kueue.x-k8s.io/multikueue"), LOST, False),
        (job(rule(conditions.DISRUPTION_TARGET, "Ignore")), LOST, True),
        (job(rule(conditions.DISRUPTION_TARGET, "FailJob")), LOST, False),
        (job(rule(conditions.DISRUPTION_TARGET, "Count")), LOST, False),
        (job(rule(conditions.DISRUPTION_TARGET, "FailJob", status="False")), LOST, True),
        (job(rule(conditions.DEVICE_FAILURE, "FailIndex")), LOST, True),
        (job(rule(conditions.DEVICE_FAILURE, "FailIndex")), DEVICE, False),
        (job(rule(conditions.DEVICE_FAILURE, "Ignore"), rule(conditions.DISRUPTION_TARGET, "Count")), DEVICE, True),
        (job(rule(conditions.DISRUPTION_TARGET, "Count"), rule(conditions.DEVICE_FAILURE, "Ignore")), DEVICE, False),
        (job(EXIT_CODES, rule(conditions.DISRUPTION_TARGET, "Ignore")), LOST, True),
        (job({"action": "Count", "onPodConditions": [{"type": conditions.DISRUPTION_TARGET}]}), LOST, False),
        ({}, LOST, True),
    ],
)
def test_first_rule_for_the_marks_decides(found: dict[str, Any], marks: list[str], may: bool) -> None:
    assert job_accounting.may_leave_out(found, marks=marks) is may


def found(*, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return the Job as it is now."""
    return {"metadata": {"uid": "u"}, "spec": {"parallelism": 2, "completions": 2, **spec}, "status": status or {}}


@pytest.mark.parametrize(
    ("job", "index", "replaces"),
    [
        (found(), "1", True),
        (found(), "2", False),
        (found(completions=None), "2", True),
        (found(), "train-x2k4p", True),
        (found(), "9" * 5000, False),
        (found(parallelism=0), "1", False),
        (found(suspend=True), "1", False),
        (found(status={"conditions": [{"type": "FailureTarget", "status": "True"}]}), "1", False),
        (found(status={"conditions": [{"type": "Failed", "status": "True"}]}), "1", False),
        (found(status={"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}), "1", False),
        (found(status={"conditions": [{"type": "Complete", "status": "True"}]}), "1", False),
        (found(status={"conditions": [{"type": "Suspended", "status": "True"}]}), "1", True),
        ({**found(), "metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "1", False),
        ({**found(completions=0), "metadata": {"uid": "another"}}, "1", True),
        (None, "1", False),
    ],
)
def test_job_replaces_its_pods_while_it_runs_their_index(
    job: dict[str, Any] | None, index: str, replaces: bool
) -> None:
    assert job_accounting.replaces(job, uid="u", index=index, others=1) is replaces


@pytest.mark.parametrize("index", ["1", "train-x2k4p"])
def test_job_replaces_no_pod_while_it_has_as_many_as_it_runs_at_a_time(index: str) -> None:
    assert job_accounting.replaces(found(completions=8), uid="u", index=index, others=1)
    assert not job_accounting.replaces(found(completions=8), uid="u", index=index, others=2)


def test_marked_pod_without_finalizer_is_left_out() -> None:
    assert job_accounting.is_left_out({**pod(), "status": {"phase": "Running", **MARKED}})


def test_pod_without_finalizer_is_left_out_after_kubernetes_has_taken_the_mark_back() -> None:
    taken_back = {"conditions": [{"type": conditions.DISRUPTION_TARGET, "status": "False"}]}
    assert job_accounting.is_left_out({**pod(), "status": {"phase": "Running", **taken_back}})


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        ({}, {"phase": "Running"}),
        ({}, {"phase": "Failed", **MARKED}),
        ({}, {"phase": "Succeeded", **MARKED}),
        (TRACKED, {"phase": "Running", **MARKED}),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"phase": "Running", **MARKED}),
        (owners("StatefulSet", "apps/v1"), {"phase": "Running", **MARKED}),
    ],
    ids=["not marked", "failed", "succeeded", "counted", "deleting", "of no Job"],
)
def test_other_pods_are_not_left_out(metadata: dict[str, Any], status: dict[str, Any]) -> None:
    assert not job_accounting.is_left_out({**pod(**metadata), "status": status})
