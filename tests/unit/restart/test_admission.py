"""Which restart is admitted, held or refused, and with which reason."""

import dataclasses
from typing import Any

import pytest

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    OwnerRef,
    PodRef,
    PodUid,
    Probe,
    RestartPolicy,
    RestartRule,
    RuleAction,
    UnsupportedHook,
)
from kubemend.agent.restart import admission, counts, intents, overrides, process
from kubemend.agent.restart.admission import Verb
from kubemend.agent.restart.overrides import RestartOverrides
from kubemend.agent.restart.reasons import Reason
from kubemend.common import budgets, gangs
from tests.unit.restart import builders

NOW = 10_000.0
JOB = OwnerRef(api_group="batch", kind="Job", name="train")
OPT_IN = {"kubemend.io/restart": "InPlace"}


def runtime(**changes: Any) -> admission.RuntimeFacts:
    defaults: dict[str, Any] = {
        "state": ContainerState.RUNNING,
        "exit_code": None,
        "started_at": NOW - 500,
        "sandbox_ready": True,
    }
    return admission.RuntimeFacts(**defaults | changes)


def cause(**changes: Any) -> admission.Cause:
    defaults: dict[str, Any] = {"code": "Xid31", "message": "Xid 31", "happened_at": NOW - 1}
    return admission.Cause(**defaults | changes)


def facts(**changes: Any) -> admission.Facts:
    defaults: dict[str, Any] = {
        "target": builders.TARGET,
        "cause": cause(),
        "pod": builders.pod(),
        "runtime": runtime(),
        "owner": admission.OwnerFacts(),
    }
    return admission.Facts(**defaults | changes)


def main(**changes: Any) -> tuple[ContainerSpec, ...]:
    defaults: dict[str, Any] = {"name": "trainer", "role": ContainerRole.MAIN, "running": True}
    return (ContainerSpec(**defaults | changes),)


def test_opted_in_container_on_usable_device_is_admitted() -> None:
    decision = admission.decide(facts(own_pod_uid="uid-of-the-agent"), now=NOW)
    assert (decision.verb, decision.strategy, decision.grace_seconds) == (Verb.ACT, intents.Strategy.SWAP, 0.0)
    assert decision.orders == {"trainer": intents.SwapOrder.STOP_FIRST}


@pytest.mark.parametrize(
    ("running", "asked", "policy", "verb"),
    [
        pytest.param(True, None, RestartPolicy.ALWAYS, Verb.ACT, id="it-runs"),
        pytest.param(False, None, RestartPolicy.ALWAYS, Verb.POSTPONE, id="until-kubelet-restarts-it"),
        pytest.param(False, None, RestartPolicy.NEVER, Verb.REFUSE, id="it-never-runs-again"),
        pytest.param(False, RestartOverrides(by_round=True), RestartPolicy.ALWAYS, Verb.REFUSE, id="a-round"),
        pytest.param(False, RestartOverrides(), RestartPolicy.ALWAYS, Verb.REFUSE, id="a-person"),
    ],
)
def test_fault_waits_for_the_container_whose_kill_restarts_the_pod(
    asked: RestartOverrides | None, policy: RestartPolicy, verb: Verb, *, running: bool
) -> None:
    rules = (RestartRule(RuleAction.RESTART_ALL, frozenset({137})),)
    containers = (*main(), *main(name="helper", restart_rules=rules, running=running))
    pod = builders.pod(
        annotations=OPT_IN | {"kubemend.io/strategy": "rules"}, restart_policy=policy, containers=containers
    )
    assert admission.decide(facts(pod=pod, asked=asked), now=NOW).verb is verb


def test_namespace_opt_in_admits_its_pods() -> None:
    decision = admission.decide(
        facts(pod=builders.pod(annotations={}), opted_in_namespaces=frozenset({"default"})), now=NOW
    )
    assert decision.verb is Verb.ACT


