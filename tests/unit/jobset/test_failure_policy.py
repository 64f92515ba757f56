"""The failure policy: upstream's failure_policy.go."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob, DeleteJob, Plan
from kubemend.controller.jobset.policy import failure_policy as failure
from kubemend.controller.jobset.spec.model import (
    Action,
    ChildJob,
    FailurePolicy,
    FailureRule,
    JobSet,
    ReplicatedJobStatus,
    RestartStrategy,
    Status,
)
from tests.unit.jobset import builders
from tests.unit.jobset.builders import NOW, RESTARTING, failed, rule

RESTART_ALL = (Action.RESTART_JOBSET, Action.RESTART_JOBSET_AND_IGNORE)
RESTART_ONE = (Action.RESTART_JOB, Action.RESTART_JOB_AND_IGNORE)
COUNTING = (Action.RESTART_JOBSET, Action.RESTART_JOB)


def policy(*rules: FailureRule, most: int = 3, strategy: RestartStrategy = RestartStrategy.RECREATE) -> FailurePolicy:
    """Return a failure policy."""
    return FailurePolicy(max_restarts=most, rules=rules, strategy=strategy)


def answered(failure_policy: FailurePolicy | None, *jobs: ChildJob, status: Status | None = None) -> Plan:
    """Return the decision with these Jobs."""
    return decide.decide(builders.observed(builders.jobset(failure=failure_policy, status=status), *jobs))


def of_run(attempt: int, *jobs: ChildJob) -> tuple[ChildJob, ...]:
    """Return these Jobs, of this run."""
    return tuple(replace(each, attempt=attempt) for each in jobs)


# The matching rule and Job

ONE = rule(Action.FAIL_JOBSET, "one", reasons=("DeadlineExceeded",))
TWO = rule(Action.RESTART_JOBSET, "two", reasons=("BackoffLimitExceeded",))
LATE, EARLY = failed("w-0", at=NOW - 5), failed("w-1", at=NOW - 9)


@pytest.mark.parametrize(
    ("met", "fields"),
    [
        pytest.param(True, {}, id="nothing asked"),
        pytest.param(True, {"reasons": ("BackoffLimitExceeded",)}, id="reason"),
        pytest.param(True, {"reasons": ("DeadlineExceeded", "BackoffLimitExceeded")}, id="one of the reasons"),
        pytest.param(False, {"reasons": ("DeadlineExceeded",)}, id="another reason"),
        pytest.param(True, {"targets": ("w",)}, id="target"),
        pytest.param(False, {"targets": ("x",)}, id="another target"),
        pytest.param(True, {"patterns": ("xid \\d+",)}, id="pattern"),
        pytest.param(True, {"patterns": ("oom", "xid")}, id="one of the patterns"),
        pytest.param(False, {"patterns": ("^xid",)}, id="another pattern"),
        pytest.param(True, {"patterns": ("(", "xid")}, id="an invalid pattern is passed over"),
        pytest.param(False, {"patterns": ("(",)}, id="an invalid pattern alone"),
        pytest.param(True, {"reasons": ("BackoffLimitExceeded",), "targets": ("w",), "patterns": ("xid",)}, id="all"),
        pytest.param(False, {"reasons": ("BackoffLimitExceeded",), "targets": ("x",), "patterns": ("xid",)}, id="two"),
        pytest.param(False, {"reasons": ("BackoffLimitExceeded",), "patterns": ("oom",)}, id="reason without pattern"),
    ],
)
def test_rule_matches_reason_message_and_target(fields: dict[str, Any], *, met: bool) -> None:
    asked = rule(Action.FAIL_JOBSET, **fields)
    job = failed("w-0", message="gpu: xid 48")
    assert failure.match(policy(asked), (job,)) == (asked if met else None, job)


def test_job_without_replicated_job_matches_no_rule() -> None:
    job = failed("w-0", replicated_job="")
    assert failure.match(policy(rule(Action.FAIL_JOBSET)), (job,)) == (None, job)


def test_first_matching_rule_wins_over_earlier_failure() -> None:
    later = failed("w-0", reason="DeadlineExceeded", at=NOW - 1)
    earlier = failed("w-1", at=NOW - 9)
    assert failure.match(policy(ONE, TWO), (earlier, later)) == (ONE, later)


def test_earliest_failure_of_matching_jobs_is_named() -> None:
    assert failure.match(policy(TWO), (LATE, EARLY)) == (TWO, EARLY)


def test_earliest_failure_is_named_without_matching_rule() -> None:
    assert failure.match(policy(ONE), (LATE, EARLY)) == (None, EARLY)


def test_names_decide_between_simultaneous_failures() -> None:
    assert failure.first((failed("w-1"), failed("w-0"))).name == "js-w-0"


# Without a policy, and failing


def test_failed_job_without_policy_fails_jobset() -> None:
    plan = answered(None, LATE, EARLY)
    message = "jobset failed due to one or more job failures (first failed job: js-w-1)"
    assert builders.new_condition(plan, "Failed") == (True, "FailedJobs", message)
    assert builders.events(plan) == [("Warning", "FailedJobs", message)]
    assert plan.counts == ("failed",)
    assert plan.status is not None
    assert plan.status.terminal_state == "Failed"
    assert plan.status.restarts == 0


def test_fail_jobset_fails_despite_remaining_restarts() -> None:
    plan = answered(policy(rule(Action.FAIL_JOBSET)), failed("w-0"))
    message = "applying FailJobSet failure policy action (first failed job: js-w-0)"
    assert builders.new_condition(plan, "Failed") == (True, "FailJobSetFailurePolicyAction", message)
    assert builders.events(plan) == [("Warning", "FailJobSetFailurePolicyAction", message)]


def test_failed_jobset_ends_restarting_condition() -> None:
    status = Status(conditions=(builders.condition(RESTARTING),))
    plan = answered(None, failed("w-0"), status=status)
    assert builders.new_condition(plan, RESTARTING) == (False, "JobSetFailed", "jobset failed")
    assert builders.events(plan)[1:] == [("Normal", "JobSetFailed", "jobset failed")]


def test_failed_jobset_without_restarts_has_no_restarting_condition() -> None:
    assert builders.new_condition(answered(None, failed("w-0")), RESTARTING) is None


# Restarting all


@pytest.mark.parametrize("action", RESTART_ALL)
def test_restart_of_all_raises_attempt_and_records_two_events(action: Action) -> None:
    plan = answered(
        policy(rule(action, "mine")), *of_run(1, failed("w-0"), builders.ready("w-1")), status=Status(restarts=1)
    )
    message = f"applying {action.value} failure policy action (first failed job: js-w-0)"
    assert plan.status is not None
    assert plan.status.restarts == 2
    assert builders.new_condition(plan, RESTARTING) == (True, "FailurePolicy_mine", message)
    assert builders.events(plan) == [
        ("Warning", "FailurePolicy_mine", message),
        ("Warning", f"{action.value}FailurePolicyAction", message),
    ]
    assert plan.counts == ("restarted",)
    assert plan.status.terminal_state == ""
    assert plan.writes == (), "the Jobs are deleted in the next reconcile, once the status has the restart"


@pytest.mark.parametrize("rules", [(), (ONE,)])
def test_unmatched_failure_restarts_all_by_default(rules: tuple[FailureRule, ...]) -> None:
    plan = answered(policy(*rules), failed("w-0"))
    message = "applying RestartJobSet failure policy action (first failed job: js-w-0)"
    assert builders.new_condition(plan, RESTARTING) == (True, "DefaultFailurePolicy", message)
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (1, 1)


@pytest.mark.parametrize(("action", "counted"), [(Action.RESTART_JOBSET, 2), (Action.RESTART_JOBSET_AND_IGNORE, 1)])
def test_only_counting_actions_use_up_restarts(action: Action, counted: int) -> None:
    plan = answered(policy(rule(action)), *of_run(1, failed("w-0")), status=Status(restarts=1, restarts_counted=1))
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (2, counted)


def test_second_restart_keeps_time_of_condition() -> None:
    status = Status(restarts=1, conditions=(builders.condition(RESTARTING, since=5.0),))
    plan = answered(policy(), *of_run(1, failed("w-0")), status=status)
    assert plan.status is not None
    restarting = plan.status.condition(RESTARTING)
    assert restarting is not None
    assert (restarting.since, restarting.reason) == (5.0, "DefaultFailurePolicy")


OF_JOBS = (ReplicatedJobStatus("w", failed=1, job_restarts=(2, 1), job_restarts_counted=(1, 1)),)


@pytest.mark.parametrize("action", COUNTING)
@pytest.mark.parametrize(
    "status",
    [
        pytest.param(Status(restarts_counted=3), id="restarts of all"),
        pytest.param(Status(restarts_counted=4), id="more than allowed"),
        pytest.param(Status(restarts_counted=1, replicated_jobs=OF_JOBS), id="together with those of single Jobs"),
    ],
)
def test_counting_action_at_max_restarts_fails_jobset(action: Action, status: Status) -> None:
    job = failed("w-0", job_attempt=2)
    plan = answered(policy(rule(action)), job, status=status)
    message = "jobset failed due to reaching max number of restarts (first failed job: js-w-0)"
    assert builders.new_condition(plan, "Failed") == (True, "ReachedMaxRestarts", message)
    assert builders.events(plan) == [("Warning", "ReachedMaxRestarts", message)]
    assert plan.status is not None
    assert plan.status.restarts == 0


@pytest.mark.parametrize("action", [Action.RESTART_JOBSET_AND_IGNORE, Action.RESTART_JOB_AND_IGNORE])
def test_ignoring_action_continues_beyond_max_restarts(action: Action) -> None:
    plan = answered(policy(rule(action), most=0), failed("w-0"))
    assert plan.status is not None
    assert plan.status.terminal_state == ""
    assert plan.status.restarts_counted == 0


def test_first_failure_with_max_restarts_0_fails_jobset() -> None:
    plan = answered(policy(most=0), failed("w-0"))
    assert builders.new_condition(plan, "Failed") is not None


def test_one_reconcile_takes_one_action() -> None:
    plan = answered(policy(), failed("w-0"), failed("w-1"))
    assert plan.status is not None
    assert plan.status.restarts == 1


# After a restart of all


def after_restart(strategy: RestartStrategy, *jobs: ChildJob) -> Plan:
    """Return the decision right after the attempt was raised to 1."""
    return answered(policy(strategy=strategy), *jobs, status=Status(restarts=1, restarts_counted=1))


def test_recreate_deletes_previous_and_creates_free_names() -> None:
    plan = after_restart(RestartStrategy.RECREATE, builders.ready("w-0"))
    assert builders.names(plan, DeleteJob) == ["js-w-0"]
    assert builders.names(plan, CreateJob) == ["js-w-1"], "js-w-0 waits until its predecessor is gone"


def test_blocking_recreate_waits_for_previous_jobs() -> None:
    plan = after_restart(RestartStrategy.BLOCKING_RECREATE, builders.ready("w-0", deleting=True))
    assert builders.names(plan, CreateJob) == []
    plan = after_restart(RestartStrategy.BLOCKING_RECREATE)
    assert builders.names(plan, CreateJob) == ["js-w-0", "js-w-1"]


def test_job_being_deleted_is_not_deleted_again() -> None:
    plan = after_restart(RestartStrategy.RECREATE, builders.ready("w-0", deleting=True), builders.failed("w-1"))
    assert builders.names(plan, DeleteJob) == ["js-w-1"]


def test_recreated_jobs_have_new_attempt() -> None:
    ((create, *_),) = (group for group in after_restart(RestartStrategy.RECREATE).writes if group)
    assert isinstance(create, CreateJob)
    assert create.body["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "1"


def test_failure_of_previous_run_is_not_handled_again() -> None:
    plan = after_restart(RestartStrategy.RECREATE, failed("w-0"), failed("w-1"))
    assert plan.status is not None
    assert (plan.status.restarts, plan.events) == (1, ())


def test_restarting_condition_ends_when_all_are_ready() -> None:
    status = Status(restarts=1, conditions=(builders.condition(RESTARTING),))
    jobs = (builders.ready("w-0", attempt=1), builders.succeeded("w-1", attempt=1))
    plan = answered(policy(), *jobs, status=status)
    assert builders.new_condition(plan, RESTARTING) == (False, "JobsReady", "all jobs are ready")
    assert builders.events(plan) == [("Normal", "JobsReady", "all jobs are ready")]


@pytest.mark.parametrize("other", [builders.job("w-1", attempt=1), builders.ready("w-1", attempt=0)])
def test_restarting_condition_stays_until_all_are_ready(other: ChildJob) -> None:
    status = Status(restarts=1, conditions=(builders.condition(RESTARTING),))
    plan = answered(policy(), builders.ready("w-0", attempt=1), other, status=status)
    assert builders.new_condition(plan, RESTARTING) == (True, "R", "m")


def test_failure_costs_one_restart_with_lost_count() -> None:
    jobs = (builders.ready("w-0", attempt=4), failed("w-1", attempt=3))
    after = builders.carried_out(builders.observed(builders.jobset(failure=policy()), *jobs))
    assert (after.jobset.status.restarts, after.jobset.status.restarts_counted) == (5, 1)
    assert [(each.name, each.attempt) for each in after.jobs] == [("js-w-0", 5), ("js-w-1", 5)]


def test_failure_costs_one_restart_with_too_high_count() -> None:
    plan = answered(policy(), failed("w-0", attempt=None), status=Status(restarts=7, restarts_counted=1))
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (8, 2)


# Restarting one Job


@pytest.mark.parametrize("action", RESTART_ONE)
def test_restart_of_one_job_counts_and_records_once(action: Action) -> None:
    plan = answered(policy(rule(action)), builders.ready("w-0"), failed("w-1"))
    message = f"applying {action.value} failure policy action (first failed job: js-w-1)"
    counted = (0, 1) if action is Action.RESTART_JOB else ()
    found = builders.counts(plan)["w"]
    assert (found.job_restarts, found.job_restarts_counted) == ((0, 1), counted)
    assert builders.events(plan) == [("Warning", f"{action.value}FailurePolicyAction", message)]
    assert builders.new_condition(plan, RESTARTING) is None, "upstream sets no condition for it"
    assert plan.counts == ("restarted_job",)
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (0, 0)


def test_restarted_job_alone_is_recreated() -> None:
    before = builders.observed(
        builders.jobset(failure=policy(rule(Action.RESTART_JOB))), builders.ready("w-0"), failed("w-1")
    )
    restarted = builders.applied(before, decide.decide(before))
    plan = decide.decide(restarted)
    assert builders.names(plan, DeleteJob) == ["js-w-1"]
    assert builders.names(plan, CreateJob) == []
    again = decide.decide(builders.applied(restarted, plan))
    ((create,),) = again.writes
    assert isinstance(create, CreateJob)
    labels = create.body["metadata"]["labels"]
    assert create.name == "js-w-1"
    assert labels["jobset.sigs.k8s.io/job-restart-attempt"] == "1"
    assert labels["jobset.sigs.k8s.io/restart-attempt"] == "0"


def test_restarts_of_single_jobs_add_up_per_index() -> None:
    status = Status(replicated_jobs=(ReplicatedJobStatus("w", job_restarts=(0, 1), job_restarts_counted=(0, 1)),))
    plan = answered(policy(rule(Action.RESTART_JOB)), failed("w-1", job_attempt=1), status=status)
    found = builders.counts(plan)["w"]
    assert (found.job_restarts, found.job_restarts_counted) == ((0, 2), (0, 2))


def test_single_restart_counts_once_with_lost_count() -> None:
    owner = builders.jobset(failure=policy(rule(Action.RESTART_JOB)))
    after = builders.carried_out(builders.observed(owner, builders.ready("w-0"), failed("w-1", job_attempt=3)))
    (found,) = after.jobset.status.replicated_jobs
    assert (found.job_restarts, found.job_restarts_counted) == ((0, 4), (0, 1))
    assert [(each.name, each.job_attempt) for each in after.jobs] == [("js-w-0", 0), ("js-w-1", 4)]


def test_single_restart_keeps_other_replicated_jobs_counts() -> None:
    owner = builders.jobset(
        builders.replicated("a"), builders.replicated("b", replicas=1), failure=policy(rule(Action.RESTART_JOB))
    )
    plan = decide.decide(builders.observed(owner, failed("b-0")))
    assert {name: each.job_restarts for name, each in builders.counts(plan).items()} == {"a": (), "b": (1,)}


def test_missing_jobs_have_the_attempts_of_their_own_replicated_jobs_and_indexes() -> None:
    owner = builders.jobset(
        builders.replicated("a"),
        builders.replicated("b", replicas=2),
        status=Status(replicated_jobs=(ReplicatedJobStatus("a", job_restarts=(3,)), ReplicatedJobStatus("b"))),
    )
    created = [each for group in decide.decide(builders.observed(owner)).writes for each in group]
    attempts = {
        each.name: each.body["metadata"]["labels"]["jobset.sigs.k8s.io/job-restart-attempt"]
        for each in created
        if isinstance(each, CreateJob)
    }
    assert attempts == {"js-a-0": "3", "js-a-1": "0", "js-b-0": "0", "js-b-1": "0"}


@pytest.mark.parametrize("index", [None, 2, 9])
def test_job_without_index_restarts_all(index: int | None) -> None:
    plan = answered(policy(rule(Action.RESTART_JOB)), failed("w-0", index=index))
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (1, 1)


def test_job_without_own_attempt_does_not_restart_repeatedly() -> None:
    """It could not be distinguished from its successor, so the next reconcile would count its failure again."""
    status = Status(replicated_jobs=(ReplicatedJobStatus("w", job_restarts=(1, 0)),))
    owner = builders.jobset(failure=policy(rule(Action.RESTART_JOB_AND_IGNORE)), status=status)
    after = builders.carried_out(builders.observed(owner, failed("w-0", job_attempt=None), builders.ready("w-1")))
    assert (after.jobset.status.restarts, after.jobset.status.restarts_counted) == (1, 0)
    assert [(each.name, each.attempt) for each in after.jobs] == [("js-w-0", 1), ("js-w-1", 1)]


def test_invalid_patterns_are_reported_when_handling_a_failure() -> None:
    plan = answered(policy(rule(Action.FAIL_JOBSET, "mine", patterns=("(", "ok"))), failed("w-0"))
    assert plan.warnings == ("rule mine: '(' is not a valid RE2 pattern and matches nothing. Fix the pattern",)


# An invalid JobSet in this file would make all of the above vacuous


def test_jobsets_of_these_tests_are_valid() -> None:
    owner: JobSet = builders.jobset(failure=policy(ONE, TWO))
    assert decide.decide(builders.observed(owner)).status is not None
    assert builders.new_condition(decide.decide(builders.observed(owner)), "kubemend.io/Valid") is None
