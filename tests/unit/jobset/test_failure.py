"""The failure policy: upstream's failure_policy.go."""

from dataclasses import replace
from typing import Any

import pytest

from controller.jobset import decide, failure
from controller.jobset.model import (
    Action,
    ChildJob,
    FailurePolicy,
    FailureRule,
    JobSet,
    ReplicatedJobStatus,
    RestartStrategy,
    Status,
)
from controller.jobset.plan import CreateJob, DeleteJob, Plan
from tests.unit.jobset import worlds
from tests.unit.jobset.worlds import NOW, RESTARTING, failed, rule

RESTART_ALL = (Action.RESTART_JOBSET, Action.RESTART_JOBSET_AND_IGNORE)
RESTART_ONE = (Action.RESTART_JOB, Action.RESTART_JOB_AND_IGNORE)
COUNTING = (Action.RESTART_JOBSET, Action.RESTART_JOB)


def policy(*rules: FailureRule, most: int = 3, strategy: RestartStrategy = RestartStrategy.RECREATE) -> FailurePolicy:
    """A failure policy."""
    return FailurePolicy(max_restarts=most, rules=rules, strategy=strategy)


def answered(failure_policy: FailurePolicy | None, *jobs: ChildJob, status: Status | None = None) -> Plan:
    """What is decided when these Jobs are there."""
    return decide.decide(worlds.world(worlds.jobset(failure=failure_policy, status=status), *jobs))


def of_run(attempt: int, *jobs: ChildJob) -> tuple[ChildJob, ...]:
    """These Jobs, of this run."""
    return tuple(replace(each, attempt=attempt) for each in jobs)


# Which rule, and which Job

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
def test_a_rule_is_met_when_reason_message_and_target_all_fit(fields: dict[str, Any], *, met: bool) -> None:
    asked = rule(Action.FAIL_JOBSET, **fields)
    job = failed("w-0", message="gpu: xid 48")
    assert failure.match(policy(asked), (job,)) == (asked if met else None, job)


def test_a_job_that_does_not_say_whose_it_is_meets_no_rule() -> None:
    job = failed("w-0", replicated_job="")
    assert failure.match(policy(rule(Action.FAIL_JOBSET)), (job,)) == (None, job)


def test_the_first_rule_that_any_job_meets_counts_even_if_its_job_failed_later() -> None:
    later = failed("w-0", reason="DeadlineExceeded", at=NOW - 1)
    earlier = failed("w-1", at=NOW - 9)
    assert failure.match(policy(ONE, TWO), (earlier, later)) == (ONE, later)


def test_of_the_jobs_that_meet_a_rule_the_one_that_failed_first_is_named() -> None:
    assert failure.match(policy(TWO), (LATE, EARLY)) == (TWO, EARLY)


def test_without_a_rule_that_is_met_the_job_that_failed_first_of_all_is_named() -> None:
    assert failure.match(policy(ONE), (LATE, EARLY)) == (None, EARLY)


def test_of_jobs_that_failed_in_the_same_second_the_names_decide() -> None:
    assert failure.first((failed("w-1"), failed("w-0"))).name == "js-w-0"


# Without a policy, and failing


def test_without_a_policy_any_failed_job_fails_the_jobset() -> None:
    plan = answered(None, LATE, EARLY)
    words = "jobset failed due to one or more job failures (first failed job: js-w-1)"
    assert worlds.said(plan, "Failed") == (True, "FailedJobs", words)
    assert worlds.told(plan) == [("Warning", "FailedJobs", words)]
    assert plan.counts == ("failed",)
    assert plan.status is not None
    assert plan.status.terminal_state == "Failed"
    assert plan.status.restarts == 0


def test_fail_jobset_fails_it_in_upstreams_words_whatever_is_left_of_the_restarts() -> None:
    plan = answered(policy(rule(Action.FAIL_JOBSET)), failed("w-0"))
    words = "applying FailJobSet failure policy action (first failed job: js-w-0)"
    assert worlds.said(plan, "Failed") == (True, "FailJobSetFailurePolicyAction", words)
    assert worlds.told(plan) == [("Warning", "FailJobSetFailurePolicyAction", words)]


