"""What a changed template means for a Job: nothing, a reset in place, or another Job."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.jobset import changes
from controller.jobset.changes import Change, MadeOf
from controller.jobset.model import ChildJob, JobEnd
from tests.unit.jobset.manifests import jobset, replicated

CONTAINER = {"name": "main", "image": "train:1", "env": [{"name": "LR", "value": "0.1"}]}
BASE: dict[str, Any] = {"job": {"parallelism": 2, "completions": 2}, "pods": {"containers": [CONTAINER]}}


def wanted(**fields: Any) -> MadeOf:
    """What a Job made of this template now would be made of."""
    return changes.made_of(jobset(replicated(**{**BASE, **fields})).spec.replicated_jobs[0])


def job(made_of: MadeOf | str | None = None, **fields: Any) -> ChildJob:
    """A Job made of the template as it was."""
    return ChildJob(name="train-w-0", uid="uid-0", made_of=str(wanted() if made_of is None else made_of), **fields)


def container(**fields: Any) -> dict[str, Any]:
    """The template with a container that has these."""
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


def test_the_same_template_is_no_change() -> None:
    assert changes.what_changed(wanted(), job()) is Change.NOTHING


@pytest.mark.parametrize("change", FIXED.values(), ids=FIXED.keys())
def test_what_pods_cannot_take_on_recreates_the_job_even_a_suspended_one(change: dict[str, Any]) -> None:
    assert changes.what_changed(wanted(**change), job()) is Change.RECREATE
    assert changes.what_changed(wanted(**change), job(suspended=True)) is Change.RECREATE


@pytest.mark.parametrize("change", PLACEMENT.values(), ids=PLACEMENT.keys())
def test_another_placement_recreates_the_job_but_a_suspended_one_gets_it_by_its_resume(change: dict[str, Any]) -> None:
    assert changes.what_changed(wanted(**change), job()) is Change.RECREATE
    assert changes.what_changed(wanted(**change), job(suspended=True)) is Change.NOTHING


@pytest.mark.parametrize("change", CONFIG.values(), ids=CONFIG.keys())
def test_other_annotations_reset_the_pods_but_a_suspended_job_gets_them_by_its_resume(change: dict[str, Any]) -> None:
    assert changes.what_changed(wanted(**change), job()) is Change.RESET
    assert changes.what_changed(wanted(**change), job(suspended=True)) is Change.NOTHING


def test_the_most_that_is_needed_is_done() -> None:
    both = wanted(**{**CONFIG["annotations"], **PLACEMENT["node selector"]})
    assert changes.what_changed(both, job()) is Change.RECREATE


@pytest.mark.parametrize("made_of", ["", "v1", "v1:a:b:c", "v0:" + "0" * 16, "v1:" + ":".join(["G" * 16] * 3), "::::"])
def test_a_job_that_does_not_tell_is_left_as_it_is(made_of: str) -> None:
    assert MadeOf.parse(made_of) is None
    assert changes.what_changed(wanted(**FIXED["image"]), job(made_of)) is Change.NOTHING


def test_a_job_of_another_version_s_words_is_left_as_it_is() -> None:
    assert changes.what_changed(wanted(**FIXED["image"]), job("v2" + str(wanted())[2:])) is Change.NOTHING


@pytest.mark.parametrize("fields", [{"deleting": True}, {"end": JobEnd(failed=False)}, {"end": JobEnd(failed=True)}])
def test_a_job_that_is_over_or_goes_is_left_as_it_is(fields: dict[str, Any]) -> None:
    assert changes.what_changed(wanted(**FIXED["image"]), job(**fields)) is Change.NOTHING


def test_after_a_reset_was_asked_for_the_job_is_as_wanted() -> None:
    now = wanted(**CONFIG["annotations"])
    assert changes.what_changed(now, job(changes.noted_by_reset(now)["kubemend.io/made-of"])) is Change.NOTHING


def test_after_a_resume_only_what_it_could_not_merge_is_left() -> None:
    now = wanted(**{**PLACEMENT["node selector"], **CONFIG["annotations"]})
    noted = changes.noted_by_resume(now, job())["kubemend.io/made-of"]
    assert changes.what_changed(now, job(noted)) is Change.NOTHING
    assert changes.what_changed(wanted(**FIXED["image"]), job(noted)) is Change.RECREATE


def test_suspending_and_what_the_job_itself_is_labelled_with_change_nothing() -> None:
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
def test_what_a_go_client_writes_its_own_way_is_no_change(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert wanted(**one) == wanted(**other)


@pytest.mark.parametrize("value", [True, None])
def test_a_flag_that_says_no_is_not_one_that_says_nothing(value: bool | None) -> None:
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
def test_any_template_has_one_hash_whatever_the_order_of_its_fields(pods: dict[str, Any]) -> None:
    turned = json.loads(json.dumps(copy.deepcopy(pods)))
    backwards = dict(reversed(turned.items()))
    made = wanted(pods={**BASE["pods"], **pods})
    assert made == wanted(pods={**BASE["pods"], **backwards})
    assert MadeOf.parse(str(made)) == made
