from typing import Any

import pytest

from hack.devnode.kubelet import podstatus, reporting, rules
from hack.devnode.kubelet.observed import Observed
from hack.devnode.kubelet.spec import RESTART_ALL, Json, Pod
from hack.devnode.kubelet.statuses import StartFailure
from tests.unit.devnode.kubelet_builders import (
    CREATED,
    EXITED,
    RUNNING,
    container,
    pod,
    rule,
    runtime,
    seen,
    sidecar,
)

NOW = "2026-01-01T00:00:00Z"


def generate(subject: Pod, *shown: Observed, previous: Json | None = None, **fields: Any) -> Json:
    values: dict[str, Any] = {
        "pod": subject,
        "runtime": runtime(*shown),
        "previous": previous or {},
        "failures": {},
        "probes": rules.ProbeResults(),
        "host_ip": "10.9.9.9",
        "now": NOW,
    }
    return podstatus.generate(podstatus.Inputs(**{**values, **fields}))


def main_of(status: Json) -> Json:
    found: Json = podstatus.by_name(status)["main"]
    return found


@pytest.mark.parametrize(
    ("policy", "shown", "phase"),
    [
        pytest.param("Always", [], "Pending", id="nothing-yet"),
        pytest.param("Always", [seen("main", RUNNING)], "Running", id="running"),
        pytest.param("Always", [seen("main", EXITED)], "Running", id="will-be-restarted"),
        pytest.param("OnFailure", [seen("main", EXITED, exit_code=1)], "Running", id="failure-will-be-restarted"),
        pytest.param("OnFailure", [seen("main", EXITED)], "Succeeded", id="on-failure-success-is-final"),
        pytest.param("Never", [seen("main", EXITED)], "Succeeded", id="never-success"),
        pytest.param("Never", [seen("main", EXITED, exit_code=137)], "Failed", id="never-failure"),
        pytest.param(
            "Never",
            [seen("main", EXITED, exit_code=137), seen("main", CREATED, attempt=1)],
            "Failed",
            id="never-with-a-successor-that-is-only-created",
        ),
        pytest.param(
            "Never",
            [seen("main", EXITED, exit_code=137), seen("main", RUNNING, attempt=1)],
            "Running",
            id="never-with-a-successor-that-runs",
        ),
    ],
)
def test_phase(policy: str, shown: list[Observed], phase: str) -> None:
    assert generate(pod(container("main"), policy=policy), *shown)["phase"] == phase


def test_a_running_sidecar_keeps_a_never_pod_running_while_the_successor_is_created() -> None:
    subject = pod(container("main"), inits=[sidecar("side")], policy="Never")
    shown = [seen("side", RUNNING), seen("main", EXITED, exit_code=137), seen("main", CREATED, attempt=1)]
    assert generate(subject, *shown)["phase"] == "Running"


@pytest.mark.parametrize("ended", ["Failed", "Succeeded"])
def test_a_terminal_phase_is_never_left(ended: str) -> None:
    assert generate(pod(container("main")), seen("main", RUNNING), previous={"phase": ended})["phase"] == ended


def test_the_newest_two_containers_give_state_and_last_state() -> None:
    shown = [seen("main", EXITED, exit_code=9), seen("main", RUNNING, attempt=1)]
    status = main_of(generate(pod(container("main")), *shown))
    assert status["containerID"] == "containerd://main-1"
    assert "running" in status["state"]
    assert status["lastState"]["terminated"]["exitCode"] == 9


def test_restart_count_never_goes_down() -> None:
    before = generate(pod(container("main")), seen("main", RUNNING, attempt=5))
    after = generate(pod(container("main")), seen("main", RUNNING, attempt=2), previous=before)
    assert main_of(after)["restartCount"] == 5


