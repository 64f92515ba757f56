"""startupPolicy and dependsOn: upstream's startup_policy.go and depends_on.go."""

from dataclasses import replace

import pytest

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob, ResumeJob
from kubemend.controller.jobset.policy import startup
from kubemend.controller.jobset.spec.model import (
    ChildJob,
    DependencyStatus,
    JobSet,
    ReplicatedJob,
    ReplicatedJobStatus,
    Status,
)
from tests.unit.jobset import builders
from tests.unit.jobset.builders import depends, replicated

IN_PROGRESS, COMPLETED = "StartupPolicyInProgress", "StartupPolicyCompleted"
A, B, C = replicated("a"), replicated("b"), replicated("c")


def created_and_conditions(owner: JobSet, *jobs: ChildJob) -> tuple[list[str], set[str]]:
    """Return the created Jobs, and which of the two conditions are True."""
    plan = decide.decide(builders.observed(owner, *jobs))
    assert plan.status is not None
    true = {each.type for each in plan.status.conditions if each.status}
    return builders.names(plan, CreateJob), true & {IN_PROGRESS, COMPLETED}


def test_any_order_creates_all_jobs_without_condition() -> None:
    assert created_and_conditions(builders.jobset(A, B)) == (["js-a-0", "js-a-1", "js-b-0", "js-b-1"], set())


def test_in_order_creates_first_replicated_job() -> None:
    assert created_and_conditions(builders.in_order(A, B)) == (["js-a-0", "js-a-1"], {IN_PROGRESS})


def test_in_order_waits_until_all_of_first_are_ready() -> None:
    jobs = (builders.ready("a-0"), builders.job("a-1", active=1))
    assert created_and_conditions(builders.in_order(A, B), *jobs) == ([], {IN_PROGRESS})


def test_in_order_continues_once_first_are_ready_or_over() -> None:
    jobs = (builders.ready("a-0"), builders.succeeded("a-1"))
    assert created_and_conditions(builders.in_order(A, B, C), *jobs) == (["js-b-0", "js-b-1"], {IN_PROGRESS})


def test_startup_completes_once_all_started() -> None:
    jobs = (builders.ready("a-0"), builders.ready("a-1"), builders.ready("b-0"), builders.ready("b-1"))
    plan = decide.decide(builders.observed(builders.in_order(A, B), *jobs))
    expected = ("InOrderStartupPolicyCompleted", "in order startup policy has completed")
    assert builders.new_condition(plan, COMPLETED) == (True, *expected)
    assert builders.events(plan) == [("Normal", *expected)]


def test_startup_in_progress_has_upstreams_message() -> None:
    plan = decide.decide(builders.observed(builders.in_order(A, B)))
    expected = ("InOrderStartupPolicyInProgress", "in order startup policy is in progress")
    assert builders.new_condition(plan, IN_PROGRESS) == (True, *expected)
    assert builders.events(plan) == [("Normal", *expected)]


def test_restart_starts_in_order_again_and_flips_conditions() -> None:
    done = (
        builders.condition(IN_PROGRESS, status=False, reason="P"),
        builders.condition(COMPLETED, reason="C", since=5.0),
    )
    owner = builders.in_order(A, B, status=Status(conditions=done))
    plan = decide.decide(builders.observed(owner))
    assert plan.status is not None
    assert plan.status.conditions == (
        builders.condition(
            IN_PROGRESS,
            reason="InOrderStartupPolicyInProgress",
            message="in order startup policy is in progress",
            since=builders.NOW,
        ),
        builders.condition(COMPLETED, status=False, reason="C", since=5.0),
    )


def test_in_order_is_ignored_while_suspended() -> None:
    created, true = created_and_conditions(builders.in_order(A, B, suspend=True))
    assert created == ["js-a-0", "js-a-1", "js-b-0", "js-b-1"]
    assert true == set()


def asleep(*names: str) -> tuple[ChildJob, ...]:
    """Return suspended Jobs."""
    return tuple(builders.job(name, suspended=True, template={}) for name in names)


def test_in_order_resumes_replicated_jobs_one_by_one() -> None:
    owner = builders.in_order(A, B)
    plan = decide.decide(builders.observed(owner, *asleep("a-0", "a-1", "b-0", "b-1")))
    assert builders.names(plan, ResumeJob) == ["js-a-0", "js-a-1"]
    jobs = (builders.ready("a-0"), builders.ready("a-1"), *asleep("b-0", "b-1"))
    assert builders.names(decide.decide(builders.observed(owner, *jobs)), ResumeJob) == ["js-b-0", "js-b-1"]