NEVER = RestartPolicy.NEVER
WITH_SIDECAR = (*main(), ContainerSpec(name="shipper", role=ContainerRole.SIDECAR, running=True))
RESTART_ON_42 = RestartRule(RuleAction.RESTART, frozenset({42}))
REPLACED_POD = builders.pod(ref=PodRef("default", "trainer-0", PodUid("uid-2")))
REFUSALS = [
    pytest.param({"pod": builders.pod(annotations={})}, Reason.NOT_OPTED_IN, id="observed-only-without-opt-in"),
    pytest.param({"pod": builders.pod(annotations={"kubemend.io/restart": "yes"})}, Reason.BAD_ANNOTATION, id="typo"),
    pytest.param(
        {"pod": builders.pod(annotations=OPT_IN | {"kubemend.io/strategy": "rules"})},
        Reason.NO_RESTART_RULE,
        id="a-strategy-asked-for-by-name-is-not-replaced-by-another",
    ),
    pytest.param({"own_pod_uid": "uid-1"}, Reason.OWN_POD, id="never-the-agent-itself"),
    pytest.param({"pod": REPLACED_POD}, Reason.POD_DELETING, id="another-pod-of-the-same-name"),
    pytest.param({"pod": builders.pod(deleting=True)}, Reason.POD_DELETING, id="deleting"),
    pytest.param({"pod": builders.pod(leaving="Evicted")}, Reason.POD_DELETING, id="evicted"),
    pytest.param(
        {"pod": builders.pod(annotations=OPT_IN | {"kubernetes.io/config.mirror": "x"})}, Reason.STATIC_POD, id="mirror"
    ),
    pytest.param(
        {"pod": None, "runtime": runtime(annotations=OPT_IN | {"kubernetes.io/config.source": "file"})},
        Reason.STATIC_POD,
        id="static-without-mirror",
    ),
    pytest.param(
        {"pod": None, "runtime": runtime(annotations={"kubernetes.io/config.source": "file"})},
        Reason.NOT_OPTED_IN,
        id="static-without-mirror-not-opted-in",
    ),
    pytest.param(
        {"pod": builders.pod(annotations=OPT_IN | {"kubernetes.io/config.source": "file"})},
        Reason.STATIC_POD,
        id="static",
    ),
    pytest.param({"pod": builders.pod(phase="Succeeded")}, Reason.POD_NOT_RUNNING, id="finished-pod"),
    pytest.param({"pod": builders.pod(containers=())}, Reason.CONTAINER_UNKNOWN, id="no-such-container"),
    pytest.param(
        {"pod": builders.pod(containers=main(role=ContainerRole.INIT))}, Reason.INIT_CONTAINER, id="init-container"
    ),
    pytest.param(
        {"pod": builders.pod(annotations=OPT_IN | {"kubemend.io/containers": "other"})},
        Reason.NOT_SELECTED,
        id="not-selected",
    ),
    pytest.param(
        {"pod": builders.pod(containers=(*main(), *main(name="gpus", holds_devices=True)))},
        Reason.NOT_SELECTED,
        id="a-log-shipper-next-to-the-container-with-the-devices",
    ),
    pytest.param(
        {"pod": builders.pod(containers=main(post_start=UnsupportedHook("tcpSocket")), restart_policy=NEVER)},
        Reason.POST_START_UNSUPPORTED,
        id="a-hook-that-we-cannot-run",
    ),
    pytest.param({"pod": builders.pod(restart_policy=NEVER)}, Reason.NOTHING_ELSE_RUNS, id="kubelet-could-end-the-pod"),
    pytest.param(
        {"pod": builders.pod(owner=JOB), "owner": admission.OwnerFacts(job_restarts_left=0)},
        Reason.JOB_BACKOFF,
        id="job-would-fail",
    ),
    pytest.param(
        {
            "pod": builders.pod(labels={gangs.LWS_NAME: "g"}),
            "owner": admission.OwnerFacts(group_policy="RecreateGroupOnPodRestart"),
        },
        Reason.LEADER_WORKER_SET,
        id="lws-would-recreate-its-group",
    ),
    pytest.param(
        {"pod": builders.pod(annotations=OPT_IN | {"jobset.sigs.k8s.io/in-place-restart-attempt": "0"})},
        Reason.JOBSET,
        id="upstreams-sidecar-restarts-the-gang",
    ),
    pytest.param({"cause": cause(action=ActionClass.RESET_DEVICE)}, Reason.DEVICE_NOT_USABLE, id="needs-reset"),
    pytest.param({"cause": cause(action=ActionClass.REBOOT_NODE)}, Reason.DEVICE_NOT_USABLE, id="needs-reboot"),
    pytest.param(
        {"runtime": runtime(unsupported="its runtime is gVisor")}, Reason.RUNTIME_UNSUPPORTED, id="sandboxed-runtime"
    ),
    pytest.param({"runtime": runtime(sandbox_ready=False)}, Reason.SANDBOX_NOT_READY, id="sandbox-gone"),
    pytest.param({"runtime": runtime(started_at=NOW)}, Reason.ALREADY_REPLACED, id="younger-than-the-fault"),
    pytest.param(
        {"cause": cause(container=ContainerId("old")), "runtime": runtime(container=ContainerId("new"))},
        Reason.ALREADY_REPLACED,
        id="the-one-that-ended-has-a-successor-started-before-its-end",
    ),
    pytest.param(
        {"runtime": runtime(not_cloneable="hidden"), "pod": builders.pod(restart_policy=NEVER)},
        Reason.RUNTIME_HIDES_CONFIG,
        id="runtime-hides-config",
    ),
    pytest.param(
        {"pod": builders.pod(annotations=OPT_IN | {"kubemend.io/containers": "trainer,typo"})},
        Reason.CONTAINER_UNKNOWN,
        id="a-selected-container-that-is-not-there",
    ),
    pytest.param(
        {"runtime": runtime(state=ContainerState.EXITED, exit_code=0)}, Reason.COMPLETED, id="completed-by-itself"
    ),
    pytest.param(
        {
            "runtime": runtime(state=ContainerState.EXITED, exit_code=1),
            "pod": builders.pod(restart_policy=RestartPolicy.NEVER),
        },
        Reason.ALREADY_TERMINATED,
        id="dead-never-container-is-lost",
    ),
]


