"""Restarts in place from the JobSet's side, and the errors of upstream's protocol, as far as they are decided here.

Upstream's weaknesses have the numbers of ``docs/jobsets.md``; tests of rounds and agents cover the others.
"""

from dataclasses import replace

import pytest

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob, DeleteJob, ObservedState, Plan
from kubemend.controller.jobset.policy import in_place
from kubemend.controller.jobset.policy.in_place import GangPolicy
from kubemend.controller.jobset.spec.model import (
    Action,
    ChildJob,
    FailurePolicy,
    FailureRule,
    JobSet,
    Refusal,
    ReplicatedJobStatus,
    RestartStrategy,
    RoundView,
    Status,
)
from tests.unit.jobset import builders
from tests.unit.jobset.builders import IN_PLACE, NOW, round_, under_way

CONDITION = "kubemend.io/InPlaceRestart"
JOBS = (builders.ready("w-0"), builders.ready("w-1"))


def owner(status: Status | None = None, failure: FailurePolicy = IN_PLACE, **spec: object) -> JobSet:
    """Return a JobSet that is restarted in place."""
    return builders.jobset(failure=failure, status=status, **spec)


def running(*rounds: RoundView, status: Status | None = None, failure: FailurePolicy = IN_PLACE) -> ObservedState:
    """Return a settled JobSet whose Jobs run, and its rounds."""
    before = builders.settled(owner(status, failure), *JOBS)
    return replace(before, rounds=rounds)


def most(restarts: int, *rules: FailureRule) -> FailurePolicy:
    """Return an in-place policy with this many restarts."""
    return FailurePolicy(max_restarts=restarts, rules=rules, strategy=RestartStrategy.IN_PLACE)


# The cost of a round


def kept(plan: Plan) -> tuple[int, int | None, int | None]:
    """Return restartsCountTowardsMax, and the newest ended attempt and the one before it."""
    assert plan.status is not None
    return plan.status.restarts_counted, plan.status.current_in_place, plan.status.previous_in_place


def test_ended_round_counts_once_and_advances_attempt() -> None:
    before = running(round_(1))
    plan = decide.decide(before)
    assert kept(plan) == (1, 1, 0)
    assert decide.decide(builders.applied(before, plan)) == Plan()


def test_rounds_ended_between_reconciles_are_counted_together() -> None:
    plan = decide.decide(running(round_(1), round_(2), round_(3)))
    assert kept(plan) == (3, 3, 2)
    assert plan.counts == ("restarted_in_place",) * 3
    assert [reason for _, reason, _ in builders.events(plan)] == ["InPlaceRestarted"] * 3


def test_requested_round_costs_nothing() -> None:
    assert kept(decide.decide(running(round_(1, counted=False)))) == (0, 1, 0)


def test_failed_round_costs_a_restart() -> None:
    assert kept(decide.decide(running(round_(1, restarted=False, reason="NotStopped")))) == (1, 1, 0)


def test_cancelled_round_costs_nothing() -> None:
    assert kept(decide.decide(running(round_(1, restarted=False, reason="Cancelled")))) == (0, 1, 0)


def test_round_under_way_is_not_counted_yet() -> None:
    plan = decide.decide(running(round_(1), under_way(2)))
    assert kept(plan) == (1, 1, 0)


def test_round_counts_by_owner_despite_clock_skew() -> None:
    early = builders.CREATED - 60
    assert kept(decide.decide(running(round_(1, started_at=early, owner_uid="uid-js")))) == (1, 1, 0)
    others = running(round_(1, owner_uid="uid-of-a-deleted-one"))
    assert decide.decide(others) == Plan()


def test_round_without_owner_counts_by_time_with_tolerance() -> None:
    assert kept(decide.decide(running(round_(1, started_at=builders.CREATED - 1)))) == (1, 1, 0)
    assert decide.decide(running(round_(1, started_at=builders.CREATED - 60))) == Plan()


def test_attempts_only_grow() -> None:
    status = Status(current_in_place=5, previous_in_place=7, restarts_counted=1)
    assert kept(decide.decide(running(round_(4), round_(6), status=status))) == (2, 6, 7)
    assert kept(decide.decide(running(round_(4), status=replace(status, current_in_place=6)))) == (1, 6, 7)


def test_count_never_exceeds_max_restarts() -> None:
    plan = decide.decide(running(round_(1), round_(2), round_(3), failure=most(2)))
    assert kept(plan) == (2, 3, 2)
    for counted in (1, 2, 3):
        status = Status(restarts_counted=counted)
        assert kept(decide.decide(running(round_(1), round_(2), status=status, failure=most(2))))[0] == max(counted, 2)


