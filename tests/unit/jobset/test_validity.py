"""A JobSet that cannot be run: it says so, and until it is mended it can only be suspended."""

from controller.jobset import decide
from controller.jobset.model import FailurePolicy, JobSet, ReplicatedJobStatus, Status, SuccessPolicy
from controller.jobset.plan import CreateJob, DeleteJob, Plan, ResumeJob, SuspendJob
from tests.unit.jobset import worlds

VALID = "kubemend.io/Valid"


def invalid(status: Status | None = None, **spec: object) -> JobSet:
    """A JobSet whose success policy names a replicated Job that is not there."""
    return worlds.jobset(success=SuccessPolicy(targets=("nobody",)), status=status, **spec)


def test_it_says_what_is_wrong_where_and_the_mend() -> None:
    plan = decide.decide(worlds.world(invalid()))
    said = worlds.said(plan, VALID)
    assert said is not None
    assert said[:2] == (False, "Invalid")
    assert said[2].startswith("spec.successPolicy.targetReplicatedJobs[0]: there is no replicated Job 'nobody'; ")
    assert worlds.told(plan) == [("Warning", "Invalid", said[2])]


def test_nothing_is_created_deleted_or_failed() -> None:
    jobs = (worlds.failed("w-0"), worlds.ready("w-1", attempt=0))
    status = Status(restarts=0)
    plan = decide.decide(worlds.world(invalid(status), *jobs, has_service=False))
    assert plan.writes == ()
    assert plan.status is not None
    assert plan.status.terminal_state == ""
    assert [each.type for each in plan.status.conditions] == [VALID]


def test_it_is_suspended_all_the_same_and_counted_for_kueue_waits_until_none_is_active() -> None:
    jobs = (worlds.ready("w-0", attempt=1), worlds.job("w-1", attempt=1, suspended=True), worlds.ready("w-2"))
    plan = decide.decide(worlds.world(invalid(Status(restarts=1), suspend=True), *jobs, has_service=False))
    assert plan.writes == ((DeleteJob("js-w-2", "uid-w-2"), SuspendJob("js-w-0", "uid-w-0")),)
    assert worlds.said(plan, "Suspended") == (True, "SuspendedJobs", "jobset is suspended")
    assert worlds.counts(plan)["w"] == ReplicatedJobStatus("w", ready=1, active=1, suspended=1)


def test_once_suspended_it_rests_and_is_not_resumed_before_it_is_mended() -> None:
    asleep = worlds.carried_out(worlds.world(invalid(suspend=True), worlds.ready("w-0"), worlds.ready("w-1")))
    assert asleep.jobset.status.replicated_jobs == (ReplicatedJobStatus("w", suspended=2),)
    resumed = worlds.with_spec(asleep, suspend=False)
    assert decide.decide(resumed) == Plan()
    mended = decide.decide(worlds.with_spec(resumed, success=SuccessPolicy()))
    assert worlds.names(mended, ResumeJob) == ["js-w-0", "js-w-1"]


def test_what_failed_meanwhile_is_answered_once_it_is_mended() -> None:
    before = worlds.carried_out(worlds.world(invalid(suspend=True), worlds.failed("w-0"), worlds.ready("w-1")))
    assert before.jobset.status.terminal_state == ""
    plan = decide.decide(worlds.with_spec(before, success=SuccessPolicy()))
    assert plan.status is not None
    assert plan.status.terminal_state == "Failed"


def test_it_is_said_once() -> None:
    before = worlds.world(invalid())
    assert decide.decide(worlds.applied(before, decide.decide(before))) == Plan()


def test_once_mended_it_says_so_and_runs() -> None:
    before = worlds.world(invalid())
    mended = worlds.with_spec(worlds.applied(before, decide.decide(before)), success=SuccessPolicy())
    plan = decide.decide(mended)
    assert worlds.said(plan, VALID) == (True, "Mended", "what was invalid is mended")
    assert worlds.told(plan) == [("Normal", "Mended", "what was invalid is mended")]
    assert worlds.names(plan, CreateJob) == ["js-w-0", "js-w-1"]


def test_one_that_always_was_valid_has_no_such_condition() -> None:
    assert worlds.said(decide.decide(worlds.world(worlds.jobset())), VALID) is None


def test_however_much_is_wrong_an_event_holds_what_is_said() -> None:
    owner = worlds.jobset(success=SuccessPolicy(targets=tuple(f"nobody-{index}" for index in range(100))))
    said = worlds.said(decide.decide(worlds.world(owner)), VALID)
    assert said is not None
    assert len(said[2].encode()) <= 1024
    assert said[2].endswith("(100 problems)")


def test_a_finished_jobset_is_cleared_up_however_its_spec_reads() -> None:
    status = Status(conditions=(worlds.condition("Failed", since=1.0),))
    owner = invalid(status, ttl_seconds=1, failure=FailurePolicy())
    plan = decide.decide(worlds.world(owner, worlds.ready("w-0")))
    assert len(plan.writes) == 2
