"""Jobs that were created from another template than the current one."""

from dataclasses import replace
from typing import Any

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import AnnotateJob, CreateJob, DeleteJob, Plan, RequestRestart, ResumeJob, World
from kubemend.controller.jobset.policy import template_drift
from kubemend.controller.jobset.spec.model import FailurePolicy, RestartStrategy
from kubemend.controller.restarts import names, objects
from tests.unit.jobset import manifests, worlds


def running(failure: FailurePolicy | None = worlds.IN_PLACE) -> World:
    """Return a settled JobSet of two running Jobs."""
    return worlds.settled(worlds.jobset(failure=failure), worlds.ready("w-0"), worlds.ready("w-1"))


def changed(before: World, *, pod_annotations: dict[str, str] | None = None, **pod: Any) -> World:
    """Return the world after a change of the pod template."""
    template = worlds.template(**pod)
    if pod_annotations is not None:
        template["spec"]["template"]["metadata"] = {"annotations": pod_annotations}
    return worlds.with_spec(before, replicated_jobs=(worlds.replicated(template=template),))


OWNER = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train", "uid": "0b7e55ab-uid"}
NEW_IMAGE = [{"name": "main", "image": "train:2"}]


def test_new_image_recreates_jobs_without_a_restart() -> None:
    plan = decide.decide(changed(running(), containers=NEW_IMAGE))
    assert worlds.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (0, 0)
    assert worlds.counts(plan)["w"].ready == 0


def test_new_placement_recreates_jobs() -> None:
    plan = decide.decide(changed(running(), nodeSelector={"pool": "b"}))
    assert worlds.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]


def test_recreated_jobs_are_up_to_date() -> None:
    after = worlds.carried_out(changed(running(), containers=NEW_IMAGE))
    assert [each.uid for each in after.jobs] == ["uid-js-w-0-0", "uid-js-w-1-0"]
    assert decide.decide(after) == Plan()


def test_blocking_recreate_waits_for_outdated_jobs() -> None:
    blocking = FailurePolicy(strategy=RestartStrategy.BLOCKING_RECREATE)
    before = worlds.settled(worlds.jobset(failure=blocking), worlds.ready("w-0"))
    gone = replace(changed(before, containers=NEW_IMAGE), jobs=before.jobs[:1])
    assert worlds.names(decide.decide(gone), CreateJob) == []


def test_new_annotations_reset_gang_once_and_are_recorded() -> None:
    before = changed(running(), pod_annotations={"checksum/config": "2"})
    plan = decide.decide(before)
    assert [[type(write) for write in group] for group in plan.writes] == [
        [RequestRestart],
        [AnnotateJob, AnnotateJob],
    ]
    assert decide.decide(worlds.applied(before, plan)) == Plan()


def test_reset_waits_until_all_jobs_exist() -> None:
    owner = worlds.jobset(worlds.replicated("a", 1), worlds.replicated("b", 1), failure=worlds.IN_PLACE)
    before = worlds.settled(owner, worlds.ready("a-0"), worlds.ready("b-0"))
    noted = worlds.template()
    noted["spec"]["template"]["metadata"] = {"annotations": {"checksum/config": "2"}}
    both = worlds.with_spec(
        before,
        replicated_jobs=(
            worlds.replicated("a", 1, template=worlds.template(containers=NEW_IMAGE)),
            worlds.replicated("b", 1, template=noted),
        ),
    )
    deleting = decide.decide(both)
    assert worlds.names(deleting, DeleteJob) == ["js-a-0"]
    assert worlds.names(deleting, RequestRestart) == worlds.names(deleting, AnnotateJob) == []
    gone = decide.decide(worlds.applied(both, deleting))
    assert worlds.names(gone, AnnotateJob) == ["js-b-0"]
    assert len(worlds.names(gone, RequestRestart)) == 1


def test_without_rounds_new_annotations_recreate_jobs() -> None:
    plan = decide.decide(changed(running(FailurePolicy()), pod_annotations={"checksum/config": "2"}))
    assert worlds.names(plan, RequestRestart) == []
    assert worlds.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]


def test_changes_while_suspended_delete_nothing() -> None:
    preempted = worlds.with_spec(changed(running(), nodeSelector={"pool": "b"}), suspend=True)
    plan = decide.decide(preempted)
    assert worlds.names(plan, DeleteJob) == []


def test_mergeable_change_recreates_no_suspended_job() -> None:
    asleep = worlds.carried_out(worlds.with_spec(running(), suspend=True))
    plan = decide.decide(worlds.with_spec(changed(asleep, nodeSelector={"pool": "b"}), suspend=False))
    assert worlds.names(plan, DeleteJob) == []
    assert worlds.names(plan, ResumeJob) == ["js-w-0", "js-w-1"]


def test_unmergeable_change_recreates_suspended_job() -> None:
    asleep = worlds.carried_out(worlds.with_spec(running(), suspend=True))
    plan = decide.decide(worlds.with_spec(changed(asleep, containers=NEW_IMAGE), suspend=False))
    assert worlds.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]
    assert worlds.names(plan, ResumeJob) == []


def test_ended_job_is_kept() -> None:
    before = worlds.settled(worlds.jobset(failure=worlds.IN_PLACE), worlds.succeeded("w-0"), worlds.ready("w-1"))
    plan = decide.decide(changed(before, containers=NEW_IMAGE))
    assert worlds.names(plan, DeleteJob) == ["js-w-1"]


def test_finished_jobset_only_deletes_running_jobs() -> None:
    before = worlds.settled(worlds.jobset(failure=None), worlds.failed("w-0"), worlds.ready("w-1"))
    plan = decide.decide(changed(before, containers=NEW_IMAGE))
    assert plan.writes == (), "what ran was deleted when it finished"
    assert worlds.names_of(before.jobs) == ["js-w-0"]


def test_reset_is_a_valid_request_for_rounds() -> None:
    owner = manifests.jobset(generation=7)
    write = template_drift.reset_request(owner)
    made = {"uid": "uid-restart", "creationTimestamp": "2026-01-31T08:00:00Z"}
    read = objects.parse({**write.body, "metadata": {**write.body["metadata"], **made}})
    assert read.is_request
    assert read.gang is not None
    assert (str(read.gang), read.spec.strategy) == ("ml/JobSet/train", "reset")
    assert write.body["metadata"]["ownerReferences"] == [OWNER]
    assert (write.body["apiVersion"], write.body["kind"]) == (names.API_VERSION, names.KIND)


def test_reset_is_requested_once_per_generation() -> None:
    one, again, next_one = (
        template_drift.reset_request(manifests.jobset(generation=generation)) for generation in (7, 7, 8)
    )
    assert one == again
    assert one.name != next_one.name
