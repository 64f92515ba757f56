"""A resume merges into a suspended Job: the merges that Kueue relies on, without upstream's three defects."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.jobset import children
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.plan import ResumeJob
from kubemend.controller.jobset.policy import template_changes
from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import ChildJob
from tests.unit.jobset.manifests import jobset, replicated

PARTS = {"labels": "metadata", "annotations": "metadata", "nodeSelector": "spec", "tolerations": "spec"}
WAIT = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
MADE_OF = str(template_changes.made_of(jobset().spec.replicated_jobs[0]))
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


def admitted_before(**former: Any) -> ChildJob:
    """Return a suspended Job whose pods have from the JobSet's former template what they have, and more of another."""
    spec: dict[str, Any] = {
        "nodeSelector": {**former.get("nodeSelector", {}), "arch": "arm64"},
        "tolerations": [*former.get("tolerations", ()), WAIT],
        "schedulingGates": [*former.get("schedulingGates", ()), OURS],
    }
    return ChildJob("train-w-0", "uid-0", suspended=True, template={"metadata": {}, "spec": spec, "former": former})


def test_what_only_the_former_template_has_set_is_removed() -> None:
    """Kueue restores the template when it evicts a JobSet, and may admit it to another flavor."""
    spot = {"key": "spot", "operator": "Exists"}
    job = admitted_before(nodeSelector={"pool": "a"}, tolerations=[spot], schedulingGates=[THEIRS])
    assert resumed(job, "nodeSelector", {"zone": "b"}).template["spec"] == {
        "nodeSelector": {"pool": None, "arch": "arm64", "zone": "b"},
        "tolerations": [WAIT],
        "schedulingGates": [OURS],
    }


def test_what_both_templates_set_stays() -> None:
    job = admitted_before(nodeSelector={"pool": "a"})
    assert resumed(job, "nodeSelector", {"pool": "a"}).template["spec"]["nodeSelector"] == {
        "pool": "a",
        "arch": "arm64",
    }
    job = admitted_before(tolerations=[THEIRS])
    assert resumed(job, "tolerations", [THEIRS]).template["spec"]["tolerations"] == [THEIRS, WAIT]


def test_value_that_another_client_has_changed_since_stays() -> None:
    job = asleep("nodeSelector", {"pool": "c"})
    assert job.template is not None
    changed = replace(job, template={**job.template, "former": {"nodeSelector": {"pool": "a"}}})
    assert resumed(changed).template["spec"]["nodeSelector"] == {"pool": "c"}


def test_last_value_of_the_former_template_is_removed() -> None:
    job = asleep("tolerations", [WAIT])
    assert job.template is not None
    assert resumed(replace(job, template={**job.template, "former": {"tolerations": [WAIT]}})).template["spec"] == {
        "tolerations": []
    }


def test_job_records_what_its_template_sets_for_the_next_resume() -> None:
    one = jobset(replicated(pods={"nodeSelector": {"pool": "a"}, "tolerations": [WAIT]}))
    made = children.job(one, one.spec.replicated_jobs[0], 0, attempt=0)
    read = reading.job(
        {**made, "metadata": {**made["metadata"], "uid": "u"}, "spec": {**made["spec"], "suspend": True}}
    )
    assert read.template is not None
    assert read.template["former"] == {"nodeSelector": {"pool": "a"}, "tolerations": [WAIT]}
    assert naming.PLACED_BY not in made["spec"]["template"]["metadata"]["annotations"]


def test_template_with_too_much_is_not_recorded() -> None:
    many = [{"key": f"k{index}", "operator": "Exists"} for index in range(1000)]
    one = jobset(replicated(pods={"tolerations": many}))
    made = children.job(one, one.spec.replicated_jobs[0], 0, attempt=0)
    assert naming.PLACED_BY not in made["metadata"]["annotations"]


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
    assert write.annotations == {
        "kubemend.io/made-of": str(template_changes.made_of(one)),
        "kubemend.io/placed-by": '{"nodeSelector": {"pool": "a"}}',
    }


def test_resume_forgets_what_the_template_sets_no_more() -> None:
    (write,) = children.resume(jobset().spec.replicated_jobs[0], [asleep(made_of=MADE_OF)])
    assert write.annotations[naming.PLACED_BY] is None


def test_resume_does_not_record_unmerged_hash() -> None:
    before = jobset().spec.replicated_jobs[0]
    one = jobset(replicated(pods={"hostNetwork": True})).spec.replicated_jobs[0]
    (write,) = children.resume(one, [asleep(made_of=str(template_changes.made_of(before)))])
    assert write.annotations["kubemend.io/made-of"] == str(template_changes.made_of(before))


def test_job_without_hashes_gets_no_annotation() -> None:
    assert resumed(asleep()).annotations == {}