def test_in_order_jobset_stays_suspended_until_last_started() -> None:
    status = Status(conditions=(builders.condition("Suspended"),))
    owner = builders.in_order(A, B, status=status)
    waiting = decide.decide(
        builders.observed(owner, builders.ready("a-0"), builders.ready("a-1"), *asleep("b-0", "b-1"))
    )
    assert builders.new_condition(waiting, "Suspended") == (True, "R", "m")
    started = (builders.ready("a-0"), builders.ready("a-1"), builders.ready("b-0"), builders.ready("b-1"))
    assert builders.new_condition(decide.decide(builders.observed(owner, *started)), "Suspended") == (
        False,
        "ResumeJobs",
        "jobset is resumed",
    )


# dependsOn

READY = replicated("b", depends_on=depends("a"))
COMPLETE = replicated("b", depends_on=depends("a", DependencyStatus.COMPLETE))


@pytest.mark.parametrize(
    ("dependant", "status", "may"),
    [
        (READY, ReplicatedJobStatus("a", ready=1), False),
        (READY, ReplicatedJobStatus("a", ready=2), True),
        (READY, ReplicatedJobStatus("a", ready=1, succeeded=1), True),
        (READY, ReplicatedJobStatus("a", ready=1, failed=1), True),
        (COMPLETE, ReplicatedJobStatus("a", ready=2), False),
        (COMPLETE, ReplicatedJobStatus("a", succeeded=1, failed=1), False),
        (COMPLETE, ReplicatedJobStatus("a", succeeded=2), True),
    ],
)
def test_dependant_starts_once_dependency_has_status(
    dependant: ReplicatedJob, status: ReplicatedJobStatus, *, may: bool
) -> None:
    found = startup.turn(builders.jobset(A, dependant), (status, ReplicatedJobStatus("b")), in_order=False)
    assert (dependant in found.now) is may
    assert A in found.now
    assert not found.waits


def test_all_dependencies_must_hold() -> None:
    both = replicated("c", depends_on=(*depends("a"), *depends("b", DependencyStatus.COMPLETE)))
    owner = builders.jobset(A, B, both)
    statuses = (ReplicatedJobStatus("a", ready=2), ReplicatedJobStatus("b", succeeded=1), ReplicatedJobStatus("c"))
    assert both not in startup.turn(owner, statuses, in_order=False).now
    statuses = (statuses[0], replace(statuses[1], succeeded=2), statuses[2])
    assert both in startup.turn(owner, statuses, in_order=False).now


def test_dependency_on_unknown_replicated_job_never_starts() -> None:
    lost = replicated("b", depends_on=depends("x"))
    found = startup.turn(builders.jobset(A, lost), (ReplicatedJobStatus("x", ready=2),), in_order=False)
    assert found.now == (A,)


def test_suspended_dependant_waits_without_delaying_others() -> None:
    owner = builders.jobset(A, READY, C, suspend=True)
    plan = decide.decide(builders.observed(owner))
    assert builders.names(plan, CreateJob) == ["js-a-0", "js-a-1", "js-c-0", "js-c-1"]


def test_suspended_dependant_is_resumed_in_its_turn() -> None:
    owner = builders.jobset(A, READY)
    plan = decide.decide(builders.observed(owner, *asleep("a-0", "a-1", "b-0", "b-1")))
    assert builders.names(plan, ResumeJob) == ["js-a-0", "js-a-1"]
    jobs = (builders.ready("a-0"), builders.ready("a-1"), *asleep("b-0", "b-1"))
    assert builders.names(decide.decide(builders.observed(owner, *jobs)), ResumeJob) == ["js-b-0", "js-b-1"]


def test_jobset_is_resumed_though_dependant_waits() -> None:
    owner = builders.jobset(A, READY, status=Status(conditions=(builders.condition("Suspended"),)))
    plan = decide.decide(builders.observed(owner, *asleep("a-0", "a-1", "b-0", "b-1")))
    assert builders.new_condition(plan, "Suspended") == (False, "ResumeJobs", "jobset is resumed")