def test_other_strategy_counts_no_rounds() -> None:
    before = replace(running(failure=FailurePolicy(max_restarts=3)), rounds=(round_(1),))
    assert decide.decide(before) == Plan()
    jobs = (builders.failed("w-0"), builders.ready("w-1"))
    plan = decide.decide(builders.observed(owner(failure=FailurePolicy(max_restarts=3)), *jobs, rounds=(round_(1),)))
    assert kept(plan) == (1, None, None)


# Its condition


def condition(*rounds: RoundView) -> tuple[bool, str, str] | None:
    """Return the condition about these rounds."""
    return builders.new_condition(decide.decide(running(*rounds)), CONDITION)


def test_condition_is_true_during_round() -> None:
    assert condition(under_way(2, message="Xid 48 on w-0")) == (
        True,
        "Restarting",
        "restarting in place, attempt 2: Xid 48 on w-0",
    )


def test_condition_has_duration_after_round() -> None:
    assert condition(round_(2, message="all run")) == (
        False,
        "Restarted",
        "restarted in place in 412 ms, attempt 2: all run",
    )


def test_long_round_is_reported_in_seconds() -> None:
    assert condition(round_(1, seconds=63.25)) == (False, "Restarted", "restarted in place in 63.2 s, attempt 1")


def test_failed_round_has_reason() -> None:
    failed = round_(1, restarted=False, reason="NotStopped", message="w-1 is stuck")
    assert condition(failed) == (False, "RestartFailed", "restart in place failed, attempt 1: w-1 is stuck")
    assert builders.events(decide.decide(running(failed))) == [
        ("Warning", "InPlaceRestartFailed", "restart in place failed, attempt 1: w-1 is stuck")
    ]


def test_cancelled_round_is_no_failure_and_no_event() -> None:
    cancelled = round_(1, restarted=False, reason="Cancelled", message="Suspended")
    assert condition(cancelled) == (False, "RestartCancelled", "restart in place cancelled, attempt 1: Suspended")
    assert builders.events(decide.decide(running(cancelled))) == []


def test_condition_is_about_newest_round() -> None:
    assert condition(round_(1, message="old"), under_way(2, message="new")) == (
        True,
        "Restarting",
        "restarting in place, attempt 2: new",
    )


def test_condition_of_deleted_round_becomes_false() -> None:
    before = running(under_way(1))
    settled = builders.applied(before, decide.decide(before))
    plan = decide.decide(replace(settled, rounds=()))
    found = builders.new_condition(plan, CONDITION)
    assert found is not None
    assert found[:2] == (False, "RestartCancelled")


def test_message_of_round_is_limited() -> None:
    found = condition(round_(1, message="x" * 100_000))
    assert found is not None
    assert len(found[2]) <= 512


def test_condition_is_updated_after_jobset_ended() -> None:
    before = running(under_way(1))
    on = builders.applied(before, decide.decide(before))
    finished = replace(on.jobset.status, conditions=(*on.jobset.status.conditions, builders.condition("Completed")))
    ended = replace(
        on, jobset=replace(on.jobset, status=finished), rounds=(round_(1, restarted=False, reason="Cancelled"),)
    )
    found = builders.new_condition(decide.decide(ended), CONDITION)
    assert found is not None
    assert found[:2] == (False, "RestartCancelled")


# The gang's policy


def policy(*jobs: ChildJob, rounds: tuple[RoundView, ...] = (), jobset: JobSet | None = None) -> GangPolicy:
    """Return the policy of a JobSet with these Jobs, of the current run."""
    return in_place.policy(builders.observed(jobset or owner(), *(jobs or JOBS), rounds=rounds))


def test_max_restarts_is_the_gangs_limit() -> None:
    assert policy() == GangPolicy(limit=3, used=0)
    assert policy(jobset=owner(failure=most(0))) == GangPolicy(limit=0, used=0)


def test_other_strategy_has_no_limit() -> None:
    assert policy(jobset=owner(failure=FailurePolicy(max_restarts=3))).limit is None
    assert policy(jobset=builders.jobset()).limit is None


def test_used_includes_rounds_under_way() -> None:
    jobs = (ReplicatedJobStatus("w", job_restarts=(0, 2), job_restarts_counted=(0, 1)),)
    status = Status(restarts=4, restarts_counted=1, current_in_place=2, replicated_jobs=jobs)
    of_run = tuple(replace(each, attempt=4, job_attempt=2) for each in JOBS)
    rounds = (
        round_(2),
        round_(3, counted=False),
        round_(4, restarted=False, reason="Cancelled"),
        round_(5, restarted=False, reason="NotStopped"),
        under_way(6),
    )
    assert policy(*of_run, rounds=rounds, jobset=owner(status)) == GangPolicy(limit=3, used=1 + 1 + 2)


def test_used_stays_equal_when_round_is_counted() -> None:
    before = running(round_(1), round_(2, counted=False), round_(3, restarted=False, reason="NotStopped"), under_way(4))
    after = builders.carried_out(before)
    assert in_place.policy(before).used == in_place.policy(after).used == 3


