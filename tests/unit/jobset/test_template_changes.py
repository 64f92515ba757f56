"""The effect of a changed template on a Job: nothing, a reset in place, or a new Job."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.jobset.policy import template_changes
from kubemend.controller.jobset.policy.template_changes import Change, TemplateHash
from kubemend.controller.jobset.spec.model import ChildJob, JobEnd
from tests.unit.jobset.manifests import jobset, replicated

CONTAINER = {"name": "main", "image": "train:1", "env": [{"name": "LR", "value": "0.1"}]}
BASE: dict[str, Any] = {"job": {"parallelism": 2, "completions": 2}, "pods": {"containers": [CONTAINER]}}


def wanted(**fields: Any) -> TemplateHash:
    """Return the hashes of a Job created from this template."""
    return template_changes.made_of(jobset(replicated(**{**BASE, **fields})).spec.replicated_jobs[0])


def job(made_of: TemplateHash | str | None = None, **fields: Any) -> ChildJob:
    """Return a Job created from the old template."""
    return ChildJob(name="train-w-0", uid="uid-0", made_of=str(wanted() if made_of is None else made_of), **fields)


def container(**fields: Any) -> dict[str, Any]:
    """Return the template with a container that has these fields."""
    return {"pods": {"containers": [{**CONTAINER, **fields}]}}


FIXED = {
    "image": container(image="train:2"),
    "environment": container(env=[{"name": "LR", "value": "0.2"}]),
    "resources": container(resources={"limits": {"nvidia.com/gpu": 8}}),
    "volumes": {"pods": {**BASE["pods"], "volumes": [{"name": "v", "emptyDir": {}}]}},
    "affinity": {"pods": {**BASE["pods"], "affinity": {"nodeAffinity": {"preferred": [1]}}}},
    "parallelism": {"job": {"parallelism": 3, "completions": 2}},
    "no backoff": {"job": {**BASE["job"], "backoffLimit": 0}},
    "completion mode": {"job": {**BASE["job"], "completionMode": "NonIndexed"}},
}
PLACEMENT = {
    "node selector": {"pods": {**BASE["pods"], "nodeSelector": {"pool": "a"}}},
    "tolerations": {"pods": {**BASE["pods"], "tolerations": [{"key": "gpu", "operator": "Exists"}]}},
    "gates": {"pods": {**BASE["pods"], "schedulingGates": [{"name": "g"}]}},
    "labels": {"pod_metadata": {"labels": {"a": "b"}}},
}
CONFIG = {"annotations": {"pod_metadata": {"annotations": {"checksum/config": "abc"}}}}


def test_same_template_is_no_change() -> None:
    assert template_changes.what_changed(wanted(), job()) is Change.NOTHING


@pytest.mark.parametrize("change", FIXED.values(), ids=FIXED.keys())
def test_fixed_change_recreates_even_suspended_job(change: dict[str, Any]) -> None:
    assert template_changes.what_changed(wanted(**change), job()) is Change.RECREATE
    assert template_changes.what_changed(wanted(**change), job(suspended=True)) is Change.RECREATE


@pytest.mark.parametrize("change", PLACEMENT.values(), ids=PLACEMENT.keys())
def test_placement_change_recreates_unless_suspended(change: dict[str, Any]) -> None:
    assert template_changes.what_changed(wanted(**change), job()) is Change.RECREATE
    assert template_changes.what_changed(wanted(**change), job(suspended=True)) is Change.NOTHING


@pytest.mark.parametrize("change", CONFIG.values(), ids=CONFIG.keys())
def test_annotation_change_resets_unless_suspended(change: dict[str, Any]) -> None:
    assert template_changes.what_changed(wanted(**change), job()) is Change.RESET
    assert template_changes.what_changed(wanted(**change), job(suspended=True)) is Change.NOTHING


def test_strongest_change_wins() -> None:
    both = wanted(**{**CONFIG["annotations"], **PLACEMENT["node selector"]})
    assert template_changes.what_changed(both, job()) is Change.RECREATE


@pytest.mark.parametrize("made_of", ["", "v1", "v1:a:b:c", "v0:" + "0" * 16, "v1:" + ":".join(["G" * 16] * 3), "::::"])
def test_job_without_hashes_is_kept(made_of: str) -> None:
    assert TemplateHash.parse(made_of) is None
    assert template_changes.what_changed(wanted(**FIXED["image"]), job(made_of)) is Change.NOTHING


def test_job_with_other_hash_version_is_kept() -> None:
    assert template_changes.what_changed(wanted(**FIXED["image"]), job("v2" + str(wanted())[2:])) is Change.NOTHING


@pytest.mark.parametrize("failed", [False, True])
def test_finished_job_is_kept(failed: bool) -> None:
    assert template_changes.what_changed(wanted(**FIXED["image"]), job(end=JobEnd(failed))) is Change.NOTHING


@pytest.mark.parametrize("end", [None, JobEnd(failed=True)])
def test_job_that_is_being_deleted_is_recreated(end: JobEnd | None) -> None:
    assert template_changes.what_changed(wanted(**FIXED["image"]), job(deleting=True, end=end)) is Change.RECREATE


def test_requested_reset_marks_job_up_to_date() -> None:
    now = wanted(**CONFIG["annotations"])
    assert (
        template_changes.what_changed(now, job(template_changes.noted_by_reset(now)["kubemend.io/made-of"]))
        is Change.NOTHING
    )


def test_resume_leaves_only_unmergeable_changes() -> None:
    now = wanted(**{**PLACEMENT["node selector"], **CONFIG["annotations"]})
    noted = template_changes.noted_by_resume(now, job())["kubemend.io/made-of"]
    assert template_changes.what_changed(now, job(noted)) is Change.NOTHING
    assert template_changes.what_changed(wanted(**FIXED["image"]), job(noted)) is Change.RECREATE


def test_suspend_and_own_labels_are_ignored() -> None:
    assert wanted(job={**BASE["job"], "suspend": True}) == wanted()
    assert wanted(template={"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}) == wanted()


SAME = {
    "empty resources": (container(), container(resources={})),
    "a quantity's writing": (
        container(resources={"limits": {"cpu": "1000m", "memory": "1024Mi", "nvidia.com/gpu": 8}}),
        container(resources={"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "8"}}),
    ),
    "a port's protocol": (
        container(ports=[{"containerPort": 80}]),
        container(ports=[{"containerPort": 80, "protocol": "TCP"}]),
    ),
    "an empty value": (container(env=[{"name": "A"}]), container(env=[{"name": "A", "value": ""}])),
    "a flag that is false": ({}, {"pods": {**BASE["pods"], "hostNetwork": False}}),
    "a number that is 0": (
        container(ports=[{"containerPort": 1}]),
        container(ports=[{"containerPort": 1, "hostPort": 0}]),
    ),
    "null": ({}, {"pods": {**BASE["pods"], "securityContext": None}}),
    "no creation time": ({}, {"pod_metadata": {"creationTimestamp": None}}),
    "an empty selector": ({}, {"pods": {**BASE["pods"], "nodeSelector": {}, "tolerations": []}}),
    "a default": ({}, {"pods": {**BASE["pods"], "restartPolicy": "OnFailure"}}),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_go_clients_rewriting_is_no_change(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert wanted(**one) == wanted(**other)


@pytest.mark.parametrize("value", [True, None])
def test_explicit_false_pointer_is_a_change(value: bool | None) -> None:
    no = wanted(pods={**BASE["pods"], "automountServiceAccountToken": False})
    assert wanted(pods={**BASE["pods"], "automountServiceAccountToken": value}) != no


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "1000m"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "limits"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["affinity", "volumes_", "limits", "x"]), values, max_size=4))
def test_hash_is_independent_of_field_order(pods: dict[str, Any]) -> None:
    turned = json.loads(json.dumps(copy.deepcopy(pods)))
    backwards = dict(reversed(turned.items()))
    made = wanted(pods={**BASE["pods"], **pods})
    assert made == wanted(pods={**BASE["pods"], **backwards})
    assert TemplateHash.parse(str(made)) == made
