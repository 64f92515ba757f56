"""The success policy: upstream's success_policy.go."""

import pytest

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob
from kubemend.controller.jobset.policy import success
from kubemend.controller.jobset.spec.model import Operator, Status, SuccessPolicy
from tests.unit.jobset import builders

A, B = builders.replicated("a", replicas=2), builders.replicated("b", replicas=1)


@pytest.mark.parametrize(
    ("operator", "targets", "done", "expected"),
    [
        pytest.param(Operator.ALL, (), ("a-0", "a-1"), False, id="all of all, one is missing"),
        pytest.param(Operator.ALL, (), ("a-0", "a-1", "b-0"), True, id="all of all"),
        pytest.param(Operator.ALL, ("a",), ("a-0", "a-1"), True, id="all of the target"),
        pytest.param(Operator.ALL, ("a",), ("a-0", "b-0"), False, id="one of the target and a stranger"),
        pytest.param(Operator.ALL, ("a", "b"), ("a-0", "a-1", "b-0"), True, id="all of both targets"),
        pytest.param(Operator.ANY, (), ("b-0",), True, id="any of all"),
        pytest.param(Operator.ANY, ("a",), ("b-0",), False, id="any of the target, a stranger succeeded"),
        pytest.param(Operator.ANY, ("a",), ("a-1",), True, id="any of the target"),
        pytest.param(Operator.ANY, (), (), False, id="any, none has"),
    ],
)
def test_enough_jobs_of_targets_must_succeed(
    operator: Operator, targets: tuple[str, ...], done: tuple[str, ...], *, expected: bool
) -> None:
    spec = builders.jobset(A, B, success=SuccessPolicy(operator, targets)).spec
    assert success.is_met(spec, tuple(builders.succeeded(name) for name in done)) is expected


def test_no_replicas_complete_only_after_a_success() -> None:
    spec = builders.jobset(builders.replicated("a", replicas=0)).spec
    assert not success.is_met(spec, ())


def test_success_completes_jobset_with_upstreams_message() -> None:
    plan = decide.decide(builders.observed(builders.jobset(), builders.succeeded("w-0"), builders.succeeded("w-1")))
    assert builders.new_condition(plan, "Completed") == (True, "AllJobsCompleted", "jobset completed successfully")
    assert plan.status is not None
    assert plan.status.terminal_state == "Completed"
    assert builders.events(plan) == [("Normal", "AllJobsCompleted", "jobset completed successfully")]
    assert plan.counts == ("completed",)


def test_completed_jobset_ends_restarting_condition() -> None:
    status = Status(conditions=(builders.condition(builders.RESTARTING),))
    owner = builders.jobset(status=status, success=SuccessPolicy(Operator.ANY))
    plan = decide.decide(builders.observed(owner, builders.succeeded("w-0"), builders.job("w-1")))
    assert builders.new_condition(plan, builders.RESTARTING) == (
        False,
        "JobSetCompleted",
        "jobset completed successfully",
    )
    assert [reason for _, reason, _ in builders.events(plan)] == ["AllJobsCompleted", "JobSetCompleted"]


def test_nothing_is_created_after_success() -> None:
    owner = builders.jobset(success=SuccessPolicy(Operator.ANY))
    plan = decide.decide(builders.observed(owner, builders.succeeded("w-0"), has_service=False))
    assert plan.writes == ()


def test_missing_jobs_are_created_until_success() -> None:
    plan = decide.decide(builders.observed(builders.jobset(), builders.succeeded("w-0")))
    assert builders.names(plan, CreateJob) == ["js-w-1"]


def test_failure_precedes_success_in_same_reconcile() -> None:
    owner = builders.jobset(success=SuccessPolicy(Operator.ANY))
    plan = decide.decide(builders.observed(owner, builders.succeeded("w-0"), builders.failed("w-1")))
    assert plan.status is not None
    assert plan.status.terminal_state == "Failed"
