"""What a person asks for: which container is meant, and what it changes about what is admitted."""

from dataclasses import replace
from typing import Any

import pytest

from agent.model.workloads import ContainerRole, ContainerSpec, ContainerState, OwnerRef, RestartPolicy
from agent.restart import admission, asking, counts, options
from agent.restart.admission import Reason, Verb
from agent.restart.asking import Asked
from agent.restart.intents import Strategy
from tests.unit.restart import builders
from tests.unit.restart.test_admission import NOW, cause, facts, runtime

INIT = ContainerSpec(name="prepare", role=ContainerRole.INIT)
SIDECAR = ContainerSpec(name="shipper", role=ContainerRole.SIDECAR, running=True)
TRAINER = ContainerSpec(name="trainer", role=ContainerRole.MAIN, running=True)
LOGGER = ContainerSpec(name="logger", role=ContainerRole.MAIN, running=True)
JOB = OwnerRef(api_group="batch", kind="Job", name="train")


def container(asked: Asked, *specs: ContainerSpec, **annotations: str) -> str:
    wishes = {f"kubemend.io/{key}": text for key, text in annotations.items()}
    return asking.container(builders.pod(containers=specs, annotations=wishes), asked)


def test_the_only_main_container_is_meant() -> None:
    assert container(Asked(), INIT, SIDECAR, TRAINER) == "trainer"


def test_of_several_main_ones_the_one_that_holds_devices_is_meant() -> None:
    assert container(Asked(), LOGGER, replace(TRAINER, holds_devices=True)) == "trainer"


def test_the_annotation_says_which_is_meant() -> None:
    assert container(Asked(), INIT, SIDECAR, TRAINER, LOGGER, containers="shipper, logger") == "logger"


def test_a_name_goes_before_the_annotation() -> None:
    assert container(Asked(containers=frozenset({"shipper"})), SIDECAR, TRAINER, containers="trainer") == "shipper"


def test_of_several_none_is_guessed_and_the_choices_are_named() -> None:
    with pytest.raises(asking.UnclearError, match="--container: trainer, logger"):
        container(Asked(), SIDECAR, TRAINER, LOGGER)


@pytest.mark.parametrize("strategy", [Strategy.RERUN, Strategy.RESET, Strategy.RULES])
def test_the_whole_pod_needs_no_container(strategy: Strategy) -> None:
    assert container(Asked(strategy=strategy), TRAINER, LOGGER) == "trainer"
    assert container(Asked(), TRAINER, LOGGER, strategy=strategy.value) == "trainer"


def test_a_container_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(asking.UnclearError, match="no container typo; it has shipper, trainer"):
        container(Asked(containers=frozenset({"typo", "trainer"})), SIDECAR, TRAINER)


def test_an_annotation_that_cannot_be_understood_is_said_at_once() -> None:
    with pytest.raises(options.BadAnnotationError, match="strategy"):
        container(Asked(), TRAINER, strategy="quick")


def decide(asked: Asked, **changes: Any) -> admission.Decision:
    """Decide about a pod that has not opted in."""
    pod = changes.pop("pod", {})
    pod = builders.pod(**{"annotations": {}, "containers": (SIDECAR, TRAINER)} | pod)
    return admission.decide(facts(pod=pod, asked=asked, **changes), now=NOW)


def test_who_asks_by_name_need_not_opt_in() -> None:
    decision = decide(Asked())
    assert (decision.verb, decision.strategy, set(decision.orders)) == (Verb.ACT, Strategy.SWAP, {"trainer"})


def test_what_is_asked_for_goes_before_the_annotations() -> None:
    annotations = {"kubemend.io/strategy": "swap", "kubemend.io/grace-period": "30s"}
    decision = decide(Asked(strategy=Strategy.RESET, grace_seconds=0.0), pod={"annotations": annotations})
    assert (decision.strategy, decision.grace_seconds) == (Strategy.RESET, 0.0)


def test_what_is_not_asked_for_is_as_annotated() -> None:
    annotations = {"kubemend.io/strategy": "rerun", "kubemend.io/grace-period": "30s"}
    pod = {"annotations": annotations, "restart_policy": RestartPolicy.ALWAYS}
    decision = decide(Asked(), pod=pod)
    assert (decision.strategy, decision.grace_seconds) == (Strategy.RERUN, 30.0)


def test_a_spent_budget_does_not_hold_up_a_person() -> None:
    begun = counts.Begun(pod=builders.POD.uid, containers=frozenset({"trainer"}), at=NOW - 2, fault_at=NOW - 3)
    everywhere = dict.fromkeys(("container", "pod", "device", "node"), (begun,) * 100)
    assert decide(Asked(), history=counts.History(**everywhere)).verb is Verb.ACT


def test_a_grace_period_that_is_asked_for_is_refused_where_the_exit_could_be_final() -> None:
    assert decide(Asked(grace_seconds=5.0)).reason is Reason.GRACE_COULD_COMPLETE


SAFETY = [
    pytest.param({"pod": {"deleting": True}}, Reason.POD_DELETING, id="deleting"),
    pytest.param({"pod": {"annotations": {"kubernetes.io/config.mirror": "x"}}}, Reason.STATIC_POD, id="static"),
    pytest.param({"own_pod_uid": "uid-1"}, Reason.OWN_POD, id="the-agent-itself"),
    pytest.param(
        {"pod": {"owner": JOB}, "owner": admission.OwnerFacts(job_restarts_left=0)}, Reason.JOB_BACKOFF, id="job"
    ),
    pytest.param(
        {
            "pod": {"labels": {admission.LWS_NAME_LABEL: "g"}},
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
def test_what_safety_refuses_is_refused_to_people_too(changes: dict[str, Any], reason: Reason) -> None:
    decision = decide(Asked(), **changes)
    assert (decision.verb, decision.reason) == (Verb.REFUSE, reason)


def test_a_never_pod_is_not_rerun_for_anybody() -> None:
    decision = decide(Asked(strategy=Strategy.RERUN), pod={"restart_policy": RestartPolicy.NEVER})
    assert (decision.verb, decision.reason) == (Verb.REFUSE, Reason.RESTART_POLICY_NEVER)