OLD = ContainerId("old")
FINISHED = NOW - 0.7
DIED_OF_IT: dict[str, Any] = {
    "cause": cause(names_process=True),
    "runtime": runtime(state=ContainerState.EXITED, exit_code=1, finished_at=FINISHED),
    "pod": builders.pod(restart_policy=RestartPolicy.NEVER),
    "can_hold": True,
}


def test_never_container_that_died_of_the_fault_is_restarted() -> None:
    decision = admission.decide(facts(**DIED_OF_IT), now=NOW)
    assert (decision.verb, decision.strategy) == (Verb.ACT, intents.Strategy.SWAP)


def test_never_container_that_died_of_the_fault_is_restarted_also_if_the_clock_was_set_back() -> None:
    ended = runtime(
        state=ContainerState.EXITED, exit_code=1, finished_at=FINISHED, started_at=NOW + 3600.0, container=OLD
    )
    died_of_it = DIED_OF_IT | {"cause": cause(names_process=True, container=OLD), "runtime": ended}
    assert admission.decide(facts(**died_of_it), now=NOW).verb is Verb.ACT
    running = runtime(started_at=NOW + 3600.0, container=OLD)
    decision = admission.decide(facts(**died_of_it | {"runtime": running}), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.ALREADY_REPLACED)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"cause": cause()}, id="the-fault-named-no-process-of-it"),
        pytest.param(
            {"cause": cause(names_process=True, happened_at=FINISHED + 0.001)}, id="it-ended-before-the-fault"
        ),
        pytest.param({"runtime": runtime(state=ContainerState.EXITED, exit_code=1)}, id="unknown-when-it-ended"),
        *(
            pytest.param(
                {"runtime": runtime(state=ContainerState.EXITED, exit_code=code, finished_at=FINISHED)},
                id=f"exit-{code}",
            )
            for code in (137, 143)
        ),
        pytest.param(
            {
                "pod": builders.pod(
                    restart_policy=RestartPolicy.NEVER, annotations=OPT_IN | {"kubemend.io/fatal-exit-codes": "1"}
                )
            },
            id="fatal-exit-code",
        ),
    ],
)
def test_never_container_with_a_final_exit_is_not_restarted(changes: dict[str, Any]) -> None:
    decision = admission.decide(facts(**DIED_OF_IT | changes), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.ALREADY_TERMINATED)


