"""Jobs that were created from another template than the current one."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import (
    AnnotateJob,
    CreateJob,
    DeleteJob,
    ObservedState,
    Plan,
    RequestRestart,
    ResumeJob,
)
from kubemend.controller.jobset.policy import in_place, template_drift
from kubemend.controller.jobset.spec.model import FailurePolicy, JobEnd, RestartStrategy
from kubemend.controller.restarts import names, objects
from tests.unit.jobset import builders, manifests


def running(failure: FailurePolicy | None = builders.IN_PLACE) -> ObservedState:
    """Return a settled JobSet of two running Jobs."""
    return builders.settled(builders.jobset(failure=failure), builders.ready("w-0"), builders.ready("w-1"))


def changed(before: ObservedState, *, pod_annotations: dict[str, str] | None = None, **pod: Any) -> ObservedState:
    """Return the observed after a change of the pod template."""
    template = builders.template(**pod)
    if pod_annotations is not None:
        template["spec"]["template"]["metadata"] = {"annotations": pod_annotations}
    return builders.with_spec(before, replicated_jobs=(builders.replicated(template=template),))


OWNER = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train", "uid": "0b7e55ab-uid"}
NEW_IMAGE = [{"name": "main", "image": "train:2"}]


def test_new_image_recreates_jobs_without_a_restart() -> None:
    plan = decide.decide(changed(running(), containers=NEW_IMAGE))
    assert builders.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (0, 0)
    assert builders.counts(plan)["w"].ready == 0


def test_new_placement_recreates_jobs() -> None:
    plan = decide.decide(changed(running(), nodeSelector={"pool": "b"}))
    assert builders.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]


def test_recreated_jobs_are_up_to_date() -> None:
    after = builders.carried_out(changed(running(), containers=NEW_IMAGE))
    assert [each.uid for each in after.jobs] == ["uid-js-w-0-0", "uid-js-w-1-0"]
    assert decide.decide(after) == Plan()


def test_blocking_recreate_waits_for_outdated_jobs() -> None:
    blocking = FailurePolicy(strategy=RestartStrategy.BLOCKING_RECREATE)
    before = builders.settled(builders.jobset(failure=blocking), builders.ready("w-0"))
    gone = replace(changed(before, containers=NEW_IMAGE), jobs=before.jobs[:1])
    assert builders.names(decide.decide(gone), CreateJob) == []


def going(before: ObservedState, *names: str, **fields: Any) -> ObservedState:
    """Return the observed while these Jobs are being deleted."""
    jobs = (replace(job, deleting=True, **fields) if job.name in names else job for job in before.jobs)
    return replace(before, jobs=tuple(jobs))


def test_blocking_recreate_waits_for_outdated_jobs_that_are_being_deleted() -> None:
    blocking = FailurePolicy(strategy=RestartStrategy.BLOCKING_RECREATE)
    one_gone = going(changed(running(blocking), containers=NEW_IMAGE), "js-w-1")
    one_gone = replace(one_gone, jobs=one_gone.jobs[1:])
    assert builders.names(decide.decide(one_gone), CreateJob) == []


@pytest.mark.parametrize("failure", [None, FailurePolicy(), FailurePolicy(max_restarts=3)])
def test_outdated_job_that_fails_by_its_deletion_is_no_failure(failure: FailurePolicy | None) -> None:
    """With ``backoffLimit: 0`` the Job controller may mark it as failed for the pods that its deletion ends."""
    end = JobEnd(failed=True, reason="BackoffLimitExceeded", at=builders.NOW)
    plan = decide.decide(going(changed(running(failure), containers=NEW_IMAGE), "js-w-0", "js-w-1", end=end))
    assert builders.events(plan) == []
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.terminal_state, builders.counts(plan)["w"].failed) == (0, "", 0)


def test_no_round_begins_while_an_outdated_job_is_being_deleted() -> None:
    observed = going(changed(running(), containers=NEW_IMAGE), "js-w-0")
    observed = replace(observed, jobs=observed.jobs[:1])
    assert in_place.policy(observed).closed == in_place.Closed.RECREATING


def test_reset_waits_for_outdated_job_that_is_being_deleted() -> None:
    owner = builders.jobset(builders.replicated("a", 1), builders.replicated("b", 1), failure=builders.IN_PLACE)
    noted = builders.template()
    noted["spec"]["template"]["metadata"] = {"annotations": {"checksum/config": "2"}}
    of_a = builders.replicated("a", 1, template=builders.template(containers=NEW_IMAGE))
    both = builders.with_spec(
        builders.settled(owner, builders.ready("a-0"), builders.ready("b-0")),
        replicated_jobs=(of_a, builders.replicated("b", 1, template=noted)),
    )
    assert builders.names(decide.decide(going(both, "js-a-0")), RequestRestart) == []


def test_job_that_is_being_deleted_is_not_reset() -> None:
    plan = decide.decide(going(changed(running(), pod_annotations={"checksum/config": "2"}), "js-w-0", "js-w-1"))
    assert builders.names(plan, RequestRestart) == []


def test_new_annotations_reset_gang_once_and_are_recorded() -> None:
    before = changed(running(), pod_annotations={"checksum/config": "2"})
    plan = decide.decide(before)
    assert [[type(write) for write in group] for group in plan.writes] == [
        [RequestRestart],
        [AnnotateJob, AnnotateJob],
    ]
    assert decide.decide(builders.applied(before, plan)) == Plan()


def test_reset_waits_until_all_jobs_exist() -> None:
    owner = builders.jobset(builders.replicated("a", 1), builders.replicated("b", 1), failure=builders.IN_PLACE)
    before = builders.settled(owner, builders.ready("a-0"), builders.ready("b-0"))
    noted = builders.template()
    noted["spec"]["template"]["metadata"] = {"annotations": {"checksum/config": "2"}}
    both = builders.with_spec(
        before,
        replicated_jobs=(
            builders.replicated("a", 1, template=builders.template(containers=NEW_IMAGE)),
            builders.replicated("b", 1, template=noted),
        ),
    )
    deleting = decide.decide(both)
    assert builders.names(deleting, DeleteJob) == ["js-a-0"]
    assert builders.names(deleting, RequestRestart) == builders.names(deleting, AnnotateJob) == []
    gone = decide.decide(builders.applied(both, deleting))
    assert builders.names(gone, AnnotateJob) == ["js-b-0"]
    assert len(builders.names(gone, RequestRestart)) == 1


def test_without_rounds_new_annotations_recreate_jobs() -> None:
    plan = decide.decide(changed(running(FailurePolicy()), pod_annotations={"checksum/config": "2"}))
    assert builders.names(plan, RequestRestart) == []
    assert builders.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]


def test_changes_while_suspended_delete_nothing() -> None:
    preempted = builders.with_spec(changed(running(), nodeSelector={"pool": "b"}), suspend=True)
    plan = decide.decide(preempted)
    assert builders.names(plan, DeleteJob) == []


def test_mergeable_change_recreates_no_suspended_job() -> None:
    asleep = builders.carried_out(builders.with_spec(running(), suspend=True))
    plan = decide.decide(builders.with_spec(changed(asleep, nodeSelector={"pool": "b"}), suspend=False))
    assert builders.names(plan, DeleteJob) == []
    assert builders.names(plan, ResumeJob) == ["js-w-0", "js-w-1"]


def test_unmergeable_change_recreates_suspended_job() -> None:
    asleep = builders.carried_out(builders.with_spec(running(), suspend=True))
    plan = decide.decide(builders.with_spec(changed(asleep, containers=NEW_IMAGE), suspend=False))
    assert builders.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]
    assert builders.names(plan, ResumeJob) == []


def test_ended_job_is_kept() -> None:
    before = builders.settled(
        builders.jobset(failure=builders.IN_PLACE), builders.succeeded("w-0"), builders.ready("w-1")
    )
    plan = decide.decide(changed(before, containers=NEW_IMAGE))
    assert builders.names(plan, DeleteJob) == ["js-w-1"]


def test_finished_jobset_only_deletes_running_jobs() -> None:
    before = builders.settled(builders.jobset(failure=None), builders.failed("w-0"), builders.ready("w-1"))
    plan = decide.decide(changed(before, containers=NEW_IMAGE))
    assert plan.writes == (), "what ran was deleted when it finished"
    assert builders.names_of(before.jobs) == ["js-w-0"]


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
