"""Suspending and resuming: upstream's suspendJobs and resumeJobsIfNecessary."""

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob, CreateService, DeleteJob, ResumeJob, SuspendJob
from kubemend.controller.jobset.spec.model import FailurePolicy, Status
from tests.unit.jobset import builders
from tests.unit.jobset.builders import RESTARTING

SUSPENDED = builders.jobset(suspend=True)


def test_suspended_jobset_creates_suspended_jobs_and_service() -> None:
    plan = decide.decide(builders.observed(SUSPENDED, has_service=False))
    created = [write for group in plan.writes for write in group if isinstance(write, CreateJob)]
    assert [each.body["spec"]["suspend"] for each in created] == [True, True]
    assert builders.names(plan, CreateService) == ["js"]


def test_unsuspended_jobset_sets_suspend_false() -> None:
    plan = decide.decide(builders.observed(builders.jobset()))
    created = [write for group in plan.writes for write in group if isinstance(write, CreateJob)]
    assert [each.body["spec"]["suspend"] for each in created] == [False, False]


def test_suspending_keeps_finished_jobs() -> None:
    owner = builders.jobset(builders.replicated(replicas=4), suspend=True)
    jobs = (
        builders.ready("w-0"),
        builders.job("w-1", suspended=True),
        builders.succeeded("w-2"),
        builders.ready("w-3", deleting=True),
    )
    plan = decide.decide(builders.observed(owner, *jobs))
    assert builders.names(plan, SuspendJob) == ["js-w-0"]
    assert builders.names(plan, DeleteJob) == []


def test_running_jobs_are_suspended_before_creations() -> None:
    owner = builders.jobset(builders.replicated(replicas=3), suspend=True, status=Status(restarts=1))
    jobs = (builders.ready("w-0", attempt=1), builders.ready("w-1"))
    plan = decide.decide(builders.observed(owner, *jobs, has_service=False))
    assert [[type(write) for write in group] for group in plan.writes] == [
        [DeleteJob, SuspendJob],
        [CreateService],
        [CreateJob],
    ]


def test_suspending_has_upstreams_message() -> None:
    plan = decide.decide(builders.observed(SUSPENDED, builders.ready("w-0"), builders.ready("w-1")))
    assert builders.new_condition(plan, "Suspended") == (True, "SuspendedJobs", "jobset is suspended")
    assert builders.events(plan) == [("Normal", "SuspendedJobs", "jobset is suspended")]


def test_suspended_jobset_ends_restarting_condition() -> None:
    owner = builders.jobset(suspend=True, status=Status(conditions=(builders.condition(RESTARTING),)))
    plan = decide.decide(builders.observed(owner, builders.ready("w-0"), builders.ready("w-1")))
    assert builders.new_condition(plan, RESTARTING) == (False, "JobSetSuspended", "jobset is suspended")
    assert [reason for _, reason, _ in builders.events(plan)] == ["SuspendedJobs", "JobSetSuspended"]


def test_suspended_jobset_does_not_report_ready_jobs() -> None:
    conditions = (
        builders.condition(RESTARTING, status=False, reason="JobSetSuspended", message="jobset is suspended"),
    )
    owner = builders.jobset(suspend=True, status=Status(conditions=conditions))
    plan = decide.decide(builders.observed(owner, builders.ready("w-0"), builders.ready("w-1")))
    assert builders.new_condition(plan, RESTARTING) == (False, "JobSetSuspended", "jobset is suspended")


def test_suspended_jobs_are_counted() -> None:
    plan = decide.decide(
        builders.observed(SUSPENDED, builders.job("w-0", suspended=True), builders.job("w-1", suspended=True))
    )
    found = builders.counts(plan)["w"]
    assert (found.suspended, found.active, found.ready) == (2, 0, 0)


def test_resuming_resumes_only_suspended_jobs() -> None:
    jobs = (builders.job("w-0", suspended=True, template={}), builders.ready("w-1"))
    plan = decide.decide(builders.observed(builders.jobset(), *jobs))
    assert builders.names(plan, ResumeJob) == ["js-w-0"]


def test_suspended_job_being_deleted_is_not_resumed() -> None:
    plan = decide.decide(
        builders.observed(builders.jobset(), builders.job("w-0", suspended=True, template={}, deleting=True))
    )
    assert builders.names(plan, ResumeJob) == []


def test_started_job_has_its_start_cleared() -> None:
    jobs = (
        builders.job("w-0", suspended=True, template={}, started=True),
        builders.job("w-1", suspended=True, template={}),
    )
    plan = decide.decide(builders.observed(builders.jobset(), *jobs))
    resumed = {each.name: each.clear_start for group in plan.writes for each in group if isinstance(each, ResumeJob)}
    assert resumed == {"js-w-0": True, "js-w-1": False}


def test_replicated_jobs_are_resumed_in_order_of_spec() -> None:
    owner = builders.jobset(builders.replicated("b", replicas=1), builders.replicated("a", replicas=1))
    jobs = (builders.job("a-0", suspended=True, template={}), builders.job("b-0", suspended=True, template={}))
    plan = decide.decide(builders.observed(owner, *jobs))
    assert [[write.name for write in group if isinstance(write, ResumeJob)] for group in plan.writes] == [
        ["js-b-0"],
        ["js-a-0"],
    ]


def test_resuming_is_reported_only_after_suspension() -> None:
    jobs = (builders.ready("w-0"), builders.ready("w-1"))
    owner = builders.jobset(status=Status(conditions=(builders.condition("Suspended"),)))
    plan = decide.decide(builders.observed(owner, *jobs))
    assert builders.new_condition(plan, "Suspended") == (False, "ResumeJobs", "jobset is resumed")
    assert builders.events(plan) == [("Normal", "ResumeJobs", "jobset is resumed")]
    assert builders.new_condition(decide.decide(builders.observed(builders.jobset(), *jobs)), "Suspended") is None


def test_failure_is_handled_while_suspended() -> None:
    owner = builders.jobset(suspend=True, failure=FailurePolicy(max_restarts=1))
    plan = decide.decide(builders.observed(owner, builders.failed("w-0"), builders.job("w-1", suspended=True)))
    assert plan.status is not None
    assert plan.status.restarts == 1


def test_suspending_and_resuming_cost_no_restart() -> None:
    before = builders.settled(builders.jobset(failure=FailurePolicy()), builders.ready("w-0"), builders.ready("w-1"))
    for suspend in (True, False, True, False):
        before = builders.carried_out(builders.with_spec(before, suspend=suspend))
    assert before.jobset.status.restarts == 0
    assert before.jobset.status.restarts_counted == 0
    assert before.jobset.status.terminal_state == ""
    assert not any(each.suspended for each in before.jobs)