@pytest.mark.parametrize("policy", [RestartPolicy.NEVER, RestartPolicy.ON_FAILURE])
def test_container_whose_exit_0_is_final_has_completed(policy: RestartPolicy) -> None:
    ended = runtime(state=ContainerState.EXITED, exit_code=0, finished_at=FINISHED)
    pod = builders.pod(restart_policy=policy, annotations=OPT_IN)
    decision = admission.decide(facts(**DIED_OF_IT | {"pod": pod, "runtime": ended}), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.COMPLETED)


@pytest.mark.parametrize(("changes", "reason"), REFUSALS)
def test_refused(changes: dict[str, Any], reason: Reason) -> None:
    decision = admission.decide(facts(**changes), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, reason)
    assert decision.detail


HOLDS = [
    pytest.param({"pod": None}, Reason.POD_UNKNOWN, id="pod-not-known-yet"),
    pytest.param({"pod": builders.pod(phase="Pending")}, Reason.POD_NOT_RUNNING, id="not-reported-running-yet"),
    pytest.param({"runtime": None}, Reason.CONTAINER_UNKNOWN, id="runtime-shows-nothing"),
    pytest.param({"runtime": runtime(state=ContainerState.UNKNOWN)}, Reason.CONTAINER_UNKNOWN, id="state-unknown"),
    pytest.param({"pod": builders.pod(owner=JOB), "owner": None}, Reason.OWNER_UNKNOWN, id="owner-cannot-be-asked"),
    pytest.param({"cause": cause(devices_known=False)}, Reason.DEVICE_NOT_PROVEN, id="device-unknown-never-kills"),
    pytest.param({"cause": cause(action=ActionClass.ASK_DRIVER)}, Reason.DEVICE_NOT_PROVEN, id="ask-the-driver-first"),
]


@pytest.mark.parametrize(("changes", "reason"), HOLDS)
def test_unknown_facts_hold_the_restart(changes: dict[str, Any], reason: Reason) -> None:
    decision = admission.decide(facts(**changes), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.POSTPONE, reason)


def test_requested_restart_of_a_pending_pod_is_refused() -> None:
    asked = overrides.RestartOverrides()
    decision = admission.decide(facts(pod=builders.pod(phase="Pending"), asked=asked), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.POD_NOT_RUNNING)


def history(**scopes: int) -> counts.History:
    """Return a number of recent restarts in each scope, the last a long time before the fault."""
    begun = counts.Begun(pod=builders.POD.uid, containers=frozenset({"trainer"}), at=NOW - 100, fault_at=NOW - 101)
    return counts.History(**{scope: (begun,) * number for scope, number in scopes.items()})


BUDGETS = [
    pytest.param({"container": 10}, Reason.BUDGET_SPENT, 3500.0, id="container"),
    pytest.param({"pod": 20}, Reason.POD_BUDGET_SPENT, 3500.0, id="pod-twice-as-many"),
    pytest.param({"node": 80}, Reason.NODE_STORM, 200.0, id="node"),
    pytest.param({"namespace": 60}, Reason.NODE_STORM, 200.0, id="three-quarters-for-one-namespace"),
    pytest.param({"container": 10, "node": 80}, Reason.BUDGET_SPENT, 3500.0, id="the-one-that-opens-last"),
]


@pytest.mark.parametrize(("scopes", "reason", "opens_in"), BUDGETS)
def test_exhausted_budget_holds_until_the_named_time(scopes: dict[str, int], reason: Reason, opens_in: float) -> None:
    decision = admission.decide(facts(history=history(**scopes)), now=NOW)
    assert (decision.verb, decision.reason, decision.retry_at) == (Verb.POSTPONE, reason, NOW + opens_in)
    assert f"opens again at {budgets.clock(NOW + opens_in)}" in decision.detail


