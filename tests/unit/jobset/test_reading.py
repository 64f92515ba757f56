"""JobSets and Jobs from objects of the API: defaults, kept fields, and rejected values."""

import contextlib
import copy
import dataclasses
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import (
    Action,
    ClaimPolicy,
    Condition,
    Coordinator,
    Dependency,
    DependencyStatus,
    FailurePolicy,
    FailureRule,
    JobEnd,
    Network,
    Operator,
    ReplicatedJobStatus,
    RestartStrategy,
    Retention,
    Spec,
    StartupOrder,
    Status,
    SuccessPolicy,
)
from kubemend.controller.jobset.spec.reading import InvalidFieldError
from tests.unit.jobset import written

Json = dict[str, Any]

POD: Json = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "containers": [{"name": "main", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "cache", "emptyDir": {}}],
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "schedulingGates": [{"name": "example.com/wait"}],
        "restartPolicy": "Never",
    },
}
JOBSET: Json = {
    "metadata": {
        "namespace": "here",
        "name": "train",
        "uid": "u-1",
        "resourceVersion": "12",
        "generation": 3,
        "creationTimestamp": "2026-01-31T08:00:00Z",
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
    },
    "spec": {
        "replicatedJobs": [
            {"name": "driver", "template": {"spec": {"template": {"spec": {"containers": []}}}}},
            {
                "name": "workers",
                "replicas": 4,
                "groupName": "big",
                "dependsOn": [{"name": "driver", "status": "Complete"}],
                "template": {"spec": {"parallelism": 2, "completions": 2, "completionMode": "X", "template": POD}},
            },
        ],
        "network": {"enableDNSHostnames": False, "subdomain": "net", "publishNotReadyAddresses": False},
        "successPolicy": {"operator": "Any", "targetReplicatedJobs": ["driver"]},
        "failurePolicy": {
            "maxRestarts": 3,
            "restartStrategy": "InPlaceRestart",
            "rules": [
                {"action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
                {
                    "name": "oom",
                    "action": "RestartJobAndIgnoreMaxRestarts",
                    "onJobFailureMessagePatterns": ["O+M"],
                    "targetReplicatedJobs": ["workers"],
                },
            ],
        },
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
        "suspend": True,
        "coordinator": {"replicatedJob": "driver", "jobIndex": 1, "podIndex": 2},
        "managedBy": "kubemend.io/jobset-controller",
        "ttlSecondsAfterFinished": 0,
        "volumeClaimPolicies": [
            {"templates": [{"metadata": {"name": "data"}, "spec": {}}], "retentionPolicy": {"whenDeleted": "Retain"}},
        ],
    },
    "status": {
        "restarts": 2,
        "restartsCountTowardsMax": 1,
        "terminalState": "Failed",
        "previousInPlaceRestartAttempt": 0,
        "currentInPlaceRestartAttempt": 1,
        "conditions": [
            {"type": "Failed", "status": "True", "reason": "R", "message": "m",
             "lastTransitionTime": "2026-01-31T08:00:01Z"},
            {"type": "Suspended", "status": "Unknown"},
        ],
        "replicatedJobsStatus": [
            {"name": "workers", "ready": 1, "succeeded": 2, "failed": 3, "active": 4, "suspended": 5,
             "jobRestarts": [0, 7], "jobRestartsCountTowardsMax": [0, 6]},
        ],
    },
}  # fmt: skip
JOB: Json = {
    "metadata": {
        "name": "train-workers-1",
        "uid": "u-2",
        "resourceVersion": "13",
        "labels": {
            naming.REPLICATED_JOB_NAME: "workers",
            naming.JOB_INDEX: "1",
            naming.RESTART_ATTEMPT: "2",
            naming.JOB_RESTART_ATTEMPT: "3",
        },
        "annotations": {"kubemend.io/made-of": "hashes"},
    },
    "spec": {"parallelism": 4, "completions": 8, "suspend": True, "template": POD},
    "status": {
        "startTime": "2026-01-31T08:00:00Z",
        "active": 1,
        "ready": 2,
        "succeeded": 3,
        "failed": 4,
        "failedIndexes": "1,3-5",
        "conditions": [
            {"type": "Suspended", "status": "True"},
            {"type": "Complete", "status": "False"},
            {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "m",
             "lastTransitionTime": "2026-01-31T08:00:01Z"},
        ],
    },
}  # fmt: skip

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANY_JSON = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=12,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of everything inside an object."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in below for found in ((*path, key), *places(each, (*path, key)))]


def with_other(obj: Json, place: tuple[str | int, ...], other: Any) -> Json:
    """Return a copy with another value at a place."""
    copied = copy.deepcopy(obj)
    at: Any = copied
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = other
    return copied


def minimal(**spec: Any) -> Json:
    return written.there(written.jobset(managed_by=None, **spec))


def test_given_fields_are_read() -> None:
    found = reading.jobset(JOBSET)
    driver, workers = found.spec.replicated_jobs
    assert found.spec == Spec(
        replicated_jobs=(driver, workers),
        network=Network("net", dns_hostnames=False, publish_not_ready=False),
        success=SuccessPolicy(Operator.ANY, targets=("driver",)),
        failure=FailurePolicy(
            max_restarts=3,
            rules=(
                FailureRule("failurePolicyRule0", Action.FAIL_JOBSET, reasons=("DeadlineExceeded",)),
                FailureRule("oom", Action.RESTART_JOB_AND_IGNORE, patterns=("O+M",), targets=("workers",)),
            ),
            strategy=RestartStrategy.IN_PLACE,
        ),
        startup=StartupOrder.IN_ORDER,
        suspend=True,
        coordinator=Coordinator("driver", job_index=1, pod_index=2),
        managed_by="kubemend.io/jobset-controller",
        ttl_seconds=0,
        claim_policies=(ClaimPolicy(({"metadata": {"name": "data"}, "spec": {}},), Retention.RETAIN),),
    )
    assert (workers.replicas, workers.group) == (4, "big")
    assert workers.depends_on == (Dependency("driver", DependencyStatus.COMPLETE),)
    assert (workers.parallelism, workers.completions, workers.pod_template) == (2, 2, POD)
    assert workers.job_spec["completionMode"] == "X"


def test_metadata_and_status_are_read() -> None:
    found = reading.jobset(JOBSET)
    assert (found.namespace, found.name, found.uid) == ("here", "train", "u-1")
    assert (found.resource_version, found.generation, found.created_at) == ("12", 3, 1769846400.0)
    assert (found.labels, found.annotations, found.deleting) == ({"team": "a"}, {"note": "b"}, False)
    assert found.status == Status(
        conditions=(
            Condition("Failed", status=True, reason="R", message="m", since=1769846401.0),
            Condition("Suspended", status=False, reason="", message="", since=0.0),
        ),
        restarts=2,
        restarts_counted=1,
        terminal_state="Failed",
        replicated_jobs=(
            ReplicatedJobStatus(
                "workers", 1, 2, 3, 4, 5, job_restarts=(0, 7), job_restarts_counted=(0, 6),
            ),
        ),
        previous_in_place=0,
        current_in_place=1,
    )  # fmt: skip


def test_absent_fields_get_upstreams_defaults() -> None:
    found = reading.jobset(minimal())
    (job,) = found.spec.replicated_jobs
    assert found.spec == Spec(replicated_jobs=(job,), network=Network("train"))
    assert (job.replicas, job.group, job.depends_on, job.parallelism, job.completions) == (1, "default", (), 1, None)
    assert job.job_spec["completionMode"] == "Indexed"
    assert job.pod_template["spec"]["restartPolicy"] == "OnFailure"
    assert found.status == Status()


def test_defaults_are_not_written_into_object() -> None:
    obj = minimal()
    before = copy.deepcopy(obj)
    reading.jobset(obj)
    assert obj == before


def test_null_counts_as_absent() -> None:
    keys = ("network", "successPolicy", "failurePolicy", "startupPolicy", "suspend", "coordinator", "managedBy")
    nulls = dict.fromkeys((*keys, "ttlSecondsAfterFinished", "volumeClaimPolicies"))
    obj = minimal(**nulls)
    obj["status"] = None
    assert reading.jobset(obj) == reading.jobset(minimal())


def test_empty_failure_policy_allows_no_restart() -> None:
    assert reading.jobset(minimal(failurePolicy={})).spec.failure == FailurePolicy()
    assert reading.jobset(minimal(failurePolicy={"restartStrategy": ""})).spec.failure == FailurePolicy()


def test_deletion_timestamp_is_read() -> None:
    obj = with_other(JOBSET, ("metadata", "deletionTimestamp"), "2026-01-31T08:00:00Z")
    assert reading.jobset(obj).deleting
    assert reading.job(with_other(JOB, ("metadata", "deletionTimestamp"), "2026-01-31T08:00:00Z")).deleting


@pytest.mark.parametrize(
    ("place", "other", "where"),
    [
        (("metadata", "uid"), None, "metadata.uid"),
        (("metadata", "labels", "team"), 1, "metadata.labels[team]"),
        (("metadata", "creationTimestamp"), "yesterday", "metadata.creationTimestamp"),
        (("metadata", "creationTimestamp"), "0001-01-01T00:00:00+01:00", "metadata.creationTimestamp"),
        (("metadata", "creationTimestamp"), "0999-01-01T00:00:00Z", "metadata.creationTimestamp"),
        (("metadata", "creationTimestamp"), "9999-12-31T23:59:59-01:00", "metadata.creationTimestamp"),
        (("spec",), [], "spec"),
        (("spec", "suspend"), "true", "spec.suspend"),
        (("spec", "replicatedJobs", 1, "name"), "", "spec.replicatedJobs[1].name"),
        (("spec", "replicatedJobs", 1, "replicas"), 2**31, "spec.replicatedJobs[1].replicas"),
        (("spec", "replicatedJobs", 1, "replicas"), True, "spec.replicatedJobs[1].replicas"),
        (("spec", "replicatedJobs", 1, "replicas"), 1e300, "spec.replicatedJobs[1].replicas"),
        (("spec", "replicatedJobs", 1, "dependsOn", 0, "status"), None, "spec.replicatedJobs[1].dependsOn[0].status"),
        (("spec", "failurePolicy", "rules", 0, "action"), [], "spec.failurePolicy.rules[0].action"),
        (("spec", "failurePolicy", "restartStrategy"), "Hope", "spec.failurePolicy.restartStrategy"),
        (("spec", "volumeClaimPolicies", 0, "templates", 0), "x", "spec.volumeClaimPolicies[0].templates[0]"),
        (("status", "restarts"), -1, "status.restarts"),
        (("status", "replicatedJobsStatus", 0, "jobRestarts", 0), "1", "status.replicatedJobsStatus[0].jobRestarts"),
    ],
)
def test_invalid_field_raises_with_its_path(place: tuple[str | int, ...], other: Any, where: str) -> None:
    with pytest.raises(InvalidFieldError) as raised:
        reading.jobset(with_other(JOBSET, place, other))
    assert raised.value.where == where
    assert str(raised.value) == f"{where}: {raised.value.what}; {raised.value.hint}"


@pytest.mark.parametrize(
    ("place", "other", "where"),
    [
        (("metadata", "labels"), 1, "metadata.labels"),
        (("spec", "template"), None, "spec.template"),
        (("spec", "template"), 1, "spec.template"),
        (("spec", "template", "spec", "containers", 0, "volumeMounts"), {}, "spec.containers[0].volumeMounts"),
        (("spec", "template", "spec", "volumes", 0, "name"), [], "spec.volumes[0].name"),
        (("spec", "template", "spec", "nodeSelector", "pool"), 1, "spec.nodeSelector[pool]"),
        (("spec", "backoffLimit"), "6", "spec.backoffLimit"),
        (("spec", "podReplacementPolicy"), {}, "spec.podReplacementPolicy"),
    ],
)
def test_used_parts_of_templates_are_checked(place: tuple[str | int, ...], other: Any, where: str) -> None:
    at = ("spec", "replicatedJobs", 1, "template")
    obj = with_other(JOBSET, (*at, "metadata"), {})
    if other is None:  # counts as empty
        assert reading.jobset(with_other(obj, (*at, *place), other)).spec.replicated_jobs[1].pod_template
        return
    with pytest.raises(InvalidFieldError, match=r"spec\.replicatedJobs\[1\]\.template\.") as raised:
        reading.jobset(with_other(obj, (*at, *place), other))
    assert raised.value.where.endswith(where)


def nested(levels: int) -> Json:
    found: Json = {}
    for _ in range(levels):
        found = {"inner": [found]}
    return found


@pytest.mark.parametrize("levels", [40, 400])
def test_too_deep_nesting_raises(levels: int) -> None:
    """The API server accepts ten thousand levels, which would exceed Python's recursion limit."""
    obj = written.there(written.jobset(written.replicated(pod={"futureField": nested(levels)})))
    with pytest.raises(InvalidFieldError, match=r"^spec: is nested too deeply; keep to 64 levels$"):
        reading.jobset(obj)


def test_deep_but_allowed_nesting_is_read() -> None:
    obj = written.there(written.jobset(written.replicated(pod={"futureField": nested(20)})))
    assert reading.jobset(obj).spec.replicated_jobs[0].pod_template["spec"]["futureField"] == nested(20)


def test_targets_and_reasons_of_rule_are_deduplicated() -> None:
    """There may be a hundred thousand of them, and each failed Job is compared with all."""
    twice = {"targetReplicatedJobs": ["b", "a", "b"], "onJobFailureReasons": ["X", "X"]}
    found = reading.jobset(written.there(written.failing({"action": "FailJobSet", **twice})))
    assert found.spec.failure is not None
    assert [(each.targets, each.reasons) for each in found.spec.failure.rules] == [(("b", "a"), ("X",))]


def test_job_is_reduced_to_needed_fields() -> None:
    found = reading.job(JOB)
    assert (found.name, found.uid, found.replicated_job, found.resource_version) == (
        "train-workers-1", "u-2", "workers", "13",
    )  # fmt: skip
    assert (found.index, found.attempt, found.job_attempt, found.made_of) == (1, 2, 3, "hashes")
    assert (found.suspended, found.started, found.deleting) == (True, True, False)
    assert (found.parallelism, found.completions, found.failed_indexes) == (4, 8, "1,3-5")
    assert (found.active, found.ready, found.succeeded, found.failed) == (1, 2, 3, 4)
    assert found.end == JobEnd(failed=True, reason="BackoffLimitExceeded", message="m", at=1769846401.0)


def test_minimal_job_is_read() -> None:
    found = reading.job({"metadata": {"name": "a", "uid": "b"}})
    assert (found.replicated_job, found.index, found.attempt, found.job_attempt) == ("", None, None, None)
    assert (found.parallelism, found.completions, found.end, found.template) == (1, None, None, None)


def test_only_suspended_jobs_mergeable_template_is_kept() -> None:
    kept = {key: POD["spec"][key] for key in ("nodeSelector", "tolerations", "schedulingGates")}
    assert reading.job(JOB).template == {"metadata": POD["metadata"], "spec": kept}
    assert reading.job(with_other(JOB, ("spec", "suspend"), False)).template is None


@pytest.mark.parametrize(
    "text",
    ["", "x", "null", "[]", '{"nodeSelector": 1}', '{"tolerations": [1]}', "[" * 9000, '{"a": "' + "x" * 20_000 + '"}'],
)
def test_invalid_record_of_former_template_is_as_good_as_none(text: str) -> None:
    found = reading.job(with_other(JOB, ("metadata", "annotations", naming.PLACED_BY), text))
    assert found.template is not None
    assert "former" not in found.template


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0", " 1", "1_0", "٣", "2147483647", "2147483648", "9" * 5000])
def test_invalid_label_number_is_none(text: str) -> None:
    found = reading.job(with_other(JOB, ("metadata", "labels", naming.RESTART_ATTEMPT), text))
    assert found.attempt is None


def test_gate_of_jobs_pods_is_read() -> None:
    assert not reading.job(JOB).gated
    gates = [{"name": "example.com/wait"}, {"name": "kubemend.io/exclusive-placement"}]
    assert reading.job(with_other(JOB, ("spec", "template", "spec", "schedulingGates"), gates)).gated


def test_first_true_end_condition_decides() -> None:
    both = [{"type": "Complete", "status": "True"}, {"type": "Failed", "status": "True"}]
    found = reading.job(with_other(JOB, ("status", "conditions"), both))
    assert found.end == JobEnd(failed=False)
    not_yet = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "FailureTarget")]
    assert reading.job(with_other(JOB, ("status", "conditions"), not_yet)).end is None


