"""A resume merges into a suspended Job: the merges that Kueue relies on, without upstream's two defects."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.jobset import children
from kubemend.controller.jobset.plan import ResumeJob
from kubemend.controller.jobset.policy import template_changes
from kubemend.controller.jobset.spec.model import ChildJob
from tests.unit.jobset.manifests import jobset, replicated

PARTS = {"labels": "metadata", "annotations": "metadata", "nodeSelector": "spec", "tolerations": "spec"}
WAIT = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
OURS = {"name": "kubemend.io/exclusive-placement"}
THEIRS = {"name": "kueue.x-k8s.io/topology"}


def asleep(part: str | None = None, value: Any = None, **fields: Any) -> ChildJob:
    """Return a suspended Job whose template has this."""
    template: dict[str, Any] = {"metadata": {}, "spec": {}}
    if part is not None:
        template[PARTS.get(part, "spec")][part] = value
    return ChildJob(name="train-w-0", uid="uid-0", suspended=True, template=template, **fields)


def resumed(job: ChildJob, part: str | None = None, value: Any = None) -> ResumeJob:
    """Return its resume with this JobSet's template."""
    if part is None:
        one = replicated()
    elif PARTS.get(part) == "metadata":
        one = replicated(pod_metadata={part: value})
    else:
        one = replicated(pods={part: value})
    (write,) = children.resume(jobset(one).spec.replicated_jobs[0], [job])
    return write


@pytest.mark.parametrize("part", ["labels", "annotations", "nodeSelector"])
def test_jobsets_values_override_and_jobs_other_values_stay(part: str) -> None:
    write = resumed(asleep(part, {"a": "old", "b": "old"}), part, {"b": "new", "c": "new"})
    assert write.template[PARTS[part]] == {part: {"a": "old", "b": "new", "c": "new"}}


@pytest.mark.parametrize("part", ["labels", "annotations", "nodeSelector"])
def test_values_of_either_side_are_kept(part: str) -> None:
    assert resumed(asleep(part, {"a": "old"})).template[PARTS[part]] == {part: {"a": "old"}}
    assert resumed(asleep(), part, {"a": "new"}).template[PARTS[part]] == {part: {"a": "new"}}


def test_absent_values_are_not_sent() -> None:
    write = resumed(asleep())
    assert write.template == {"metadata": {}, "spec": {}}


def test_gates_are_merged_in_fixed_order() -> None:
    write = resumed(asleep("schedulingGates", [OURS]), "schedulingGates", [THEIRS, OURS])
    assert write.template["spec"]["schedulingGates"] == [OURS, THEIRS]


def test_toleration_with_seconds_is_added_once() -> None:
    once = resumed(asleep("tolerations", [WAIT]), "tolerations", [dict(WAIT)])
    assert once.template["spec"]["tolerations"] == [WAIT]
    longer = {**WAIT, "tolerationSeconds": 600}
    other = resumed(asleep("tolerations", [WAIT]), "tolerations", [longer])
    assert other.template["spec"]["tolerations"] == [WAIT, longer]


tolerations = st.lists(
    st.fixed_dictionaries({"key": st.sampled_from("abc")}, optional={"tolerationSeconds": st.integers(0, 2)}),
    max_size=5,
)


@given(old=tolerations, new=tolerations)
def test_second_resume_changes_nothing(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    first = resumed(asleep("tolerations", old), "tolerations", new).template["spec"].get("tolerations", [])
    assert [each for each in first if each not in old and each not in new] == []
    assert all(each in first for each in (*old, *new))
    again = resumed(asleep("tolerations", first), "tolerations", new).template["spec"].get("tolerations", [])
    assert again == first


@pytest.mark.parametrize("started", [True, False])
def test_started_job_has_its_start_cleared(started: bool) -> None:
    assert resumed(asleep(started=started)).clear_start is started


def test_each_job_is_resumed_by_name_and_uid() -> None:
    one = jobset().spec.replicated_jobs[0]
    jobs = [ChildJob(name=f"train-w-{i}", uid=f"uid-{i}", suspended=True, template={}) for i in range(3)]
    assert [(each.name, each.uid) for each in children.resume(one, jobs)] == [(job.name, job.uid) for job in jobs]


def test_resume_records_merged_hashes() -> None:
    before = jobset().spec.replicated_jobs[0]
    one = jobset(replicated(pods={"nodeSelector": {"pool": "a"}})).spec.replicated_jobs[0]
    (write,) = children.resume(one, [asleep(made_of=str(template_changes.made_of(before)))])
    assert write.annotations == {"kubemend.io/made-of": str(template_changes.made_of(one))}


def test_resume_does_not_record_unmerged_hash() -> None:
    before = jobset().spec.replicated_jobs[0]
    one = jobset(replicated(pods={"hostNetwork": True})).spec.replicated_jobs[0]
    (write,) = children.resume(one, [asleep(made_of=str(template_changes.made_of(before)))])
    assert write.annotations == {"kubemend.io/made-of": str(template_changes.made_of(before))}


def test_job_without_hashes_gets_no_annotation() -> None:
    assert resumed(asleep()).annotations == {}