def test_a_device_on_which_no_restart_lasts_is_left_alone() -> None:
    past = tuple(
        counts.Begun(
            pod=PodUid(f"uid-{n}"), containers=frozenset({"a"}), at=NOW - 90 + 10 * n, fault_at=NOW - 91 + 10 * n
        )
        for n in range(8)
    )
    decision = admission.decide(facts(history=counts.History(device=past)), now=NOW)
    assert (decision.verb, decision.reason, decision.retry_at) == (
        Verb.POSTPONE,
        Reason.DEVICE_BUDGET_SPENT,
        NOW + 3510,
    )


def test_budget_of_zero_refuses() -> None:
    pod = builders.pod(annotations=OPT_IN | {"kubemend.io/max-restarts": "0"})
    decision = admission.decide(facts(pod=pod), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.BUDGET_SPENT)


def test_the_storm_guard_is_the_nodes_own() -> None:
    decision = admission.decide(facts(history=history(node=5), storm=budgets.Window(5, 300.0)), now=NOW)
    assert decision.reason is Reason.NODE_STORM
    assert admission.decide(facts(history=history(node=5), storm=budgets.Window(6, 300.0)), now=NOW).verb is Verb.ACT


@pytest.mark.parametrize(
    ("pod", "order"),
    [
        pytest.param({"restart_policy": RestartPolicy.ALWAYS}, intents.SwapOrder.STOP_FIRST, id="always"),
        pytest.param(
            {"restart_policy": RestartPolicy.ON_FAILURE}, intents.SwapOrder.STOP_FIRST, id="on-failure-sigkill"
        ),
        pytest.param(
            {"restart_policy": RestartPolicy.ALWAYS, "annotations": OPT_IN | {"kubemend.io/grace-period": "5s"}},
            intents.SwapOrder.STOP_FIRST,
            id="always-with-grace",
        ),
        pytest.param({"restart_policy": NEVER, "containers": WITH_SIDECAR}, intents.SwapOrder.CREATE_FIRST, id="never"),
        pytest.param(
            {"restart_policy": RestartPolicy.NEVER, "containers": main(restart_policy=RestartPolicy.ALWAYS)},
            intents.SwapOrder.STOP_FIRST,
            id="the-containers-own-policy-goes-before-the-pods",
        ),
        pytest.param(
            {
                "restart_policy": RestartPolicy.ALWAYS,
                "containers": main(restart_rules=(RestartRule(RuleAction.RESTART, frozenset({42})),)),
            },
            intents.SwapOrder.CREATE_FIRST,
            id="an-exit-could-match-a-rule",
        ),
    ],
)
def test_order_leaves_no_harmful_gap(pod: dict[str, Any], order: intents.SwapOrder) -> None:
    assert admission.decide(facts(pod=builders.pod(**pod)), now=NOW).orders == {"trainer": order}


def test_never_job_ignores_its_backoff_limit() -> None:
    pod = builders.pod(owner=JOB, restart_policy=NEVER, containers=WITH_SIDECAR)
    assert admission.decide(facts(pod=pod, owner=None), now=NOW).verb is Verb.ACT


def test_successor_that_keeps_paths_starts_after_the_old_container_unless_they_are_copied() -> None:
    """They are renamed, which the old program would notice; with a rebuilt config they are copied."""
    pod = builders.pod(restart_policy=RestartPolicy.ALWAYS, annotations=OPT_IN | {"kubemend.io/keep": "/cache"})
    for rebuilt, order in ((False, intents.SwapOrder.STOP_FIRST), (True, intents.SwapOrder.START_ELSE_CREATE_FIRST)):
        holding = facts(pod=pod, can_hold=True, runtime=runtime(config_is_rebuilt=rebuilt))
        assert admission.decide(holding, now=NOW).orders == {"trainer": order}


