"""``replicatedJobsStatus``: upstream's calculateReplicatedJobStatuses."""

from typing import Any

import pytest

from kubemend.controller.jobset.children import buckets
from kubemend.controller.jobset.spec.model import ChildJob, ReplicatedJob, ReplicatedJobStatus, Status
from tests.unit.jobset import builders


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"parallelism": 2, "completions": 2, "ready": 2}, True),
        ({"parallelism": 2, "completions": 2, "ready": 1}, False),
        ({"parallelism": 2, "completions": 2, "ready": 1, "succeeded": 1}, True),
        ({"parallelism": 4, "completions": 2, "ready": 2}, True),
        ({"parallelism": 2, "completions": 4, "ready": 2}, True),
        ({"parallelism": 2, "completions": None, "ready": 2}, True),
        ({"parallelism": 2, "completions": None, "ready": 1}, False),
        ({"parallelism": 0, "completions": 1, "ready": 0}, True),
    ],
)
def test_job_is_ready_with_enough_ready_or_finished_pods(fields: dict[str, Any], *, expected: bool) -> None:
    assert buckets.is_ready(builders.job("w-0", **fields)) is expected


def test_permanently_failed_index_counts_as_over() -> None:
    assert buckets.is_ready(builders.job("w-0", parallelism=4, completions=4, ready=2, failed_indexes="1,3"))
    assert not buckets.is_ready(builders.job("w-0", parallelism=4, completions=4, ready=2, failed_indexes="1"))


def test_unreadable_failed_indexes_do_not_count() -> None:
    assert not buckets.is_ready(builders.job("w-0", parallelism=4, completions=4, ready=2, failed_indexes="1-x"))


def counted(*jobs: ChildJob, status: Status | None = None, replicas: int = 9) -> ReplicatedJobStatus:
    """Return the counts for the replicated Job ``w``."""
    owner = builders.jobset(builders.replicated(replicas=replicas), status=status)
    (found,) = buckets.counted(owner, buckets.sort(owner.status, jobs))
    return found


def test_jobs_are_counted_by_state() -> None:
    found = counted(
        builders.job("w-0"),
        builders.job("w-1", active=1),
        builders.ready("w-2"),
        builders.job("w-3", suspended=True),
        builders.succeeded("w-4"),
        builders.succeeded("w-5"),
        builders.failed("w-6"),
    )
    assert found == ReplicatedJobStatus("w", ready=1, active=2, suspended=1, succeeded=2, failed=1)


def test_jobs_of_previous_runs_are_not_counted() -> None:
    jobs = (builders.ready("w-0"), builders.succeeded("w-1"), builders.failed("w-2"), builders.ready("w-3", attempt=1))
    found = counted(*jobs, status=Status(restarts=1))
    assert found == ReplicatedJobStatus("w", ready=1, active=1)


def test_jobs_without_known_replicated_job_are_not_counted() -> None:
    assert counted(builders.ready("x-0"), builders.succeeded("w-0", replicated_job="")) == ReplicatedJobStatus("w")


def test_restart_counts_are_kept() -> None:
    before = ReplicatedJobStatus("w", ready=7, job_restarts=(1, 2), job_restarts_counted=(1, 0))
    found = counted(status=Status(replicated_jobs=(before,)))
    assert found == ReplicatedJobStatus("w", job_restarts=(1, 2), job_restarts_counted=(1, 0))


def test_statuses_are_ordered_by_name() -> None:
    owner = builders.jobset(builders.replicated("b"), builders.replicated("a"), builders.replicated("c"))
    found = buckets.counted(owner, buckets.sort(Status(), (builders.ready("c-0"),)))
    assert [(each.name, each.ready) for each in found] == [("a", 0), ("b", 0), ("c", 1)]


W = builders.replicated(replicas=3)


@pytest.mark.parametrize(
    ("status", "started", "complete"),
    [
        (ReplicatedJobStatus("w"), False, False),
        (ReplicatedJobStatus("w", ready=2, active=1), False, False),
        (ReplicatedJobStatus("w", ready=1, succeeded=1, failed=1), True, False),
        (ReplicatedJobStatus("w", ready=3), True, False),
        (ReplicatedJobStatus("w", succeeded=3), True, True),
        (ReplicatedJobStatus("w", failed=3), True, False),
        (ReplicatedJobStatus("x", succeeded=3), False, False),
    ],
)
def test_started_is_ready_or_over_complete_is_succeeded(
    status: ReplicatedJobStatus, *, started: bool, complete: bool
) -> None:
    assert buckets.is_started(W, (status,)) is started
    assert buckets.is_complete(W, (status,)) is complete


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((ReplicatedJobStatus("a", ready=1), ReplicatedJobStatus("b", ready=1, succeeded=1)), True),
        ((ReplicatedJobStatus("a", ready=1), ReplicatedJobStatus("b", ready=1, failed=1)), False),
        ((ReplicatedJobStatus("a", ready=1), ReplicatedJobStatus("b", ready=1)), False),
    ],
)
def test_all_ready_when_each_job_is_ready_or_succeeded(
    statuses: tuple[ReplicatedJobStatus, ...], *, expected: bool
) -> None:
    jobs: tuple[ReplicatedJob, ...] = (builders.replicated("a", replicas=1), builders.replicated("b", replicas=2))
    assert buckets.all_ready(builders.jobset(*jobs), statuses) is expected
