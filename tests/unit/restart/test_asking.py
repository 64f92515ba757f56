"""Manual requests: which container they mean, and how they change admission."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.model.workloads import ContainerRole, ContainerSpec, ContainerState, OwnerRef, RestartPolicy
from kubemend.agent.restart import admission, counts, options, overrides
from kubemend.agent.restart.admission import Verb
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.overrides import RestartOverrides
from kubemend.agent.restart.reasons import Reason
from kubemend.common import gangs
from tests.unit.restart import builders
from tests.unit.restart.test_admission import NOW, cause, facts, runtime

INIT = ContainerSpec(name="prepare", role=ContainerRole.INIT)
SIDECAR = ContainerSpec(name="shipper", role=ContainerRole.SIDECAR, running=True)
TRAINER = ContainerSpec(name="trainer", role=ContainerRole.MAIN, running=True)
LOGGER = ContainerSpec(name="logger", role=ContainerRole.MAIN, running=True)
JOB = OwnerRef(api_group="batch", kind="Job", name="train")


def container(asked: RestartOverrides, *specs: ContainerSpec, **annotations: str) -> str:
    written = {f"kubemend.io/{key}": text for key, text in annotations.items()}
    return overrides.container(builders.pod(containers=specs, annotations=written), asked)


def test_container_defaults_to_the_only_main_container() -> None:
    assert container(RestartOverrides(), INIT, SIDECAR, TRAINER) == "trainer"


def test_container_defaults_to_the_main_one_with_devices() -> None:
    assert container(RestartOverrides(), LOGGER, replace(TRAINER, holds_devices=True)) == "trainer"


def test_annotation_selects_the_container() -> None:
    assert container(RestartOverrides(), INIT, SIDECAR, TRAINER, LOGGER, containers="shipper, logger") == "logger"


def test_requested_name_overrides_the_annotation() -> None:
    assert (
        container(RestartOverrides(containers=frozenset({"shipper"})), SIDECAR, TRAINER, containers="trainer")
        == "shipper"
    )


def test_ambiguous_request_names_the_choices() -> None:
    for strategy in (None, Strategy.SWAP, Strategy.PROCESS):
        with pytest.raises(overrides.AmbiguousTargetError, match="--container: trainer, logger"):
            container(RestartOverrides(strategy=strategy), SIDECAR, TRAINER, LOGGER)


@pytest.mark.parametrize("strategy", [Strategy.RERUN, Strategy.RESET, Strategy.RULES])
def test_whole_pod_strategy_needs_no_container(strategy: Strategy) -> None:
    assert container(RestartOverrides(strategy=strategy), TRAINER, LOGGER) == "trainer"
    assert container(RestartOverrides(), TRAINER, LOGGER, strategy=strategy.value) == "trainer"


def test_unknown_container_is_named_with_the_existing_ones() -> None:
    with pytest.raises(overrides.AmbiguousTargetError, match="no container typo; it has shipper, trainer"):
        container(RestartOverrides(containers=frozenset({"typo", "trainer"})), SIDECAR, TRAINER)


def test_invalid_annotation_is_reported_at_once() -> None:
    with pytest.raises(options.BadAnnotationError, match="strategy"):
        container(RestartOverrides(), TRAINER, strategy="quick")


def decide(asked: RestartOverrides, **changes: Any) -> admission.Decision:
    """Decide about a pod that has not opted in."""
    pod = changes.pop("pod", {})
    pod = builders.pod(**{"annotations": {}, "containers": (SIDECAR, TRAINER)} | pod)
    return admission.decide(facts(pod=pod, asked=asked, **changes), now=NOW)


def test_manual_request_needs_no_opt_in() -> None:
    decision = decide(RestartOverrides())
    assert (decision.verb, decision.strategy, set(decision.orders)) == (Verb.ACT, Strategy.SWAP, {"trainer"})


def test_request_overrides_the_annotations() -> None:
    annotations = {"kubemend.io/strategy": "swap", "kubemend.io/grace-period": "30s"}
    decision = decide(RestartOverrides(strategy=Strategy.RESET, grace_seconds=0.0), pod={"annotations": annotations})
    assert (decision.strategy, decision.grace_seconds) == (Strategy.RESET, 0.0)


def test_unset_fields_follow_the_annotations() -> None:
    annotations = {"kubemend.io/strategy": "rerun", "kubemend.io/grace-period": "30s"}
    pod = {"annotations": annotations, "restart_policy": RestartPolicy.ALWAYS}
    decision = decide(RestartOverrides(), pod=pod)
    assert (decision.strategy, decision.grace_seconds, decision.orders) == (Strategy.RERUN, 30.0, {})


def test_exhausted_budget_does_not_delay_a_manual_request() -> None:
    begun = counts.Begun(pod=builders.POD.uid, containers=frozenset({"trainer"}), at=NOW - 2, fault_at=NOW - 3)
    everywhere = dict.fromkeys(("container", "pod", "device", "node"), (begun,) * 100)
    assert decide(RestartOverrides(), history=counts.History(**everywhere)).verb is Verb.ACT


def test_requested_grace_period_is_refused_before_a_final_exit() -> None:
    assert decide(RestartOverrides(grace_seconds=5.0)).reason is Reason.GRACE_COULD_COMPLETE


SAFETY = [
    pytest.param({"pod": {"deleting": True}}, Reason.POD_DELETING, id="deleting"),
    pytest.param({"pod": {"annotations": {"kubernetes.io/config.mirror": "x"}}}, Reason.STATIC_POD, id="static"),
    pytest.param(
        {"pod": {"annotations": {"jobset.sigs.k8s.io/in-place-restart-attempt": "2"}}}, Reason.JOBSET, id="jobset"
    ),
    pytest.param({"own_pod_uid": "uid-1"}, Reason.OWN_POD, id="the-agent-itself"),
    pytest.param(
        {"pod": {"containers": (replace(TRAINER, role=ContainerRole.INIT),)}},
        Reason.INIT_CONTAINER,
        id="init-container",
    ),
    pytest.param(
        {"pod": {"annotations": {"kubemend.io/containers": "shipper"}}}, Reason.NOT_SELECTED, id="not-selected"
    ),
    pytest.param(
        {"pod": {"owner": JOB}, "owner": admission.OwnerFacts(job_restarts_left=0)}, Reason.JOB_BACKOFF, id="job"
    ),
    pytest.param(
        {
            "pod": {"labels": {gangs.LWS_NAME: "g"}},
            "owner": admission.OwnerFacts(group_policy="RecreateGroupOnPodRestart"),
        },
        Reason.LEADER_WORKER_SET,
        id="lws",
    ),
    pytest.param(
        {
            "pod": {"restart_policy": RestartPolicy.NEVER},
            "runtime": runtime(state=ContainerState.EXITED, exit_code=1),
        },
        Reason.ALREADY_TERMINATED,
        id="dead-for-good",
    ),
    pytest.param(
        {"runtime": runtime(started_at=NOW), "cause": cause(happened_at=NOW - 1)},
        Reason.ALREADY_REPLACED,
        id="restarted-since-it-was-asked-for",
    ),
]


@pytest.mark.parametrize(("changes", "reason"), SAFETY)
def test_safety_refusals_apply_to_manual_requests(changes: dict[str, Any], reason: Reason) -> None:
    decision = decide(RestartOverrides(), **changes)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, reason)


def test_never_pod_is_not_rerun_on_request() -> None:
    decision = decide(RestartOverrides(strategy=Strategy.RERUN), pod={"restart_policy": RestartPolicy.NEVER})
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.RESTART_POLICY_NEVER)