def test_selected_containers_are_swapped_together() -> None:
    containers = (*main(), *main(name="logger"), *main(name="bystander"))
    pod = builders.pod(containers=containers, annotations=OPT_IN | {"kubemend.io/containers": "trainer, logger"})
    assert set(admission.decide(facts(pod=pod), now=NOW).orders) == {"trainer", "logger"}


def test_fallback_is_reported() -> None:
    decision = admission.decide(facts(runtime=runtime(not_cloneable="the runtime hides it")), now=NOW)
    assert (decision.strategy, decision.detail) == (intents.Strategy.RESET, "not swap: the runtime hides it")


def test_job_limit_must_allow_the_restart_of_every_container() -> None:
    pod = builders.pod(owner=JOB, containers=(*main(), *main(name="logger")))
    rerun = builders.pod(owner=JOB, containers=pod.containers, annotations=OPT_IN | {"kubemend.io/strategy": "rerun"})
    two_for_each = admission.OwnerFacts(job_restarts_left=2)
    assert admission.decide(facts(pod=pod, owner=two_for_each), now=NOW).verb is Verb.ACT
    assert admission.decide(facts(pod=rerun, owner=two_for_each), now=NOW).reason is Reason.JOB_BACKOFF
    one = admission.OwnerFacts(job_restarts_left=1)
    assert admission.decide(facts(pod=pod, owner=one), now=NOW).reason is Reason.JOB_BACKOFF


def test_end_of_the_newest_container_is_restarted_also_after_a_failed_successor() -> None:
    ended = cause(container=ContainerId("old"))
    for newest in (
        runtime(container=ContainerId("old")),
        runtime(container=ContainerId("new"), state=ContainerState.EXITED, exit_code=1),
    ):
        assert admission.decide(facts(cause=ended, runtime=newest), now=NOW).verb is Verb.ACT


def test_end_of_a_container_is_not_held_against_one_that_started_and_ended_later() -> None:
    """That one's own end is another event, with a decision of its own."""
    later = runtime(container=ContainerId("new"), state=ContainerState.EXITED, exit_code=1, started_at=NOW)
    decision = admission.decide(facts(cause=cause(container=ContainerId("old")), runtime=later), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.ALREADY_REPLACED)


def test_end_of_a_container_before_its_start_is_restarted_because_the_clock_was_set_back() -> None:
    ended = cause(container=ContainerId("old"))
    exited = runtime(container=ContainerId("old"), state=ContainerState.EXITED, exit_code=1, started_at=NOW)
    assert admission.decide(facts(cause=ended, runtime=exited), now=NOW).verb is Verb.ACT


def test_fault_of_a_process_concerns_its_own_container_only() -> None:
    of_process = cause(container=ContainerId("old"), names_process=True)
    decision = admission.decide(facts(cause=of_process, runtime=runtime(container=ContainerId("new"))), now=NOW)
    assert (decision.reason, decision.detail) == (
        Reason.ALREADY_REPLACED,
        "another container has taken the place of the one that had the faulty process",
    )
    its_own = facts(cause=of_process, runtime=runtime(container=ContainerId("old")))
    assert admission.decide(its_own, now=NOW).verb is Verb.ACT
    newer = facts(cause=of_process, runtime=runtime(container=ContainerId("old"), started_at=NOW))
    assert admission.decide(newer, now=NOW).reason is Reason.ALREADY_REPLACED, "the pid was another process's then"


ROUND = overrides.RestartOverrides(containers=frozenset({"trainer"}), by_round=True)


def test_round_restarts_containers_newer_than_its_cause() -> None:
    newer = runtime(started_at=NOW)
    assert admission.decide(facts(runtime=newer), now=NOW).reason is Reason.ALREADY_REPLACED
    assert admission.decide(facts(runtime=newer, asked=ROUND), now=NOW).verb is Verb.ACT


def test_round_is_exempt_from_budgets() -> None:
    annotations = OPT_IN | {"kubemend.io/max-restarts": "0"}
    spent = facts(pod=builders.pod(annotations=annotations))
    assert admission.decide(spent, now=NOW).verb is not Verb.ACT
    assert admission.decide(dataclasses.replace(spent, asked=ROUND), now=NOW).verb is Verb.ACT


