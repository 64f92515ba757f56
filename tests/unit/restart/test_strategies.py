"""Which strategy is chosen, and the reason for each fallback."""

import dataclasses
import pathlib
from typing import Any

import pytest
import yaml

from kubemend.agent.actuator.pod_strategies import RUNNERS
from kubemend.agent.model.workloads import (
    ContainerRole,
    ContainerSpec,
    Probe,
    RestartPolicy,
    RestartRule,
    RuleAction,
    UnsupportedHook,
)
from kubemend.agent.restart import process, strategies
from kubemend.agent.restart.intents import Strategy, SwapOrder
from kubemend.agent.restart.reasons import Reason
from tests.unit.restart import builders

CRD = pathlib.Path(__file__).parents[3] / "daemonset" / "crds" / "restarts.yaml"

ALWAYS, ON_FAILURE, NEVER = RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE, RestartPolicy.NEVER
RESTART_ALL = (RestartRule(RuleAction.RESTART_ALL, frozenset({137})),)
HIDDEN: dict[str, Any] = {"not_cloneable": "the runtime hides it"}


def main(**changes: Any) -> ContainerSpec:
    defaults: dict[str, Any] = {"name": "trainer", "role": ContainerRole.MAIN, "running": True}
    return ContainerSpec(**defaults | changes)


SIDECAR = ContainerSpec(name="shipper", role=ContainerRole.SIDECAR, restart_policy=RestartPolicy.ALWAYS, running=True)


EARLY_LIVENESS = main(startup=Probe(), liveness=Probe(failure_threshold=1))


def situation(*, policy: RestartPolicy = ALWAYS, containers: Any = None, **changes: Any) -> strategies.Situation:
    containers = (main(),) if containers is None else containers
    pod = builders.pod(restart_policy=policy, containers=containers)
    return strategies.Situation(pod=pod, targets=(containers[-1],), **changes)


def test_every_strategy_but_auto_is_in_the_table() -> None:
    assert set(strategies.SPECS) == set(Strategy) - {Strategy.AUTO}


def test_every_strategy_of_whole_pods_has_a_runner() -> None:
    assert set(RUNNERS) == {strategy for strategy, spec in strategies.SPECS.items() if spec.whole_pod}


def test_restart_resource_allows_every_strategy() -> None:
    (definition,) = yaml.safe_load_all(CRD.read_text("utf-8"))
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert spec["strategy"]["enum"] == [strategy.value for strategy in Strategy]


@pytest.mark.parametrize("wanted", [Strategy.AUTO, Strategy.SWAP])
@pytest.mark.parametrize("policy", RestartPolicy)
def test_auto_prefers_swap_under_any_policy(wanted: Strategy, policy: RestartPolicy) -> None:
    choice = strategies.choose(wanted, situation(policy=policy, containers=(SIDECAR, main())))
    assert (choice.strategy, choice.stepped_down) == (Strategy.SWAP, "")


@pytest.mark.parametrize(
    ("policy", "others", "grace", "allowed"),
    [
        pytest.param(NEVER, (), 0.0, False, id="never-alone"),
        pytest.param(NEVER, (dataclasses.replace(SIDECAR, running=False),), 0.0, False, id="never-beside-a-dead-one"),
        pytest.param(NEVER, (dataclasses.replace(SIDECAR, role=ContainerRole.INIT),), 0.0, False, id="init-is-no-help"),
        pytest.param(NEVER, (SIDECAR,), 0.0, True, id="never-beside-a-sidecar"),
        pytest.param(NEVER, (main(name="logger"),), 0.0, True, id="never-beside-another-main"),
        pytest.param(ON_FAILURE, (), 0.0, True, id="sigkill-is-a-failure"),
        pytest.param(ON_FAILURE, (), 5.0, False, id="sigterm-could-complete-the-pod"),
        pytest.param(ALWAYS, (), 5.0, True, id="always"),
    ],
)
def test_swap_never_leaves_a_pod_that_kubelet_may_end(
    policy: RestartPolicy, others: tuple[ContainerSpec, ...], grace: float, allowed: bool
) -> None:
    choice = strategies.choose(
        Strategy.SWAP, situation(policy=policy, containers=(*others, main()), grace_seconds=grace)
    )
    assert (choice.strategy is Strategy.SWAP) is allowed
    assert [item.obstacle for item in choice.refused] == ([] if allowed else [Reason.NOTHING_ELSE_RUNS])


