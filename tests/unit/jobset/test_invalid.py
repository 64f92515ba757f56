"""An invalid JobSet: it has a condition, and until it is fixed it can only be suspended."""

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob, DeleteJob, Plan, ResumeJob, SuspendJob
from kubemend.controller.jobset.spec.model import FailurePolicy, JobSet, ReplicatedJobStatus, Status, SuccessPolicy
from tests.unit.jobset import builders

VALID = "kubemend.io/Valid"


def invalid(status: Status | None = None, **spec: object) -> JobSet:
    """Return a JobSet whose success policy names an unknown replicated Job."""
    return builders.jobset(success=SuccessPolicy(targets=("missing",)), status=status, **spec)


def test_invalid_jobset_has_condition_with_problem_and_hint() -> None:
    plan = decide.decide(builders.observed(invalid()))
    condition = builders.new_condition(plan, VALID)
    assert condition is not None
    assert condition[:2] == (False, "Invalid")
    assert condition[2].startswith("spec.successPolicy.targetReplicatedJobs[0]: there is no replicated Job 'missing'; ")
    assert builders.events(plan) == [("Warning", "Invalid", condition[2])]


def test_invalid_jobset_changes_nothing() -> None:
    jobs = (builders.failed("w-0"), builders.ready("w-1", attempt=0))
    status = Status(restarts=0)
    plan = decide.decide(builders.observed(invalid(status), *jobs, has_service=False))
    assert plan.writes == ()
    assert plan.status is not None
    assert plan.status.terminal_state == ""
    assert [each.type for each in plan.status.conditions] == [VALID]


def test_invalid_jobset_is_suspended_and_counted() -> None:
    jobs = (builders.ready("w-0", attempt=1), builders.job("w-1", attempt=1, suspended=True), builders.ready("w-2"))
    plan = decide.decide(builders.observed(invalid(Status(restarts=1), suspend=True), *jobs, has_service=False))
    assert plan.writes == ((DeleteJob("js-w-2", "uid-w-2"), SuspendJob("js-w-0", "uid-w-0")),)
    assert builders.new_condition(plan, "Suspended") == (True, "SuspendedJobs", "jobset is suspended")
    assert builders.counts(plan)["w"] == ReplicatedJobStatus("w", ready=1, active=1, suspended=1)


def test_suspended_invalid_jobset_is_not_resumed_until_fixed() -> None:
    asleep = builders.carried_out(
        builders.observed(invalid(suspend=True), builders.ready("w-0"), builders.ready("w-1"))
    )
    assert asleep.jobset.status.replicated_jobs == (ReplicatedJobStatus("w", suspended=2),)
    resumed = builders.with_spec(asleep, suspend=False)
    assert decide.decide(resumed) == Plan()
    fixed = decide.decide(builders.with_spec(resumed, success=SuccessPolicy()))
    assert builders.names(fixed, ResumeJob) == ["js-w-0", "js-w-1"]


def test_failure_while_invalid_is_handled_once_fixed() -> None:
    before = builders.carried_out(
        builders.observed(invalid(suspend=True), builders.failed("w-0"), builders.ready("w-1"))
    )
    assert before.jobset.status.terminal_state == ""
    plan = decide.decide(builders.with_spec(before, success=SuccessPolicy()))
    assert plan.status is not None
    assert plan.status.terminal_state == "Failed"


def test_invalidity_is_reported_once() -> None:
    before = builders.observed(invalid())
    assert decide.decide(builders.applied(before, decide.decide(before))) == Plan()


def test_fixed_jobset_reports_that_and_runs() -> None:
    before = builders.observed(invalid())
    fixed = builders.with_spec(builders.applied(before, decide.decide(before)), success=SuccessPolicy())
    plan = decide.decide(fixed)
    assert builders.new_condition(plan, VALID) == (True, "ValidAgain", "the JobSet is valid again")
    assert builders.events(plan) == [("Normal", "ValidAgain", "the JobSet is valid again")]
    assert builders.names(plan, CreateJob) == ["js-w-0", "js-w-1"]


def test_always_valid_jobset_has_no_condition() -> None:
    assert builders.new_condition(decide.decide(builders.observed(builders.jobset())), VALID) is None


def test_many_problems_fit_into_an_event() -> None:
    owner = builders.jobset(success=SuccessPolicy(targets=tuple(f"missing-{index}" for index in range(100))))
    condition = builders.new_condition(decide.decide(builders.observed(owner)), VALID)
    assert condition is not None
    assert len(condition[2].encode()) <= 1024
    assert condition[2].endswith("(100 problems)")


def test_finished_invalid_jobset_is_cleaned_up() -> None:
    status = Status(conditions=(builders.condition("Failed", since=1.0),))
    owner = invalid(status, ttl_seconds=1, failure=FailurePolicy())
    plan = decide.decide(builders.observed(owner, builders.ready("w-0")))
    assert len(plan.writes) == 2