def test_a_round_restarts_no_pod_that_has_not_opted_in() -> None:
    refused = admission.decide(facts(pod=builders.pod(annotations={}), asked=ROUND), now=NOW)
    assert (refused.verb, refused.reason) == (Verb.REFUSE, Reason.NOT_OPTED_IN)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"annotations": {}}, Reason.NOT_OPTED_IN),
        ({"annotations": OPT_IN | {"kubemend.io/strategy": "magic"}}, Reason.BAD_ANNOTATION),
        ({"annotations": OPT_IN | {"kubernetes.io/config.mirror": "x"}}, Reason.STATIC_POD),
    ],
)
def test_unrestartable_pod_is_not_held_either(changes: dict[str, Any], reason: Reason) -> None:
    refusal = admission.not_held(builders.pod(**changes), opted_in_namespaces=frozenset(), own_pod_uid=None)
    assert refusal is not None
    assert refusal.reason is reason


def test_agents_own_pod_is_not_held() -> None:
    pod = builders.pod(annotations=OPT_IN)
    own = admission.not_held(pod, opted_in_namespaces=frozenset(), own_pod_uid=pod.ref.uid)
    assert own is not None
    assert own.reason is Reason.OWN_POD
    assert admission.not_held(pod, opted_in_namespaces=frozenset(), own_pod_uid=None) is None


def test_pod_of_a_namespace_that_has_opted_in_is_held() -> None:
    pod = builders.pod(annotations={})
    assert admission.not_held(pod, opted_in_namespaces=frozenset({"default"}), own_pod_uid=None) is None


def test_group_that_restarts_with_none_of_its_pods_is_admitted() -> None:
    group = builders.pod(labels={gangs.LWS_NAME: "g"})
    assert admission.decide(facts(pod=group, owner=admission.OwnerFacts(group_policy="None")), now=NOW).verb is Verb.ACT


def test_job_whose_limit_is_unknown_is_refused() -> None:
    decision = admission.decide(facts(pod=builders.pod(owner=JOB)), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.JOB_BACKOFF)


def test_round_counts_all_job_pods_and_never_waits_for_owner() -> None:
    """Each agent decides for its own pod, at the same time: none sees what the others add to the Job's count."""
    pod = builders.pod(owner=JOB)
    by_round = overrides.RestartOverrides(containers=frozenset({"trainer"}), by_round=True)
    enough = admission.OwnerFacts(job_restarts_left=8, job_pods=4)
    too_few = admission.OwnerFacts(job_restarts_left=7, job_pods=4)
    assert admission.decide(facts(pod=pod, owner=enough, asked=by_round), now=NOW).verb is Verb.ACT
    assert admission.decide(facts(pod=pod, owner=too_few, asked=by_round), now=NOW).reason is Reason.JOB_BACKOFF
    for one in (None, overrides.RestartOverrides()):
        assert admission.decide(facts(pod=pod, owner=too_few, asked=one), now=NOW).verb is Verb.ACT
        assert admission.decide(facts(pod=pod, owner=None, asked=one), now=NOW).verb is Verb.POSTPONE
    unknown = admission.decide(facts(pod=pod, owner=None, asked=by_round), now=NOW)
    assert (unknown.verb, unknown.reason) == (Verb.REFUSE, Reason.OWNER_UNKNOWN)


@pytest.mark.parametrize(
    ("ago", "fault_ago", "known_ago", "answered"),
    [
        pytest.param(60.0, 60.1, 59.0, True, id="its-own-fault"),
        pytest.param(60.0, 59.0, 58.0, True, id="what-killing-it-brought-about"),
        pytest.param(60.0, 7200.0, 61.0, True, id="known-before-and-on-hold"),
        pytest.param(60.0, 7200.0, 1.0, False, id="of-the-successor-by-a-clock-that-is-hours-late"),
        pytest.param(10.0, 24.0, 1.0, False, id="of-the-successor-by-a-clock-that-is-seconds-late"),
        pytest.param(3600.0, 7200.0, 1.0, False, id="another-restart-since-a-clock-that-is-late"),
        pytest.param(3600.0, 1.0, 1.0, False, id="long-before"),
    ],
)
def test_event_handled_by_a_restart_is_recognised(
    ago: float, fault_ago: float, known_ago: float, answered: bool
) -> None:
    begun = counts.Begun(
        pod=builders.POD.uid, containers=frozenset({"trainer"}), at=NOW - ago, fault_at=NOW - ago, device=None
    )
    past = counts.History.of([begun], target=builders.TARGET, device=None, now=NOW)
    known = facts(history=past, cause=cause(happened_at=NOW - fault_ago))
    assert admission.answered_by_us(known, known_at=NOW - known_ago) is answered


