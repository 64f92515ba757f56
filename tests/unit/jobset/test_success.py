"""The success policy: upstream's success_policy.go."""

import pytest

from controller.jobset import decide, success
from controller.jobset.model import Operator, Status, SuccessPolicy
from controller.jobset.plan import CreateJob
from tests.unit.jobset import worlds

A, B = worlds.replicated("a", replicas=2), worlds.replicated("b", replicas=1)


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
def test_enough_jobs_of_the_targets_must_have_succeeded(
    operator: Operator, targets: tuple[str, ...], done: tuple[str, ...], *, expected: bool
) -> None:
    spec = worlds.jobset(A, B, success=SuccessPolicy(operator, targets)).spec
    assert success.is_met(spec, tuple(worlds.succeeded(name) for name in done)) is expected


def test_without_replicas_nothing_completes_before_any_job_has_succeeded() -> None:
    spec = worlds.jobset(worlds.replicated("a", replicas=0)).spec
    assert not success.is_met(spec, ())


def test_the_success_policy_completes_the_jobset_in_upstreams_words() -> None:
    plan = decide.decide(worlds.world(worlds.jobset(), worlds.succeeded("w-0"), worlds.succeeded("w-1")))
    assert worlds.said(plan, "Completed") == (True, "AllJobsCompleted", "jobset completed successfully")
    assert plan.status is not None
    assert plan.status.terminal_state == "Completed"
    assert worlds.told(plan) == [("Normal", "AllJobsCompleted", "jobset completed successfully")]
    assert plan.counts == ("completed",)


def test_a_completed_jobset_says_that_it_no_longer_restarts() -> None:
    status = Status(conditions=(worlds.condition(worlds.RESTARTING),))
    owner = worlds.jobset(status=status, success=SuccessPolicy(Operator.ANY))
    plan = decide.decide(worlds.world(owner, worlds.succeeded("w-0"), worlds.job("w-1")))
    assert worlds.said(plan, worlds.RESTARTING) == (False, "JobSetCompleted", "jobset completed successfully")
    assert [reason for _, reason, _ in worlds.told(plan)] == ["AllJobsCompleted", "JobSetCompleted"]


def test_nothing_is_created_once_the_success_policy_is_met() -> None:
    owner = worlds.jobset(success=SuccessPolicy(Operator.ANY))
    plan = decide.decide(worlds.world(owner, worlds.succeeded("w-0"), has_service=False))
    assert plan.writes == ()


def test_until_it_is_met_missing_jobs_are_created() -> None:
    plan = decide.decide(worlds.world(worlds.jobset(), worlds.succeeded("w-0")))
    assert worlds.names(plan, CreateJob) == ["js-w-1"]


def test_a_failure_beats_a_success_in_the_same_look() -> None:
    owner = worlds.jobset(success=SuccessPolicy(Operator.ANY))
    plan = decide.decide(worlds.world(owner, worlds.succeeded("w-0"), worlds.failed("w-1")))
    assert plan.status is not None
    assert plan.status.terminal_state == "Failed"