@pytest.mark.parametrize(
    ("jobset", "closed"),
    [
        (owner(), ""),
        (replace(owner(), deleting=True), "Deleting"),
        (owner(Status(conditions=(builders.condition("Completed"),))), "Completed"),
        (owner(Status(conditions=(builders.condition("Failed"),))), "Failed"),
        (owner(suspend=True), "Suspended"),
        (owner(Status(restarts=1)), "Recreating"),
        (owner(Status(replicated_jobs=(ReplicatedJobStatus("w", job_restarts=(0, 1)),))), "Recreating"),
        (builders.jobset(suspend=True), "Suspended"),
    ],
)
def test_policy_is_closed_while_jobs_must_not_run(jobset: JobSet, closed: str) -> None:
    assert policy(jobset=jobset).closed == closed


def test_policy_reopens_once_all_jobs_are_new() -> None:
    new = tuple(replace(each, attempt=1) for each in JOBS)
    assert policy(*new, jobset=owner(Status(restarts=1))).closed == ""


# No restart left

REFUSAL = Refusal("ReachedMaxRestarts", "3 of 3 are used", at=NOW - 1)


def spent(refusal: Refusal = REFUSAL, *rounds: RoundView, status: Status | None = None) -> Plan:
    """Return the decision after a fault was refused for good."""
    return decide.decide(replace(running(*rounds, status=status), refusal=refusal))


def test_final_refusal_fails_jobset_without_a_job() -> None:
    plan = spent()
    message = "jobset failed due to reaching max number of restarts"
    assert builders.new_condition(plan, "Failed") == (True, "ReachedMaxRestarts", message)
    assert builders.events(plan) == [("Warning", "ReachedMaxRestarts", message)]
    assert plan.counts == ("failed",)


def test_jobs_are_deleted_in_next_reconcile() -> None:
    before = replace(running(), refusal=REFUSAL)
    plan = decide.decide(builders.applied(before, decide.decide(before)))
    assert builders.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]


@pytest.mark.parametrize(
    ("rounds", "status"),
    [
        pytest.param((under_way(1, started_at=NOW - 0.5),), None, id="a round"),
        pytest.param((), Status(conditions=(builders.condition(builders.RESTARTING, since=NOW),)), id="a recreation"),
        pytest.param(
            (), Status(conditions=(builders.condition(builders.RESTARTING, status=False, since=NOW),)), id="its end"
        ),
        pytest.param(
            (), Status(conditions=(builders.condition("Suspended", status=False, since=NOW),)), id="a resumption"
        ),
    ],
)
def test_refusal_before_last_start_is_ignored(rounds: tuple[RoundView, ...], status: Status | None) -> None:
    before = builders.observed(
        owner(status), builders.ready("w-0"), builders.job("w-1"), rounds=rounds, refusal=REFUSAL
    )
    plan = decide.decide(before)
    assert plan.status is not None
    assert plan.status.terminal_state == ""


def test_refusal_before_jobset_is_ignored() -> None:
    assert spent(replace(REFUSAL, at=builders.CREATED - 1)) == Plan()


def test_refusal_counts_in_first_reconcile_with_all_ready() -> None:
    """Both changes arrive together; no later reconcile would get the refusal again."""
    status = Status(conditions=(builders.condition(builders.RESTARTING, since=REFUSAL.at - 30),))
    jobs = (builders.ready("w-0"), builders.ready("w-1"))
    plan = decide.decide(builders.observed(owner(status), *jobs, refusal=REFUSAL))
    assert builders.new_condition(plan, "Failed") == (
        True,
        "ReachedMaxRestarts",
        "jobset failed due to reaching max number of restarts",
    )


def test_refusal_for_other_reason_fails_nothing() -> None:
    assert spent(replace(REFUSAL, reason="NotReplaceable")) == Plan()


def test_suspended_jobset_does_not_fail_by_refusal() -> None:
    before = replace(builders.with_spec(running(), suspend=True), refusal=REFUSAL)
    plan = decide.decide(before)
    assert plan.status is not None
    assert plan.status.terminal_state == ""


# Together with a restart of Jobs


def test_failed_job_during_round_costs_one_restart() -> None:
    jobs = (builders.failed("w-0"), builders.ready("w-1"))
    before = builders.observed(owner(failure=most(1)), *jobs, rounds=(under_way(1),))
    plan = decide.decide(before)
    assert kept(plan) == (1, 1, 0)
    assert plan.status is not None
    assert plan.status.restarts == 1
    after = replace(builders.applied(before, plan), rounds=(round_(1, restarted=False, reason="Cancelled"),))
    assert in_place.policy(after).used == 1
    assert builders.carried_out(after).jobset.status.restarts_counted == 1


