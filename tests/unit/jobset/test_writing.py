"""A written status is read back as the same status."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.jobset import conditions, writing
from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import Condition, ReplicatedJobStatus, Status
from tests.unit.jobset import written

COUNTS = st.integers(0, 2**31 - 1)
NAMES = st.text(alphabet="abc-", min_size=1, max_size=5)
MOMENTS = st.integers(0, 4_000_000_000).map(float)
CONDITIONS = st.builds(
    Condition,
    type=st.sampled_from(sorted(conditions.OURS)),
    status=st.booleans(),
    reason=NAMES,
    message=st.text(max_size=9),
    since=MOMENTS,
)
EACH = st.lists(COUNTS, max_size=4).map(tuple)
REPLICATED = st.builds(
    ReplicatedJobStatus,
    name=NAMES,
    ready=COUNTS,
    succeeded=COUNTS,
    failed=COUNTS,
    active=COUNTS,
    suspended=COUNTS,
    job_restarts=EACH,
    job_restarts_counted=EACH,
)
STATUSES = st.builds(
    Status,
    conditions=st.lists(CONDITIONS, max_size=4, unique_by=lambda each: each.type).map(tuple),
    restarts=COUNTS,
    restarts_counted=COUNTS,
    terminal_state=st.sampled_from(["", "Completed", "Failed"]),
    replicated_jobs=st.lists(REPLICATED, max_size=4, unique_by=lambda each: each.name).map(
        lambda found: tuple(sorted(found, key=lambda each: each.name))
    ),
    previous_in_place=st.none() | COUNTS,
    current_in_place=st.none() | COUNTS,
)


@given(STATUSES)
def test_status_round_trips(status: Status) -> None:
    obj = written.there(written.jobset())
    obj["status"] = writing.status_json(status)
    assert reading.jobset(obj).status == status


def test_empty_status_has_zero_restarts() -> None:
    """Like upstream, where only ``restarts`` has no omitempty."""
    assert writing.status_json(Status()) == {"restarts": 0}


def test_zero_in_place_attempts_differ_from_none() -> None:
    assert writing.status_json(Status(previous_in_place=0, current_in_place=1)) == {
        "restarts": 0,
        "previousInPlaceRestartAttempt": 0,
        "currentInPlaceRestartAttempt": 1,
    }


def test_replicated_jobs_are_written_by_name_with_counts() -> None:
    status = Status(
        replicated_jobs=(ReplicatedJobStatus("b", ready=1), ReplicatedJobStatus("a", job_restarts=(0, 2))), restarts=1
    )
    counts = {"ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0}
    assert writing.status_json(status)["replicatedJobsStatus"] == [
        {"name": "a", **counts, "jobRestarts": [0, 2]},
        {"name": "b", **counts, "ready": 1},
    ]


def test_conditions_keep_order_and_whole_seconds() -> None:
    conditions = (
        Condition("Suspended", status=False, reason="ResumeJobs", message="jobset is resumed", since=1769846400.9),
        Condition("Failed", status=True, reason="FailedJobs", message="", since=1769846401.0),
    )
    assert writing.status_json(Status(conditions=conditions))["conditions"] == [
        {
            "type": "Suspended",
            "status": "False",
            "reason": "ResumeJobs",
            "message": "jobset is resumed",
            "lastTransitionTime": "2026-01-31T08:00:00Z",
        },
        {
            "type": "Failed",
            "status": "True",
            "reason": "FailedJobs",
            "message": "",
            "lastTransitionTime": "2026-01-31T08:00:01Z",
        },
    ]


def test_foreign_condition_is_written_back_unchanged() -> None:
    theirs = {
        "type": "example.com/Checked",
        "status": "Unknown",
        "observedGeneration": 3,
        "reason": "Later",
        "message": "not yet",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    obj = {
        "metadata": {"name": "train", "namespace": "default", "uid": "u1"},
        "spec": {},
        "status": {"restarts": 0, "conditions": [theirs]},
    }

    status = writing.status_json(reading.jobset(obj).status)

    assert status["conditions"] == [theirs]
