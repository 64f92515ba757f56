"""Differences from the expectations are found: a scenario cannot pass by missing checks."""

from typing import Any

import pytest

from tests.jobset.player import expectations, seeing
from tests.jobset.player.seeing import Seen

JOB: dict[str, Any] = {
    "metadata": {
        "name": "js-workers-0",
        "labels": {"jobset.sigs.k8s.io/restart-attempt": "1", "jobset.sigs.k8s.io/job-restart-attempt": "0"},
    },
    "spec": {"suspend": False, "parallelism": 2, "template": {"spec": {"tolerations": [{"key": "a", "value": "b"}]}}},
}
SEEN = Seen(
    uid="u-1",
    name="js",
    jobset={
        "metadata": {"name": "js"},
        "status": {
            "restarts": 1,
            "conditions": [{"type": "Suspended", "status": "True", "reason": "SuspendedJobs", "message": "it is"}],
            "replicatedJobsStatus": [{"name": "workers", "ready": 1, "failed": 0}],
            "currentInPlaceRestartAttempt": 0,
        },
    },
    jobs={"js-workers-0": JOB},
    services={"js": {"spec": {"clusterIP": "None"}}},
    claims={},
    events=("Normal SuspendedJobs: it is", "Normal SuspendedJobs: it is"),
    restart_requests=({"spec": {"strategy": "reset"}},),
    gang={"limit": 3, "used": 1, "closed": "Suspended"},
)


def differences(**expected: Any) -> list[str]:
    return seeing.differences(expectations.parse(expected, "here"), SEEN, prefix="js-")


@pytest.mark.parametrize(
    "expected",
    [
        {"jobset": "there", "like": {"metadata": {"name": "$NAME", "labels": None}}},
        {"conditions": {"Suspended": "True SuspendedJobs: it is"}},
        {"conditions": {"Suspended": "True SuspendedJobs"}},
        {"conditions": {"Suspended": "True SuspendedJobs: ~ ^it"}},
        {"restarts": 1, "restartsCountTowardsMax": 0, "terminalState": ""},
        {"inPlace": {"current": 0}},
        {"replicatedJobs": {"workers": {"ready": 1}}},
        {"jobs": ["workers-0"]},
        {
            "jobs": {
                "workers-0": {"attempt": 1, "jobAttempt": 0, "suspended": False, "like": {"spec": {"parallelism": 2}}}
            }
        },
        {"jobs": {"workers-0": {"like": {"spec": {"template": {"spec": {"tolerations": [{"key": "a"}]}}}}}}},
        {"services": {"js": {"spec": {"clusterIP": "None", "publishNotReadyAddresses": False}}}, "claims": []},
        {"events": ["Normal SuspendedJobs: it is", "Normal SuspendedJobs: ~ is"]},
        {"restartRequests": [{"spec": {"strategy": "reset"}}]},
        {"gang": {"limit": 3, "closed": "Suspended"}},
    ],
)
def test_expected_state_gives_no_difference(expected: dict[str, Any]) -> None:
    assert differences(**expected) == []


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({"jobset": "gone"}, "the JobSet is there, not gone"),
        ({"like": {"metadata": {"name": "$UID"}}}, "metadata.name is 'js', not 'u-1'"),
        ({"conditions": {}}, "condition Suspended exists: True SuspendedJobs: it is"),
        ({"conditions": {"Failed": "True X", "Suspended": "True SuspendedJobs"}}, "condition Failed is missing"),
        (
            {"conditions": {"Suspended": "False SuspendedJobs: it is"}},
            "condition Suspended is 'True SuspendedJobs: it is'",
        ),
        ({"conditions": {"Suspended": "True SuspendedJobs: it"}}, "condition Suspended is"),
        ({"conditions": {"Suspended": "True SuspendedJobs: ~ ^is"}}, "condition Suspended is"),
        ({"restarts": 0}, "restarts is 1, not 0"),
        ({"terminalState": "Failed"}, "terminalState is '', not 'Failed'"),
        ({"inPlace": {}}, "inPlace (previous, current) is (None, 0), not (None, None)"),
        ({"replicatedJobs": {}}, "replicatedJobsStatus of workers is {'ready': 1}, not {}"),
        ({"replicatedJobs": {"workers": {"ready": 1}, "b": {"active": 1}}}, "replicatedJobsStatus of b is {}, not"),
        ({"jobs": []}, "jobs are ['js-workers-0'], not []"),
        ({"jobs": ["workers-0", "workers-1"]}, "jobs are ['js-workers-0'], not ['js-workers-0', 'js-workers-1']"),
        ({"jobs": {"workers-0": {"attempt": 0}}}, "Job js-workers-0: attempt is 1, not 0"),
        ({"jobs": {"workers-0": {"suspended": True}}}, "Job js-workers-0: suspended is False, not True"),
        ({"jobs": {"workers-0": {"deleting": True}}}, "Job js-workers-0: deleting is False, not True"),
        ({"jobs": {"workers-0": {"like": {"spec": {"parallelism": None}}}}}, "Job js-workers-0: spec.parallelism is 2"),
        (
            {"jobs": {"workers-0": {"like": {"spec": {"template": {"spec": {"tolerations": []}}}}}}},
            "Job js-workers-0: spec.template.spec.tolerations is",
        ),
        ({"services": []}, "services are ['js'], not []"),
        ({"claims": ["a"]}, "claims are [], not ['a']"),
        ({"events": ["Normal SuspendedJobs: it is"]}, "unexpected event: Normal SuspendedJobs: it is"),
        ({"events": ["Normal SuspendedJobs: it is"] * 3}, "event is missing: Normal SuspendedJobs: it is"),
        ({"restartRequests": []}, "restartRequests is"),
        ({"gang": {"used": 0}}, "gang.used is 1, not 0"),
    ],
)
def test_difference_is_reported(expected: dict[str, Any], said: str) -> None:
    (line,) = differences(**expected)
    assert line.startswith(said)


def test_job_in_deletion_does_not_count_as_existing() -> None:
    deleting = {**JOB, "metadata": {**JOB["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    seen = Seen(**{name: getattr(SEEN, name) for name in Seen.__slots__} | {"jobs": {"js-workers-0": deleting}})
    expect = expectations.parse({"jobs": ["workers-0"]}, "here")
    assert seeing.differences(expect, seen, prefix="js-") == ["Job js-workers-0: deleting is True, not False"]