def test_a_failed_jobset_says_that_it_no_longer_restarts() -> None:
    status = Status(conditions=(worlds.condition(RESTARTING),))
    plan = answered(None, failed("w-0"), status=status)
    assert worlds.said(plan, RESTARTING) == (False, "JobSetFailed", "jobset failed")
    assert worlds.told(plan)[1:] == [("Normal", "JobSetFailed", "jobset failed")]


def test_a_failed_jobset_that_never_restarted_says_nothing_about_it() -> None:
    assert worlds.said(answered(None, failed("w-0")), RESTARTING) is None


# Restarting all


@pytest.mark.parametrize("action", RESTART_ALL)
def test_a_restart_of_all_raises_the_attempt_and_tells_of_it_twice(action: Action) -> None:
    plan = answered(
        policy(rule(action, "mine")), *of_run(1, failed("w-0"), worlds.ready("w-1")), status=Status(restarts=1)
    )
    words = f"applying {action.value} failure policy action (first failed job: js-w-0)"
    assert plan.status is not None
    assert plan.status.restarts == 2
    assert worlds.said(plan, RESTARTING) == (True, "FailurePolicy_mine", words)
    assert worlds.told(plan) == [
        ("Warning", "FailurePolicy_mine", words),
        ("Warning", f"{action.value}FailurePolicyAction", words),
    ]
    assert plan.counts == ("restarted",)
    assert plan.status.terminal_state == ""
    assert plan.writes == (), "the Jobs go in the next look, once the status says so"


@pytest.mark.parametrize("rules", [(), (ONE,)])
def test_without_a_rule_that_is_met_all_are_restarted_by_the_default(rules: tuple[FailureRule, ...]) -> None:
    plan = answered(policy(*rules), failed("w-0"))
    words = "applying RestartJobSet failure policy action (first failed job: js-w-0)"
    assert worlds.said(plan, RESTARTING) == (True, "DefaultFailurePolicy", words)
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (1, 1)


@pytest.mark.parametrize(("action", "counted"), [(Action.RESTART_JOBSET, 2), (Action.RESTART_JOBSET_AND_IGNORE, 1)])
def test_only_a_restart_that_does_not_ignore_max_restarts_counts(action: Action, counted: int) -> None:
    plan = answered(policy(rule(action)), *of_run(1, failed("w-0")), status=Status(restarts=1, restarts_counted=1))
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (2, counted)


def test_a_second_restart_with_other_words_keeps_the_time_of_the_first() -> None:
    status = Status(restarts=1, conditions=(worlds.condition(RESTARTING, since=5.0),))
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
def test_at_max_restarts_an_action_that_counts_fails_the_jobset(action: Action, status: Status) -> None:
    job = failed("w-0", job_attempt=2)
    plan = answered(policy(rule(action)), job, status=status)
    words = "jobset failed due to reaching max number of restarts (first failed job: js-w-0)"
    assert worlds.said(plan, "Failed") == (True, "ReachedMaxRestarts", words)
    assert worlds.told(plan) == [("Warning", "ReachedMaxRestarts", words)]
    assert plan.status is not None
    assert plan.status.restarts == 0


@pytest.mark.parametrize("action", [Action.RESTART_JOBSET_AND_IGNORE, Action.RESTART_JOB_AND_IGNORE])
def test_an_action_that_ignores_max_restarts_goes_on_beyond_them(action: Action) -> None:
    plan = answered(policy(rule(action), most=0), failed("w-0"))
    assert plan.status is not None
    assert plan.status.terminal_state == ""
    assert plan.status.restarts_counted == 0


def test_with_max_restarts_0_the_first_failure_fails_the_jobset() -> None:
    plan = answered(policy(most=0), failed("w-0"))
    assert worlds.said(plan, "Failed") is not None


def test_one_look_takes_one_action_however_many_jobs_failed() -> None:
    plan = answered(policy(), failed("w-0"), failed("w-1"))
    assert plan.status is not None
    assert plan.status.restarts == 1


# What follows a restart of all


def after_restart(strategy: RestartStrategy, *jobs: ChildJob) -> Plan:
    """What is decided right after the attempt was raised to 1."""
    return answered(policy(strategy=strategy), *jobs, status=Status(restarts=1, restarts_counted=1))