TORCH_JOB = OwnerRef("kubeflow.org", "PyTorchJob", "train")


def test_training_job_at_its_limit_is_refused() -> None:
    pod = builders.pod(owner=TORCH_JOB, restart_policy=RestartPolicy.ALWAYS)
    decision = admission.decide(facts(pod=pod, owner=admission.OwnerFacts(job_restarts_left=1)), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.JOB_BACKOFF)
    assert "PyTorchJob" in decision.detail
    assert admission.decide(facts(pod=pod, owner=None), now=NOW).reason is Reason.OWNER_UNKNOWN
    assert admission.decide(facts(pod=pod, owner=admission.OwnerFacts()), now=NOW).verb is Verb.ACT


def test_owner_of_unknown_kind_is_refused() -> None:
    volcano = OwnerRef("batch.volcano.sh", "Job", "train")
    decision = admission.decide(facts(pod=builders.pod(owner=volcano)), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.OWNER_MAY_COUNT)
    assert "Job.batch.volcano.sh" in decision.detail
    harmless = OPT_IN | {"kubemend.io/owner-counts-restarts": "false"}
    assert admission.decide(facts(pod=builders.pod(owner=volcano, annotations=harmless)), now=NOW).verb is Verb.ACT


LAUNCHER = process.Launcher(process.State.RUNNING, program=1)


def test_a_program_restarted_by_its_launcher_counts_against_no_backoff_limit() -> None:
    job = builders.pod(owner=JOB)
    owner = admission.OwnerFacts(job_restarts_left=0)
    decisions = [
        admission.decide(facts(pod=job, owner=owner, runtime=runtime(launcher=launcher)), now=NOW)
        for launcher in (LAUNCHER, None)
    ]
    assert [each.reason for each in decisions] == [Reason.ADMITTED, Reason.JOB_BACKOFF]
    assert decisions[0].strategy is intents.Strategy.PROCESS


def test_a_person_restarts_the_container_and_a_round_the_program_unless_it_has_probes() -> None:
    asked = (None, ROUND, overrides.RestartOverrides())
    of = {
        probes: [
            admission.decide(
                facts(
                    pod=builders.pod(containers=main(liveness=probes)), runtime=runtime(launcher=LAUNCHER), asked=each
                ),
                now=NOW,
            ).strategy
            for each in asked
        ]
        for probes in (None, Probe())
    }
    process_, swap = intents.Strategy.PROCESS, intents.Strategy.SWAP
    assert of == {None: [process_, process_, swap], Probe(): [process_, swap, swap]}


def test_a_fault_before_the_launchers_own_restart_needs_no_other() -> None:
    restarted = runtime(launcher=LAUNCHER, program_started_at=NOW + 0.5)
    decision = admission.decide(facts(runtime=restarted, cause=cause(happened_at=NOW)), now=NOW + 1.0)
    assert (decision.reason, decision.detail) == (
        Reason.ALREADY_REPLACED,
        "the launcher has started the program 0.5 s after the fault",
    )


def test_while_a_launcher_restarts_its_program_a_fault_is_on_hold() -> None:
    restarting = dataclasses.replace(LAUNCHER, state=process.State.RESTARTING)
    decision = admission.decide(facts(runtime=runtime(launcher=restarting)), now=NOW)
    assert (decision.verb, decision.reason) == (Verb.POSTPONE, Reason.LAUNCHER_RESTARTS)