def test_unholdable_successor_is_not_started_first() -> None:
    holdable = situation(policy=NEVER, containers=(main(),), can_hold=True)
    assert strategies.choose(Strategy.SWAP, holdable).strategy is Strategy.SWAP
    native = dataclasses.replace(holdable, not_holdable="its root is ext4, not an overlay")
    choice = strategies.choose(Strategy.SWAP, native)
    assert [item.obstacle for item in choice.refused] == [Reason.NOTHING_ELSE_RUNS]
    assert "its root is ext4, not an overlay" in choice.stepped_down
    assert "use restartPolicy Always" in choice.stepped_down


def test_missing_hold_does_not_matter_if_none_is_needed() -> None:
    native = situation(policy=ALWAYS, containers=(main(),), can_hold=True, not_holdable="its root is no overlay")
    assert strategies.choose(Strategy.SWAP, native).strategy is Strategy.SWAP
    assert strategies.order_of(main(), native) is SwapOrder.STOP_FIRST


@pytest.mark.parametrize(
    ("policy", "containers", "expected"),
    [
        pytest.param(ALWAYS, (main(),), SwapOrder.START_ELSE_STOP_FIRST, id="always"),
        pytest.param(ON_FAILURE, (main(),), SwapOrder.START_ELSE_STOP_FIRST, id="on-failure"),
        pytest.param(ON_FAILURE, (SIDECAR, main()), SwapOrder.START_ELSE_STOP_FIRST, id="on-failure-beside-a-sidecar"),
        pytest.param(NEVER, (SIDECAR, main()), SwapOrder.START_ELSE_CREATE_FIRST, id="never-beside-a-sidecar"),
        pytest.param(NEVER, (main(),), SwapOrder.START_FIRST, id="never-alone"),
        pytest.param(ALWAYS, (main(restart_rules=RESTART_ALL),), SwapOrder.START_ELSE_CREATE_FIRST, id="restart-rules"),
    ],
)
def test_holdable_successor_is_started_first(
    policy: RestartPolicy, containers: tuple[ContainerSpec, ...], expected: SwapOrder
) -> None:
    held = situation(policy=policy, containers=containers, can_hold=True)
    assert strategies.order_of(containers[-1], held) is expected


def test_successor_is_not_held_through_a_grace_period() -> None:
    given_time = situation(policy=ALWAYS, can_hold=True, grace_seconds=5.0)
    assert strategies.order_of(main(), given_time) is SwapOrder.STOP_FIRST


@pytest.mark.parametrize(
    ("policy", "rules"),
    [
        pytest.param(NEVER, (), id="any-exit-is-final"),
        pytest.param(ON_FAILURE, (), id="exit-0-is-final"),
        pytest.param(ALWAYS, RESTART_ALL, id="an-exit-could-meet-a-rule"),
    ],
)
def test_successor_does_not_wait_created_through_a_grace_period(
    policy: RestartPolicy, rules: tuple[RestartRule, ...]
) -> None:
    choice = strategies.choose(
        Strategy.SWAP, situation(policy=policy, containers=(SIDECAR, main(restart_rules=rules)), grace_seconds=5.0)
    )
    assert [item.obstacle for item in choice.refused] == [Reason.GRACE_COULD_COMPLETE]


def test_successor_from_a_rebuilt_config_does_not_wait_through_a_grace_period_for_that_reason() -> None:
    choice = strategies.choose(Strategy.AUTO, situation(policy=ALWAYS, grace_seconds=5.0, config_is_rebuilt=True))
    assert choice.strategy is Strategy.RESET
    assert choice.stepped_down == (
        "not swap: the runtime returns no configs, so the successor of trainer would wait through the grace period, "
        "and kubelet copy it; use no grace period, or strategy reset"
    )


def test_all_mains_of_a_never_pod_are_not_swapped() -> None:
    mains = (main(), main(name="logger"))
    pod = builders.pod(restart_policy=NEVER, containers=mains)
    choice = strategies.choose(Strategy.SWAP, strategies.Situation(pod=pod, targets=mains))
    assert [item.obstacle for item in choice.refused] == [Reason.NOTHING_ELSE_RUNS]