def test_a_running_container_that_vanished_counts_as_terminated_by_137() -> None:
    before = generate(pod(container("main")), seen("main", RUNNING))
    status = main_of(generate(pod(container("main")), previous=before))
    assert status["state"]["waiting"]["reason"] == "ContainerCreating"
    assert status["lastState"]["terminated"]["exitCode"] == 137
    assert status["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert status["restartCount"] == 1


def test_a_terminated_container_that_vanished_keeps_its_status() -> None:
    before = generate(pod(container("main"), policy="Never"), seen("main", EXITED, exit_code=3))
    assert (
        main_of(generate(pod(container("main"), policy="Never"), previous=before))["state"] == main_of(before)["state"]
    )


def test_a_plain_init_container_that_nobody_remembers_is_done_once_a_main_exists() -> None:
    status = generate(pod(container("main"), inits=[container("init")]), seen("main", RUNNING))
    assert podstatus.by_name(status)["init"]["state"]["terminated"]["exitCode"] == 0


def test_a_container_in_backoff_waits_with_its_last_exit() -> None:
    failure = StartFailure("CrashLoopBackOff", "back-off 10s")
    shown = seen("main", EXITED, exit_code=2)
    status = main_of(generate(pod(container("main")), shown, failures={"main": failure}))
    assert status["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    assert status["lastState"]["terminated"]["exitCode"] == 2


@pytest.mark.parametrize(
    ("probed", "ready"),
    [pytest.param({}, False, id="not-probed"), pytest.param({"main-0": True}, True, id="success")],
)
def test_readiness_follows_the_probe_of_that_very_container(probed: dict[str, bool], ready: bool) -> None:
    subject = pod(container("main", readinessProbe={"exec": {"command": ["true"]}}))
    status = generate(subject, seen("main", RUNNING), probes=rules.ProbeResults(readiness=probed))
    assert main_of(status)["ready"] is ready
    values = {item["type"]: item["status"] for item in status["conditions"]}
    assert values["Ready"] == values["ContainersReady"] == str(ready)


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    subject = pod(container("main"))
    before = generate(subject, seen("main", RUNNING))
    after = generate(subject, seen("main", RUNNING), previous=before, now="2027-01-01T00:00:00Z")
    assert {item["lastTransitionTime"] for item in after["conditions"]} == {NOW}


class TestIllegalTransition:
    inits = (container("init"),)

    def test_an_init_container_that_succeeded_may_not_run_again_under_on_failure(self) -> None:
        subject = pod(container("main"), inits=self.inits, policy="OnFailure")
        before = generate(subject, seen("init", EXITED))
        after = generate(subject, seen("init", RUNNING, attempt=1), previous=before)
        assert podstatus.illegal_transition(pod=subject, old=before, new=after) == "init"

    def test_a_rule_with_restart_all_allows_it(self) -> None:
        sentinel = container("main", restartPolicy="Never", restartPolicyRules=[rule(RESTART_ALL, 251)])
        subject = pod(sentinel, inits=self.inits, policy="OnFailure")
        before = generate(subject, seen("init", EXITED))
        after = generate(subject, seen("init", RUNNING, attempt=1), previous=before)
        assert podstatus.illegal_transition(pod=subject, old=before, new=after) is None

    def test_a_failure_that_may_restart_is_legal(self) -> None:
        subject = pod(container("main"), policy="OnFailure")
        before = generate(subject, seen("main", EXITED, exit_code=1))
        after = generate(subject, seen("main", RUNNING, attempt=1), previous=before)
        assert podstatus.illegal_transition(pod=subject, old=before, new=after) is None


def test_a_terminal_phase_is_held_back_while_something_runs() -> None:
    subject = pod(container("main"), inits=[sidecar("side")], policy="Never")
    shown = runtime(seen("main", EXITED), seen("side", RUNNING))
    held = podstatus.hold_back_end(runtime=shown, old={"phase": "Running"}, new={"phase": "Succeeded"})
    assert held["phase"] == "Running"
    gone = runtime(seen("main", EXITED))
    assert (
        podstatus.hold_back_end(runtime=gone, old={"phase": "Running"}, new={"phase": "Succeeded"})["phase"]
        == "Succeeded"
    )
    assert subject.inits


def test_a_patch_names_what_must_go_and_leaves_foreign_conditions_out() -> None:
    before = {
        "phase": "Pending",
        "reason": "X",
        "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "R"},
            {"type": "example.com/x", "status": "True"},
        ],
    }
    after = {
        "phase": "Running",
        "podIPs": [{"ip": "10.0.0.2"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    assert reporting.patch_of(before=before, after=after) == {
        "phase": "Running",
        "reason": None,
        "podIPs": [{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": None}],
    }
