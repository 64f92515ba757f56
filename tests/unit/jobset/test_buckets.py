"""The Jobs of the current run, and how they ended: upstream's getChildJobs."""

import pytest

from kubemend.controller.jobset.children import buckets
from kubemend.controller.jobset.spec.model import ChildJob, ReplicatedJobStatus, Status
from tests.unit.jobset import builders


def bucket(job: ChildJob, status: Status | None = None) -> str:
    """Return the name of the only bucket that has the Job."""
    found = buckets.sort(status or Status(), (job,))
    has = [name for name in ("active", "successful", "failed", "previous") if getattr(found, name)]
    assert len(has) == 1
    return has[0]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        pytest.param(builders.job("w-0"), "active", id="without an end"),
        pytest.param(builders.job("w-0", suspended=True), "active", id="suspended"),
        pytest.param(builders.ready("w-0", deleting=True), "active", id="being deleted"),
        pytest.param(builders.succeeded("w-0"), "successful", id="complete"),
        pytest.param(builders.failed("w-0"), "failed", id="failed"),
    ],
)
def test_job_of_this_run_is_sorted_by_its_end(job: ChildJob, expected: str) -> None:
    assert bucket(job) == expected


@pytest.mark.parametrize("job", [builders.ready("w-0"), builders.succeeded("w-0"), builders.failed("w-0")])
def test_lower_attempt_is_previous_whatever_its_end(job: ChildJob) -> None:
    assert bucket(job, Status(restarts=1)) == "previous"


def test_higher_attempt_belongs_to_this_run() -> None:
    assert bucket(builders.ready("w-0", attempt=2), Status(restarts=1)) == "active"


def of_jobs(*restarts: int) -> Status:
    """Return a status in which single Jobs of ``w`` were restarted."""
    return Status(replicated_jobs=(ReplicatedJobStatus("w", job_restarts=restarts),))


def test_job_restarted_alone_is_previous_and_its_neighbour_is_not() -> None:
    assert bucket(builders.failed("w-1"), of_jobs(0, 1)) == "previous"
    assert bucket(builders.ready("w-0"), of_jobs(0, 1)) == "active"
    assert bucket(builders.ready("w-1", job_attempt=1), of_jobs(0, 1)) == "active"


def test_job_without_own_restart_label_is_kept() -> None:
    assert bucket(builders.ready("w-1", job_attempt=None), of_jobs(0, 1)) == "active"


@pytest.mark.parametrize("index", [None, 2, 100])
def test_job_outside_counted_range_is_kept(index: int | None) -> None:
    assert bucket(builders.ready("w-0", index=index), of_jobs(1, 1)) == "active"


def test_unreadable_attempt_belongs_to_this_run() -> None:
    assert bucket(builders.ready("w-0", attempt=None), Status(restarts=3)) == "active"
    assert bucket(builders.failed("w-0", attempt=None), Status(restarts=3)) == "failed"


def test_unreadable_attempt_is_previous_during_a_restart() -> None:
    status = Status(restarts=1, conditions=(builders.condition(builders.RESTARTING),))
    assert bucket(builders.failed("w-0", attempt=None), status) == "previous"


def test_unreadable_attempt_being_deleted_stays_previous() -> None:
    ended = Status(restarts=1, conditions=(builders.condition(builders.RESTARTING, status=False),))
    assert bucket(builders.failed("w-0", attempt=None, deleting=True), ended) == "previous"


def test_buckets_are_ordered_by_name() -> None:
    jobs = tuple(builders.ready(f"w-{index}") for index in (2, 0, 1))
    found = buckets.sort(Status(), jobs)
    assert builders.names_of(found.active) == ["js-w-0", "js-w-1", "js-w-2"]


def test_names_include_all_buckets() -> None:
    jobs = (builders.ready("w-0"), builders.succeeded("w-1"), builders.failed("w-2"), builders.ready("w-3", attempt=-1))
    assert buckets.sort(Status(), jobs).names == {f"js-w-{index}" for index in range(4)}