def test_auto_falls_back_to_reset_without_config() -> None:
    choice = strategies.choose(Strategy.AUTO, situation(**HIDDEN))
    assert (choice.strategy, choice.stepped_down) == (Strategy.RESET, "not swap: the runtime hides it")


def test_auto_falls_back_to_rules_with_two_reasons() -> None:
    choice = strategies.choose(
        Strategy.AUTO, situation(policy=NEVER, containers=(main(restart_rules=RESTART_ALL),), **HIDDEN)
    )
    assert choice.strategy is Strategy.RULES
    assert [item.obstacle for item in choice.refused] == [Reason.RUNTIME_HIDES_CONFIG, Reason.RESTART_POLICY_NEVER]


def test_auto_refuses_if_no_strategy_is_left() -> None:
    choice = strategies.choose(Strategy.AUTO, situation(policy=NEVER, **HIDDEN))
    assert choice.strategy is None
    assert [item.strategy for item in choice.refused] == [Strategy.SWAP, Strategy.RESET, Strategy.RULES]


FOREIGN_HOOK = main(name="helper", post_start=UnsupportedHook("tcpSocket"))


@pytest.mark.parametrize(
    ("wanted", "given", "obstacle"),
    [
        pytest.param(Strategy.SWAP, HIDDEN, Reason.RUNTIME_HIDES_CONFIG, id="swap-needs-the-config"),
        pytest.param(Strategy.RERUN, HIDDEN, Reason.RUNTIME_HIDES_CONFIG, id="rerun-needs-the-config"),
        pytest.param(Strategy.RERUN, {"policy": NEVER}, Reason.RESTART_POLICY_NEVER, id="never-rerun"),
        pytest.param(Strategy.RESET, {"policy": NEVER}, Reason.RESTART_POLICY_NEVER, id="never-reset"),
        pytest.param(
            Strategy.RESET,
            {"containers": (main(name="once", restart_policy=NEVER), main())},
            Reason.RESTART_POLICY_NEVER,
            id="one-never-container-is-enough",
        ),
        pytest.param(
            Strategy.RERUN,
            {"policy": ON_FAILURE, "grace_seconds": 5.0},
            Reason.GRACE_COULD_COMPLETE,
            id="sigterm-could-complete-the-pod",
        ),
        pytest.param(
            Strategy.RERUN,
            {"containers": (main(restart_rules=RESTART_ALL),)},
            Reason.RESTARTS_ALL_ON_KILL,
            id="kubelet-would-restart-it-all-at-the-same-time",
        ),
        pytest.param(
            Strategy.RERUN,
            {"containers": (FOREIGN_HOOK, main())},
            Reason.POST_START_UNSUPPORTED,
            id="a-hook-of-any-container",
        ),
        pytest.param(
            Strategy.SWAP,
            {"containers": (EARLY_LIVENESS,)},
            Reason.LIVENESS_BEFORE_STARTUP,
            id="kubelet-could-kill-the-successor",
        ),
        pytest.param(
            Strategy.RERUN,
            {"containers": (main(), EARLY_LIVENESS)},
            Reason.LIVENESS_BEFORE_STARTUP,
            id="kubelet-could-kill-a-successor",
        ),
        pytest.param(
            Strategy.RERUN,
            {"config_is_rebuilt": True},
            Reason.RUNTIME_HIDES_CONFIG,
            id="nothing-is-removed-whose-config-is-only-rebuilt",
        ),
        pytest.param(Strategy.RULES, {}, Reason.NO_RESTART_RULE, id="no-rule"),
    ],
)
def test_strategy_requested_by_name_is_used_or_refused(
    wanted: Strategy, given: dict[str, Any], obstacle: Reason
) -> None:
    choice = strategies.choose(wanted, situation(**given))
    assert choice.strategy is None
    assert [(item.strategy, item.obstacle) for item in choice.refused] == [(wanted, obstacle)]


