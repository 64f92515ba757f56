"""A finished JobSet: upstream's ttl_after_finished.go, and the first branch of its reconcile."""

import pytest

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob, DeleteJob, DeleteJobSet, Plan
from kubemend.controller.jobset.spec.model import ChildJob, Status
from tests.unit.jobset import worlds
from tests.unit.jobset.worlds import NOW

DELETED = (DeleteJobSet(),)


def finished(
    *jobs: ChildJob, ttl: int | None = None, since: float = NOW - 10, kind: str = "Completed", restarts: int = 0
) -> Plan:
    """Return the decision about a JobSet that finished."""
    status = Status(restarts=restarts, conditions=(worlds.condition(kind, since=since),))
    return decide.decide(worlds.world(worlds.jobset(ttl_seconds=ttl, status=status), *jobs))


@pytest.mark.parametrize("kind", ["Completed", "Failed"])
def test_finished_jobset_deletes_running_and_keeps_ended_jobs(kind: str) -> None:
    plan = finished(worlds.ready("w-0"), worlds.succeeded("w-1"), worlds.failed("w-2"), kind=kind)
    assert worlds.names(plan, DeleteJob) == ["js-w-0"]
    assert worlds.names(plan, CreateJob) == []


def test_running_job_of_previous_run_is_deleted() -> None:
    """Upstream leaves it: there, its deletion cannot have failed before the JobSet finished."""
    plan = finished(worlds.ready("w-0"), worlds.failed("w-1"), restarts=1)
    assert worlds.names(plan, DeleteJob) == ["js-w-0"]


def test_job_being_deleted_is_not_deleted_again() -> None:
    assert worlds.names(finished(worlds.ready("w-0", deleting=True)), DeleteJob) == []


def test_counts_of_finished_jobset_continue() -> None:
    assert worlds.counts(finished(worlds.succeeded("w-0")))["w"].succeeded == 1


def test_finished_jobset_does_nothing_else() -> None:
    plan = finished(worlds.failed("w-0"), worlds.failed("w-1"))
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
    plan = finished(worlds.ready("w-0"), ttl=ttl)
    assert plan.writes[-1] == DELETED
    assert plan.wake_at is None


def test_ttl_counts_from_the_end() -> None:
    status = Status(conditions=(worlds.condition("Suspended", since=1.0), worlds.condition("Failed", since=NOW - 10)))
    plan = decide.decide(worlds.world(worlds.jobset(ttl_seconds=11, status=status)))
    assert plan.wake_at == NOW + 1


def test_false_completed_condition_is_no_end() -> None:
    status = Status(conditions=(worlds.condition("Completed", status=False, since=1.0),))
    plan = decide.decide(worlds.world(worlds.jobset(ttl_seconds=0, status=status)))
    assert worlds.names(plan, CreateJob) == ["js-w-0", "js-w-1"]


def test_jobset_without_end_time_is_kept() -> None:
    plan = finished(ttl=0, since=0.0)
    assert DELETED not in plan.writes
    assert plan.wake_at is None


def test_jobset_ended_in_the_future_is_kept_until_then() -> None:
    assert finished(ttl=5, since=NOW + 100).wake_at == NOW + 105