def test_recreate_deletes_what_is_of_the_former_run_and_creates_each_job_whose_name_is_free() -> None:
    plan = after_restart(RestartStrategy.RECREATE, worlds.ready("w-0"))
    assert worlds.names(plan, DeleteJob) == ["js-w-0"]
    assert worlds.names(plan, CreateJob) == ["js-w-1"], "js-w-0 waits until its predecessor is gone"


def test_blocking_recreate_creates_nothing_while_one_of_the_former_run_is_there() -> None:
    plan = after_restart(RestartStrategy.BLOCKING_RECREATE, worlds.ready("w-0", deleting=True))
    assert worlds.names(plan, CreateJob) == []
    plan = after_restart(RestartStrategy.BLOCKING_RECREATE)
    assert worlds.names(plan, CreateJob) == ["js-w-0", "js-w-1"]


def test_a_job_that_is_being_deleted_is_not_deleted_again() -> None:
    plan = after_restart(RestartStrategy.RECREATE, worlds.ready("w-0", deleting=True), worlds.failed("w-1"))
    assert worlds.names(plan, DeleteJob) == ["js-w-1"]


def test_recreated_jobs_carry_the_new_attempt() -> None:
    ((create, *_),) = (group for group in after_restart(RestartStrategy.RECREATE).writes if group)
    assert isinstance(create, CreateJob)
    assert create.body["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "1"


def test_what_failed_in_a_former_run_is_not_answered_again() -> None:
    plan = after_restart(RestartStrategy.RECREATE, failed("w-0"), failed("w-1"))
    assert plan.status is not None
    assert (plan.status.restarts, plan.events) == (1, ())


def test_once_all_are_ready_it_says_that_it_no_longer_restarts() -> None:
    status = Status(restarts=1, conditions=(worlds.condition(RESTARTING),))
    jobs = (worlds.ready("w-0", attempt=1), worlds.succeeded("w-1", attempt=1))
    plan = answered(policy(), *jobs, status=status)
    assert worlds.said(plan, RESTARTING) == (False, "JobsReady", "all jobs are ready")
    assert worlds.told(plan) == [("Normal", "JobsReady", "all jobs are ready")]


@pytest.mark.parametrize("other", [worlds.job("w-1", attempt=1), worlds.ready("w-1", attempt=0)])
def test_while_one_is_not_ready_or_of_the_former_run_it_still_restarts(other: ChildJob) -> None:
    status = Status(restarts=1, conditions=(worlds.condition(RESTARTING),))
    plan = answered(policy(), worlds.ready("w-0", attempt=1), other, status=status)
    assert worlds.said(plan, RESTARTING) == (True, "R", "m")


def test_a_failure_costs_one_restart_though_the_status_has_lost_how_many_there_were() -> None:
    jobs = (worlds.ready("w-0", attempt=4), failed("w-1", attempt=3))
    after = worlds.carried_out(worlds.world(worlds.jobset(failure=policy()), *jobs))
    assert (after.jobset.status.restarts, after.jobset.status.restarts_counted) == (5, 1)
    assert [(each.name, each.attempt) for each in after.jobs] == [("js-w-0", 5), ("js-w-1", 5)]


def test_a_failure_while_the_status_tells_of_more_restarts_than_the_jobs_costs_one_too() -> None:
    plan = answered(policy(), failed("w-0", attempt=None), status=Status(restarts=7, restarts_counted=1))
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (8, 2)


# Restarting one Job


@pytest.mark.parametrize("action", RESTART_ONE)
def test_a_restart_of_one_job_counts_it_alone_and_tells_of_it_once(action: Action) -> None:
    plan = answered(policy(rule(action)), worlds.ready("w-0"), failed("w-1"))
    words = f"applying {action.value} failure policy action (first failed job: js-w-1)"
    counted = (0, 1) if action is Action.RESTART_JOB else ()
    found = worlds.counts(plan)["w"]
    assert (found.job_restarts, found.job_restarts_counted) == ((0, 1), counted)
    assert worlds.told(plan) == [("Warning", f"{action.value}FailurePolicyAction", words)]
    assert worlds.said(plan, RESTARTING) is None, "upstream sets no condition for it"
    assert plan.counts == ("restarted_job",)
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (0, 0)


def test_after_it_that_job_alone_is_deleted_and_made_anew() -> None:
    before = worlds.world(worlds.jobset(failure=policy(rule(Action.RESTART_JOB))), worlds.ready("w-0"), failed("w-1"))
    restarted = worlds.applied(before, decide.decide(before))
    plan = decide.decide(restarted)
    assert worlds.names(plan, DeleteJob) == ["js-w-1"]
    assert worlds.names(plan, CreateJob) == []
    again = decide.decide(worlds.applied(restarted, plan))
    ((create,),) = again.writes
    assert isinstance(create, CreateJob)
    labels = create.body["metadata"]["labels"]
    assert create.name == "js-w-1"
    assert labels["jobset.sigs.k8s.io/job-restart-attempt"] == "1"
    assert labels["jobset.sigs.k8s.io/restart-attempt"] == "0"


def test_restarts_of_single_jobs_add_up_per_index() -> None:
    status = Status(replicated_jobs=(ReplicatedJobStatus("w", job_restarts=(0, 1), job_restarts_counted=(0, 1)),))
    plan = answered(policy(rule(Action.RESTART_JOB)), failed("w-1", job_attempt=1), status=status)
    found = worlds.counts(plan)["w"]
    assert (found.job_restarts, found.job_restarts_counted) == ((0, 2), (0, 2))


def test_a_single_restart_counts_one_though_the_status_has_lost_how_many_there_were() -> None:
    owner = worlds.jobset(failure=policy(rule(Action.RESTART_JOB)))
    after = worlds.carried_out(worlds.world(owner, worlds.ready("w-0"), failed("w-1", job_attempt=3)))
    (found,) = after.jobset.status.replicated_jobs
    assert (found.job_restarts, found.job_restarts_counted) == ((0, 4), (0, 1))
    assert [(each.name, each.job_attempt) for each in after.jobs] == [("js-w-0", 0), ("js-w-1", 4)]


def test_a_single_restart_leaves_those_of_other_replicated_jobs_alone() -> None:
    owner = worlds.jobset(
        worlds.replicated("a"), worlds.replicated("b", replicas=1), failure=policy(rule(Action.RESTART_JOB))
    )
    plan = decide.decide(worlds.world(owner, failed("b-0")))
    assert {name: each.job_restarts for name, each in worlds.counts(plan).items()} == {"a": (), "b": (1,)}


@pytest.mark.parametrize("index", [None, 2, 9])
def test_a_job_without_a_place_cannot_be_restarted_alone_so_all_are(index: int | None) -> None:
    plan = answered(policy(rule(Action.RESTART_JOB)), failed("w-0", index=index))
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (1, 1)


def test_a_job_that_does_not_tell_how_often_it_was_restarted_is_not_restarted_again_and_again() -> None:
    """Nothing would tell it from its successor, so the look after the restart would find that it has failed."""
    status = Status(replicated_jobs=(ReplicatedJobStatus("w", job_restarts=(1, 0)),))
    owner = worlds.jobset(failure=policy(rule(Action.RESTART_JOB_AND_IGNORE)), status=status)
    after = worlds.carried_out(worlds.world(owner, failed("w-0", job_attempt=None), worlds.ready("w-1")))
    assert (after.jobset.status.restarts, after.jobset.status.restarts_counted) == (1, 0)
    assert [(each.name, each.attempt) for each in after.jobs] == [("js-w-0", 1), ("js-w-1", 1)]


def test_invalid_patterns_are_remarked_when_a_failure_is_looked_at() -> None:
    plan = answered(policy(rule(Action.FAIL_JOBSET, "mine", patterns=("(", "ok"))), failed("w-0"))
    assert plan.remarks == ("rule mine: '(' is no RE2 pattern and matches nothing; mend it",)


# The invalid JobSet of this file would make all of the above vacuous


def test_the_jobsets_of_these_tests_are_valid() -> None:
    owner: JobSet = worlds.jobset(failure=policy(ONE, TWO))
    assert decide.decide(worlds.world(owner)).status is not None
    assert worlds.said(decide.decide(worlds.world(owner)), "kubemend.io/Valid") is None
