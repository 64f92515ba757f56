"""A finished JobSet: upstream's ttl_after_finished.go, and the first branch of its reconcile."""

import pytest

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob, DeleteJob, DeleteJobSet, Plan
from kubemend.controller.jobset.spec.model import ChildJob, Status
from tests.unit.jobset import builders
from tests.unit.jobset.builders import NOW

DELETED = (DeleteJobSet(),)


def finished(
    *jobs: ChildJob, ttl: int | None = None, since: float = NOW - 10, kind: str = "Completed", restarts: int = 0
) -> Plan:
    """Return the decision about a JobSet that finished."""
    status = Status(restarts=restarts, conditions=(builders.condition(kind, since=since),))
    return decide.decide(builders.observed(builders.jobset(ttl_seconds=ttl, status=status), *jobs))


@pytest.mark.parametrize("kind", ["Completed", "Failed"])
def test_finished_jobset_deletes_running_and_keeps_ended_jobs(kind: str) -> None:
    plan = finished(builders.ready("w-0"), builders.succeeded("w-1"), builders.failed("w-2"), kind=kind)
    assert builders.names(plan, DeleteJob) == ["js-w-0"]
    assert builders.names(plan, CreateJob) == []


def test_running_job_of_previous_run_is_deleted() -> None:
    """Upstream leaves it: there, its deletion cannot have failed before the JobSet finished."""
    plan = finished(builders.ready("w-0"), builders.failed("w-1"), restarts=1)
    assert builders.names(plan, DeleteJob) == ["js-w-0"]


def test_job_being_deleted_is_not_deleted_again() -> None:
    assert builders.names(finished(builders.ready("w-0", deleting=True)), DeleteJob) == []


def test_counts_of_finished_jobset_continue() -> None:
    assert builders.counts(finished(builders.succeeded("w-0")))["w"].succeeded == 1


def test_finished_jobset_does_nothing_else() -> None:
    plan = finished(builders.failed("w-0"), builders.failed("w-1"))
    assert (plan.writes, plan.events, plan.counts, plan.wake_at) == ((), (), (), None)


def test_jobset_without_ttl_stays() -> None:
    plan = finished(since=1.0)
    assert DELETED not in plan.writes
    assert plan.wake_at is None


@pytest.mark.parametrize("kind", ["Completed", "Failed"])
def test_jobset_stays_until_ttl_with_wake_up(kind: str) -> None:
    plan = finished(ttl=30, since=NOW - 10, kind=kind)
    assert DELETED not in plan.writes
    assert plan.wake_at == NOW + 20


@pytest.mark.parametrize("ttl", [10, 5, 0])
def test_jobset_is_deleted_after_ttl(ttl: int) -> None:
    plan = finished(builders.ready("w-0"), ttl=ttl)
    assert plan.writes[-1] == DELETED
    assert plan.wake_at is None


def test_ttl_counts_from_the_end() -> None:
    status = Status(
        conditions=(builders.condition("Suspended", since=1.0), builders.condition("Failed", since=NOW - 10))
    )
    plan = decide.decide(builders.observed(builders.jobset(ttl_seconds=11, status=status)))
    assert plan.wake_at == NOW + 1


def test_false_completed_condition_is_no_end() -> None:
    status = Status(conditions=(builders.condition("Completed", status=False, since=1.0),))
    plan = decide.decide(builders.observed(builders.jobset(ttl_seconds=0, status=status)))
    assert builders.names(plan, CreateJob) == ["js-w-0", "js-w-1"]


def test_jobset_without_end_time_is_kept() -> None:
    plan = finished(ttl=0, since=0.0)
    assert DELETED not in plan.writes
    assert plan.wake_at is None


def test_jobset_ended_in_the_future_is_kept_until_then() -> None:
    assert finished(ttl=5, since=NOW + 100).wake_at == NOW + 105