@pytest.mark.parametrize(
    ("text", "indexes"),
    [("", set()), ("0", {0}), ("1,3-5,7", {1, 3, 4, 5, 7}), ("3-3", {3}), ("5-4", set()), ("0-99999", range(100_000))],
)
def test_indexes_are_parsed(text: str, indexes: Any) -> None:
    assert reading.indexes(text) == set(indexes)


@pytest.mark.parametrize(
    "text", ["x", ",", "1,", "1-", "-1", "1-2-3", " 1", "0-100000", "0-9999999999", "9" * 5000, "0-50000,0-50000"]
)
def test_invalid_or_too_many_indexes_raise(text: str) -> None:
    with pytest.raises(InvalidFieldError):
        reading.indexes(text)


@given(st.frozensets(st.integers(0, 40)))
def test_indexes_round_trip(indexes: frozenset[int]) -> None:
    assert reading.indexes(",".join(map(str, sorted(indexes)))) == indexes


@given(st.text(alphabet="0123456789,-", max_size=20))
def test_any_indexes_are_limited(text: str) -> None:
    with contextlib.suppress(InvalidFieldError):
        assert len(reading.indexes(text)) <= reading.MOST_INDEXES


@given(ANY_JSON)
@example(None)
@example({"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": {"replicatedJobs": [{"name": "x"}]}})
def test_any_json_is_read_or_invalid(obj: Any) -> None:
    for read in (reading.jobset, reading.job):
        with contextlib.suppress(InvalidFieldError):
            assert dataclasses.is_dataclass(read(obj))


@given(st.sampled_from([(JOBSET, place) for place in places(JOBSET)]), ANY_JSON)
def test_any_mutated_jobset_is_read_or_invalid(at: tuple[Json, tuple[str | int, ...]], other: Any) -> None:
    try:
        found = reading.jobset(with_other(*at, other))
    except InvalidFieldError:
        return
    assert all(isinstance(job.parallelism, int) for job in found.spec.replicated_jobs)


@given(st.sampled_from(places(JOB)), ANY_JSON)
def test_any_mutated_job_is_read_or_invalid(place: tuple[str | int, ...], other: Any) -> None:
    try:
        found = reading.job(with_other(JOB, place, other))
    except InvalidFieldError:
        return
    assert found.active >= 0