def test_unsupported_hook_of_another_container_allows_swap() -> None:
    assert strategies.choose(Strategy.SWAP, situation(containers=(FOREIGN_HOOK, main()))).strategy is Strategy.SWAP


def test_auto_lets_kubelet_start_a_container_whose_liveness_could_be_probed_early() -> None:
    choice = strategies.choose(Strategy.AUTO, situation(containers=(EARLY_LIVENESS,)))
    assert choice.strategy is Strategy.RESET
    assert [item.obstacle for item in choice.refused] == [Reason.LIVENESS_BEFORE_STARTUP]


@pytest.mark.parametrize("wanted", [Strategy.RERUN, Strategy.RESET])
@pytest.mark.parametrize("policy", [ALWAYS, ON_FAILURE])
def test_whole_pod_is_restarted_if_every_exit_is_restartable(wanted: Strategy, policy: RestartPolicy) -> None:
    assert strategies.choose(wanted, situation(policy=policy)).strategy is wanted


LAUNCHER = process.Launcher(process.State.RUNNING, program=1)


def by_launcher(**changes: Any) -> strategies.Situation:
    given: dict[str, Any] = {"launcher": LAUNCHER, "is_fault": True}
    return situation(**given | changes)


@pytest.mark.parametrize("policy", RestartPolicy)
def test_auto_prefers_process_for_a_fault_of_a_program_with_a_launcher(policy: RestartPolicy) -> None:
    choice = strategies.choose(Strategy.AUTO, by_launcher(policy=policy))
    assert (choice.strategy, choice.stepped_down) == (Strategy.PROCESS, "")


@pytest.mark.parametrize(
    ("changes", "obstacle"),
    [
        ({"launcher": process.LauncherUnavailable("it did not answer")}, Reason.NO_LAUNCHER),
        ({"launcher": dataclasses.replace(LAUNCHER, state=process.State.ENDING)}, Reason.NO_LAUNCHER),
        ({"launcher": dataclasses.replace(LAUNCHER, state=process.State.RESTARTING)}, Reason.NO_LAUNCHER),
        ({"fails_again": True}, Reason.FAULT_AGAIN),
        ({"cleans": True}, Reason.NOT_ONLY_THE_PROGRAM),
    ],
)
def test_auto_steps_down_to_swap_where_a_new_process_is_not_enough(changes: Any, obstacle: Reason) -> None:
    choice = strategies.choose(Strategy.AUTO, by_launcher(**changes))
    assert choice.strategy is Strategy.SWAP
    assert [item.obstacle for item in choice.refused] == [obstacle]


def test_containers_that_are_restarted_together_are_swapped() -> None:
    several = dataclasses.replace(by_launcher(), targets=(main(), main(name="other")))
    choice = strategies.choose(Strategy.AUTO, several)
    assert choice.strategy is Strategy.SWAP
    assert choice.stepped_down == "not process: several containers are restarted together: trainer, other"


def test_a_member_with_probes_is_swapped_in_a_round() -> None:
    probed = (main(liveness=Probe()),)
    assert strategies.choose(Strategy.AUTO, by_launcher(containers=probed)).strategy is Strategy.PROCESS
    choice = strategies.choose(Strategy.AUTO, by_launcher(containers=probed, by_round=True))
    assert (choice.strategy, choice.refused[0].obstacle) == (Strategy.SWAP, Reason.NOT_ONLY_THE_PROGRAM)


@pytest.mark.parametrize("changes", [{"is_fault": False}, {"launcher": None}])
def test_auto_swaps_without_mention_of_launchers_where_there_is_none_or_a_person_asks(changes: Any) -> None:
    choice = strategies.choose(Strategy.AUTO, by_launcher(**changes))
    assert (choice.strategy, choice.refused) == (Strategy.SWAP, ())


def test_process_by_name_is_used_again_soon_and_for_a_person() -> None:
    asked = by_launcher(fails_again=True, is_fault=False)
    assert strategies.choose(Strategy.PROCESS, asked).strategy is Strategy.PROCESS


def test_process_by_name_is_refused_without_a_launcher() -> None:
    choice = strategies.choose(Strategy.PROCESS, by_launcher(launcher=None))
    assert (choice.strategy, choice.refused[0].obstacle) == (None, Reason.NO_LAUNCHER)