def test_in_place_and_recreation_share_one_budget() -> None:
    status = Status(restarts_counted=1, current_in_place=1)
    before = builders.observed(owner(status, most(1)), builders.failed("w-0"), builders.ready("w-1"))
    found = builders.new_condition(decide.decide(before), "Failed")
    assert found is not None
    assert found[1] == "ReachedMaxRestarts"


# Upstream's weaknesses


def test_weakness_01_outdated_rounds_neither_revert_nor_count_twice() -> None:
    after = builders.carried_out(running(round_(1), round_(2)))
    stale = replace(after, rounds=(round_(1),))
    plan = decide.decide(stale)
    assert plan.status is None or kept(plan) == (2, 2, 1)
    assert builders.events(plan) == []


def test_weakness_02_one_failure_costs_one_restart_over_many_reconciles() -> None:
    before = running(under_way(1))
    for _ in range(3):
        before = builders.carried_out(before)
        assert in_place.policy(before).used == 1
    before = builders.carried_out(replace(before, rounds=(round_(1),)))
    assert in_place.policy(before).used == 1


def test_weakness_03_finished_jobs_and_indexes_do_not_close() -> None:
    one = builders.ready("w-1", parallelism=4, completions=4, ready=1, succeeded=2, failed_indexes="3")
    before = builders.settled(owner(), builders.succeeded("w-0"), one)
    assert in_place.policy(before).closed == ""
    assert before.jobset.status.replicated_jobs == (ReplicatedJobStatus("w", ready=1, succeeded=1, active=1),)


@pytest.mark.parametrize(
    "jobset",
    [
        builders.in_order(builders.replicated("w"), builders.replicated("x"), failure=IN_PLACE),
        builders.jobset(
            builders.replicated("w"), builders.replicated("x", depends_on=builders.depends("w")), failure=IN_PLACE
        ),
    ],
)
def test_weakness_04_waiting_replicated_jobs_do_not_close(jobset: JobSet) -> None:
    before = builders.carried_out(
        builders.observed(jobset, builders.job("w-0", active=1), builders.job("w-1", active=1))
    )
    assert builders.names_of(before.jobs) == ["js-w-0", "js-w-1"], "those of x wait"
    assert in_place.policy(before).closed == ""


def test_weakness_05_suspend_and_resume_cost_nothing() -> None:
    before = running(failure=most(0))
    for attempt in (1, 2, 3):
        cancelled = round_(attempt, restarted=False, reason="Cancelled")
        before = builders.carried_out(builders.with_spec(before, suspend=True))
        before = builders.carried_out(replace(builders.with_spec(before, suspend=False), rounds=(cancelled,)))
        assert in_place.policy(before) == GangPolicy(limit=0, used=0)
    assert before.jobset.status.terminal_state == ""


def test_weakness_06_rounds_of_deleted_namesake_do_not_count() -> None:
    theirs = round_(7, started_at=builders.CREATED - 5)
    assert decide.decide(running(theirs)) == Plan()
    assert in_place.policy(running(theirs)).used == 0


def test_weakness_06_ignoring_restart_is_not_counted_in_place() -> None:
    ignoring = most(1, builders.rule(Action.RESTART_JOBSET_AND_IGNORE))
    before = builders.observed(owner(failure=ignoring), builders.failed("w-0"), builders.ready("w-1"))
    after = builders.carried_out(before)
    assert after.jobset.status.restarts == 1
    assert in_place.policy(after) == GangPolicy(limit=1, used=0)


def test_weakness_07_in_place_restart_is_visible_everywhere() -> None:
    plan = decide.decide(running(round_(1, message="all run")))
    assert builders.new_condition(plan, CONDITION) is not None
    assert builders.events(plan) == [("Normal", "InPlaceRestarted", "restarted in place in 412 ms, attempt 1: all run")]
    assert plan.counts == ("restarted_in_place",)
    assert kept(plan) == (1, 1, 0)


def test_weakness_10_restarting_one_job_restarts_no_other() -> None:
    one = most(3, builders.rule(Action.RESTART_JOB))
    before = builders.observed(owner(failure=one), builders.ready("w-0"), builders.failed("w-1"))
    restarted = builders.applied(before, decide.decide(before))
    plan = decide.decide(restarted)
    assert builders.names(plan, DeleteJob) == ["js-w-1"]
    assert in_place.policy(restarted).closed == "Recreating"
    assert builders.carried_out(restarted).jobs[0] == before.jobs[0]


@pytest.mark.parametrize("job", [builders.ready("w-0", attempt=None), builders.ready("w-0", index=None)])
def test_weakness_12_unreadable_label_stops_nothing(job: ChildJob) -> None:
    plan = decide.decide(builders.observed(owner(), job, rounds=(round_(1),)))
    assert builders.names(plan, CreateJob) == ["js-w-1"]
    assert kept(plan) == (1, 1, 0)
