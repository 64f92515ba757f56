"""Which exits are restarted in place, which are left to kubelet, and for how long a member's end is doubted."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.model.workloads import (
    ContainerRole,
    ContainerSpec,
    PodRef,
    PodUid,
    PodView,
    RestartPolicy,
    RestartRule,
    RuleAction,
)
from kubemend.agent.restart import exits
from kubemend.agent.restart.exits import Exit, ExitContext, Left
from kubemend.agent.restart.reasons import Reason

REF = PodRef("team", "solo", PodUid("u"))


def pod(**changes: Any) -> PodView:
    defaults: dict[str, Any] = {
        "ref": REF,
        "phase": "Running",
        "restart_policy": RestartPolicy.ALWAYS,
        "containers": (ContainerSpec("trainer", ContainerRole.MAIN, running=True),),
        "annotations": {"kubemend.io/restart": "InPlace"},
    }
    return PodView(**defaults | changes)


def left(view: PodView, code: int, **about: Any) -> Left | Reason | None:
    ended = Exit(about.pop("name", "trainer"), code, **about)
    return exits.left_reason(view, ended, opted_in_namespaces=frozenset({"open"}), own_pod_uid="agent")


@pytest.mark.parametrize("code", [1, 42, 134, 139, 255])
@pytest.mark.parametrize("policy", [RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE])
def test_error_of_opted_in_container_is_restarted(code: int, policy: RestartPolicy) -> None:
    assert left(pod(restart_policy=policy), code) is None


def test_oom_kill_is_an_error_and_sigkill_a_stop() -> None:
    assert left(pod(), 137, reason="OOMKilled") is None
    assert left(pod(), 137, reason="Error") is Left.STOPPED
    assert left(pod(), 143, reason="Error") is Left.STOPPED


def test_completion_and_never_are_left_to_kubelet() -> None:
    assert left(pod(), 0) is Left.COMPLETED
    assert left(pod(restart_policy=RestartPolicy.NEVER), 1) is Left.NEVER


def test_fatal_exit_code_is_left_to_kubelet() -> None:
    fatal = pod(annotations={"kubemend.io/restart": "InPlace", "kubemend.io/fatal-exit-codes": "42, 64-78"})
    assert left(fatal, 42) is Left.FATAL
    assert left(fatal, 70) is Left.FATAL
    assert left(fatal, 43) is None


@pytest.mark.parametrize("text", ["0", "256", "9-1", "x", "1-2-3", "1" * 10])
def test_invalid_fatal_exit_codes_restart_nothing(text: str) -> None:
    bad = pod(annotations={"kubemend.io/restart": "InPlace", "kubemend.io/fatal-exit-codes": text})
    assert left(bad, 1) is Reason.BAD_ANNOTATION


def test_exit_matched_by_container_rules_is_left_to_kubelet() -> None:
    rule = RestartRule(RuleAction.RESTART_ALL, frozenset({7}))
    ruled = pod(containers=(ContainerSpec("trainer", ContainerRole.MAIN, restart_rules=(rule,)),))
    assert left(ruled, 7) is Left.RULE
    assert left(ruled, 8) is None


def test_end_requested_by_the_agent_is_no_cause() -> None:
    assert left(pod(), 1, ours=True) is Left.OURS


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (pod(annotations={}), Reason.NOT_OPTED_IN),
        (pod(deleting=True), Reason.POD_DELETING),
        (pod(leaving="Evicted"), Reason.POD_DELETING),
        (pod(phase="Failed"), Reason.POD_NOT_RUNNING),
        (pod(ref=PodRef("kubemend", "agent", PodUid("agent"))), Reason.OWN_POD),
    ],
)
def test_pod_without_opt_in_or_terminating_is_left_alone(view: PodView, reason: Reason) -> None:
    assert left(view, 1) is reason


def test_only_selected_targets_are_restarted() -> None:
    trainer = ContainerSpec("trainer", ContainerRole.MAIN, holds_devices=True)
    shipper = ContainerSpec("shipper", ContainerRole.MAIN)
    both = pod(containers=(trainer, shipper))
    assert left(both, 1) is None
    assert left(both, 1, name="shipper") is Reason.NOT_SELECTED
    named = replace(both, annotations={"kubemend.io/restart": "InPlace", "kubemend.io/containers": "shipper"})
    assert left(named, 1, name="shipper") is None


@pytest.mark.parametrize(
    ("policy", "backs_off", "expected"),
    [
        (RestartPolicy.ALWAYS, False, True),
        (RestartPolicy.ON_FAILURE, False, True),
        (RestartPolicy.ALWAYS, True, False),
        (RestartPolicy.NEVER, False, False),
    ],
)
def test_kubelet_restarts_at_once_by_policy_unless_it_backs_off(
    policy: RestartPolicy, backs_off: bool, expected: bool
) -> None:
    spec = ContainerSpec("trainer", ContainerRole.MAIN, backs_off=backs_off)
    view = pod(restart_policy=policy, containers=(spec,))
    assert exits.is_restarted_at_once(view, "trainer") is expected
    assert not exits.is_restarted_at_once(view, "another")


def test_doubt_is_short_unless_the_pod_may_be_ending() -> None:
    error, stop = Exit("trainer", 1), Exit("trainer", 143)
    assert exits.doubt(error, ExitContext()) == exits.QUICK
    assert exits.doubt(stop, ExitContext()) == exits.QUICK, (
        "with nothing else in the pod its sandbox would stop at once"
    )
    assert exits.doubt(error, ExitContext(others_run=True)) == exits.QUICK
    assert exits.doubt(stop, ExitContext(others_run=True)) == exits.PATIENT
    assert exits.doubt(Exit("trainer", 137, "OOMKilled"), ExitContext(others_run=True)) == exits.QUICK
    assert exits.doubt(error, ExitContext(others_ended=True)) == exits.PATIENT
    assert exits.doubt(error, ExitContext(node_ends_pods=True)) == exits.PATIENT
    assert exits.doubt(error, ExitContext(stop_unread=True), quick=0.0) == exits.QUICK
    assert exits.QUICK < exits.doubt(error, ExitContext(stop_unread=True, lag=0.5), quick=0.0) < exits.PATIENT
    assert exits.doubt(error, ExitContext(has_hook=True), quick=0.0) == exits.QUICK
    assert exits.doubt(error, ExitContext(lag=0.5), quick=0.0) == 0.0, "a restart of one pod waits for nothing"
    assert exits.doubt(error, ExitContext(stop_unread=True, others_run=True), quick=0.0) == exits.PATIENT


def test_doubt_after_requested_stop_lasts_until_kubelet_acts() -> None:
    assert exits.doubt(Exit("trainer", 5, asked=True), ExitContext()) == exits.STOPPED
    assert exits.doubt(Exit("trainer", 5, asked=True), ExitContext(), quick=0.0) == exits.STOPPED


def test_error_exit_after_a_requested_stop_is_left_to_kubelet() -> None:
    assert left(pod(), 5, asked=True) is Left.STOPPED


def test_doubt_grows_with_lag_up_to_the_bound() -> None:
    error = Exit("trainer", 1)
    assert exits.QUICK < exits.doubt(error, ExitContext(lag=0.5)) < exits.PATIENT
    assert exits.doubt(error, ExitContext(lag=60.0)) == exits.PATIENT
    assert exits.doubt(error, ExitContext(lag=-5.0)) == exits.QUICK
