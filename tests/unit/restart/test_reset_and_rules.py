"""The reset and rules rules."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRole,
    ContainerSpec,
    ContainerSummary,
    RestartPolicy,
    RestartRule,
    RuleAction,
)
from kubemend.agent.restart import rerun, reset, rules, steps
from kubemend.agent.restart.intents import Strategy
from tests.unit.restart import builders, pods
from tests.unit.restart.pods import CREATED, EXITED, RUNNING, new, old

RESET = pods.intent(strategy=Strategy.RESET)
KILLED = RestartRule(RuleAction.RESTART_ALL, frozenset({137}))


def ended(*, at: int) -> reset.Known:
    return reset.Known(exits={ContainerId("old-trainer"): reset.Exit(code=1, at=at)})


def test_cleared_pod_is_done() -> None:
    assert reset.next_steps(RESET, []) == (steps.Step(steps.StepKind.DONE, steps.StepReason.CLEARED),)


@pytest.mark.parametrize(
    ("known", "grace", "replaced"),
    [
        pytest.param(reset.Known(), 0.0, True, id="by-itself"),
        pytest.param(reset.Known(is_stopped=True), 0.0, False, id="by-this-agent"),
        pytest.param(reset.Known(), 5.0, False, id="perhaps-by-a-previous-agent"),
        pytest.param(ended(at=2_000_000_000), 5.0, False, id="perhaps-after-sigterm"),
        pytest.param(ended(at=999_999_999), 5.0, True, id="before-the-restart"),
    ],
)
def test_target_that_kubelet_has_replaced_is_left_alone(known: reset.Known, grace: float, *, replaced: bool) -> None:
    intent = replace(RESET, grace_seconds=grace, created_at=1.0)
    seen = [*(old(name) for name in ("shipper", "logger")), old("trainer", EXITED), new("trainer", RUNNING, ours=False)]
    (step, *_) = reset.next_steps(intent, seen, known=known)
    assert (step.reason is steps.StepReason.ALREADY_REPLACED) is replaced
    rules_step = rules.next_steps(replace(intent, trigger=ContainerId("old-logger")), seen)[0]
    assert (rules_step.kind is steps.StepKind.DONE) is (grace == 0.0)
    still_runs = [view for view in seen if view.id != "old-trainer"] + [old("trainer")]
    assert reset.next_steps(intent, still_runs, known=known)[0].kind is not steps.StepKind.DONE


@pytest.mark.parametrize("next_steps", [reset.next_steps, rerun.next_steps])
@pytest.mark.parametrize(("completes", "code", "ends"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_pod_whose_target_has_ended_for_good_is_left_alone(
    next_steps: Callable[..., tuple[steps.Step, ...]], *, completes: bool, code: int, ends: bool
) -> None:
    seen = [*(old(name) for name in ("shipper", "logger")), old("trainer", EXITED)]
    known = reset.Known(exits={ContainerId("old-trainer"): reset.Exit(code=code, at=0)})
    (step, *_) = next_steps(replace(RESET, completes=completes), seen, known=known)
    assert (step.reason is steps.StepReason.COMPLETED) is ends


def test_kubelets_rerun_is_left_alone() -> None:
    seen = [
        new("prepare", EXITED, ours=False),
        new("shipper", RUNNING, ours=False),
        new("trainer", CREATED, ours=False),
    ]
    assert reset.next_steps(RESET, seen)[0].kind is steps.StepKind.DONE


def test_main_started_next_to_a_late_init_is_removed() -> None:
    seen = [new("prepare", RUNNING, ours=False), new("trainer", RUNNING, ours=False)]
    assert [(step.reason, step.name) for step in reset.next_steps(RESET, seen)] == [
        (steps.StepReason.OUT_OF_TURN, "trainer")
    ]


def test_main_next_to_an_init_that_runs_once_more_is_removed() -> None:
    init = new("prepare", EXITED, ours=False)
    seen = [init, new("prepare", RUNNING, attempt=2), new("trainer", RUNNING, ours=False)]
    known = reset.Known(exits={init.id: reset.Exit(code=0, at=0)})
    assert [step.name for step in reset.next_steps(RESET, seen, known=known)] == ["trainer"]


def test_init_that_has_run_out_of_turn_admits_no_main() -> None:
    plan = (pods.planned("fetch", pods.INIT), pods.planned("prepare", pods.INIT), pods.planned("trainer", pods.MAIN))
    seen = [new("fetch", RUNNING), new("prepare", EXITED), new("trainer", RUNNING)]
    assert [step.name for step in reset.next_steps(replace(RESET, plan=plan), seen)] == ["prepare", "trainer"]


def test_main_after_a_failed_init_is_removed_once_kubelet_has_seen_it() -> None:
    init, main = new("prepare", EXITED, ours=False), new("trainer", RUNNING, ours=False)
    seen = [init, main, pods.view("debugger", "x")]
    known = reset.Known(exits={init.id: reset.Exit(code=1, at=0)})
    (waits,) = reset.next_steps(RESET, seen, known=known)
    (removal,) = reset.next_steps(RESET, seen, known=replace(known, noticed=frozenset({main.id})))
    assert (waits.reason, removal.reason) == (steps.StepReason.NOT_SHOWN, steps.StepReason.OUT_OF_TURN)


def test_main_older_than_its_init_end_is_removed() -> None:
    init = pods.view("prepare", "k-prepare", attempt=1, state=EXITED, created_at=10)
    main = pods.view("trainer", "k-trainer", attempt=1, created_at=20)
    known = reset.Known(exits={init.id: reset.Exit(code=0, at=30)}, noticed=frozenset({main.id}))
    assert [step.container for step in reset.next_steps(RESET, [init, main], known=known)] == ["k-trainer"]


def test_collected_init_container_counts_as_run() -> None:
    main = pods.view("trainer", "ours-trainer", attempt=1, created_at=20)
    second = pods.view("prepare", "k-prepare", attempt=2, state=EXITED, created_at=25)
    known = reset.Known(exits={second.id: reset.Exit(code=0, at=30)}, noticed=frozenset({main.id}))
    assert [step.container for step in reset.next_steps(RESET, [main, second], known=known)] == ["ours-trainer"]


def test_clock_set_back_removes_nothing() -> None:
    late = pods.intent(strategy=Strategy.RESET, created_at=100e-9)
    init = pods.view("prepare", "k-prepare", attempt=1, state=EXITED, created_at=110)
    main = pods.view("trainer", "k-trainer", attempt=1, created_at=20)
    known = reset.Known(exits={init.id: reset.Exit(code=0, at=130)})
    assert reset.next_steps(late, [init, main], known=known)[0].kind is steps.StepKind.DONE


def test_container_unseen_by_kubelet_is_waited_for() -> None:
    """Kubelet does not notice containers that come and go between two of its relists."""
    exited = [old("prepare", EXITED), old("trainer", EXITED)]
    early = pods.view("trainer", "k-trainer", attempt=1, created_at=20)
    known = reset.Known(noticed=frozenset({exited[0].id, exited[1].id}))
    (wait,) = reset.next_steps(RESET, [*exited, early], known=known)
    assert (wait.kind, wait.reason, wait.container) == (steps.StepKind.WAIT, steps.StepReason.NOT_SHOWN, early.id)
    seen_by_now = reset.Known(noticed=known.noticed | {early.id})
    gone = {step.container for step in reset.next_steps(RESET, [*exited, early], known=seen_by_now)}
    assert gone == {exited[0].id, exited[1].id, early.id}


def test_only_the_last_removals_wait_for_kubelet() -> None:
    (step,) = reset.next_steps(RESET, [old("prepare", EXITED), old("trainer")])
    assert (step.kind, step.container) == (steps.StepKind.REMOVE, "old-prepare")
    (step,) = reset.next_steps(replace(RESET, grace_seconds=5.0), [old("trainer")])
    assert (step.kind, step.container) == (steps.StepKind.STOP, "old-trainer")


def test_kubelet_must_have_seen_the_newest_of_each_name() -> None:
    """Kubelet's status shows the newest alone."""
    before = pods.view("trainer", "old-trainer", state=EXITED, created_at=1)
    newest = pods.view("trainer", "k-trainer", attempt=1, state=EXITED, created_at=2)
    planned = replace(pods.planned("trainer", pods.MAIN), old=(before.id, newest.id))
    intent = pods.intent(strategy=Strategy.RESET, plan=(planned,))
    todo = reset.next_steps(intent, [before, newest], known=reset.Known(noticed=frozenset({newest.id})))
    assert [(step.kind, step.container) for step in todo] == [
        (steps.StepKind.REMOVE, before.id),
        (steps.StepKind.REMOVE, newest.id),
    ]


OLD = {item.name: old(item.name) for item in pods.PLAN} | {"prepare": old("prepare", EXITED)}
RESTARTED = new("logger", RUNNING, ours=False)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param({**OLD, "logger": old("logger", EXITED), "again": RESTARTED}, id="kubelet-restarted-another"),
        pytest.param({**OLD, "logger": RESTARTED}, id="and-collected-the-ended-one"),
        pytest.param({**OLD, "prepare": new("prepare", EXITED, ours=False)}, id="a-later-run-of-init"),
        pytest.param({name: OLD[name] for name in ("shipper", "trainer", "logger")}, id="init-collected"),
        pytest.param(
            {name: old(name, EXITED) for name in OLD} | {f"new {name}": new(name, RUNNING, ours=False) for name in OLD},
            id="kubelet-restarted-all",
        ),
    ],
)
@pytest.mark.parametrize("rule", [reset.next_steps, rerun.next_steps])
def test_expired_reset_ends_nothing_in_a_complete_pod(
    rule: Callable[..., tuple[steps.Step, ...]], seen: dict[str, ContainerSummary]
) -> None:
    known = reset.Known(noticed=frozenset(view.id for view in seen.values()))
    (end,) = rule(RESET, seen.values(), known=known, resolution=steps.Resolution.UNDO)
    assert end.reason is steps.StepReason.UNDONE


@pytest.mark.parametrize("rule", [reset.next_steps, rerun.next_steps])
def test_container_that_had_not_begun_is_none_that_is_missing(rule: Callable[..., tuple[steps.Step, ...]]) -> None:
    intent = pods.intent(strategy=Strategy.RESET, plan=(*pods.PLAN, replace(pods.planned("late", pods.MAIN), old=())))
    known = reset.Known(noticed=frozenset(view.id for view in OLD.values()))
    (end,) = rule(intent, OLD.values(), known=known, resolution=steps.Resolution.UNDO)
    assert end.reason is steps.StepReason.UNDONE
    seen = [*OLD.values(), new("trainer", RUNNING, ours=False)]
    seen.remove(OLD["trainer"])
    (end,) = rule(intent, [*seen, old("trainer", EXITED)], known=known)
    assert end.reason is steps.StepReason.ALREADY_REPLACED


@pytest.mark.parametrize("rule", [reset.next_steps, rerun.next_steps])
def test_expired_reset_ends_nothing_if_init_was_collected(rule: Callable[..., tuple[steps.Step, ...]]) -> None:
    """It had been done, and only its entry could not be closed (a full disk): the pod may have worked for days."""
    seen = [new(name, RUNNING, ours=False) for name in ("shipper", "trainer", "logger")]
    (end,) = rule(RESET, seen, resolution=steps.Resolution.UNDO)
    assert end.kind is steps.StepKind.DONE


@pytest.mark.parametrize("rule", [reset.next_steps, rerun.next_steps])
def test_expired_reset_removes_a_main_next_to_a_late_init(rule: Callable[..., tuple[steps.Step, ...]]) -> None:
    seen = [new(item.name, RUNNING, ours=False) for item in pods.PLAN]
    known = reset.Known(noticed=frozenset(view.id for view in seen))
    removals = rule(RESET, seen, resolution=steps.Resolution.UNDO, known=known)
    assert {step.reason for step in removals} == {steps.StepReason.OUT_OF_TURN}
    assert [step.name for step in removals] == ["shipper", "trainer", "logger"]


def test_expired_reset_that_has_removed_a_container_is_completed() -> None:
    seen = [OLD["shipper"], OLD["logger"]]
    known = reset.Known(noticed=frozenset(view.id for view in seen))
    todo = reset.next_steps(RESET, seen, known=known, resolution=steps.Resolution.UNDO)
    assert {step.container for step in todo} == {"old-shipper", "old-logger"}


RULES = pods.intent(strategy=Strategy.RULES, trigger=ContainerId("old-trainer"))


def test_rules_kill_the_trigger_once() -> None:
    (kill,) = rules.next_steps(RULES, [old("shipper"), old("trainer")])
    (end,) = rules.next_steps(RULES, [old("shipper"), old("trainer", EXITED)])
    assert (kill.kind, kill.container) == (steps.StepKind.STOP, "old-trainer")
    assert (end.kind, end.reason) == (steps.StepKind.DONE, steps.StepReason.TRIGGERED)


def test_expired_rules_intent_triggers_nothing() -> None:
    assert (
        rules.next_steps(RULES, [old("trainer")], resolution=steps.Resolution.UNDO)[0].reason is steps.StepReason.UNDONE
    )


def spec(name: str, *restart_rules: RestartRule, running: bool = True) -> ContainerSpec:
    return ContainerSpec(name=name, role=pods.MAIN, restart_rules=restart_rules, running=running)


def test_hit_container_is_the_preferred_trigger() -> None:
    pod = builders.pod(containers=(spec("a", KILLED), spec("b", KILLED)))
    assert [found.name for name in ("b", "c") if (found := rules.trigger(pod, preferred=name)) is not None] == [
        "b",
        "a",
    ]


def test_trigger_runs_and_its_first_matching_rule_restarts_all() -> None:
    other = RestartRule(RuleAction.RESTART, frozenset({0}), inverted=True)
    pod = builders.pod(containers=(spec("a"), spec("b", other, KILLED), spec("c", KILLED, running=False)))
    assert rules.trigger(pod, preferred="b") is None


def test_init_container_is_no_trigger() -> None:
    """It has ended for good, and a fault that waits for it would be forgotten after ten minutes."""
    for running in (True, False):
        init = replace(spec("a", KILLED, running=running), role=ContainerRole.INIT)
        pod = builders.pod(containers=(init, spec("b")))
        assert rules.trigger(pod, preferred="a") is None
        assert not rules.has_ended_trigger(pod)


def test_only_a_container_with_the_rule_is_awaited() -> None:
    assert not rules.has_ended_trigger(builders.pod(containers=(spec("a", running=False), spec("b"))))


@pytest.mark.parametrize(
    ("policy", "succeeded", "others", "comes_back"),
    [
        (RestartPolicy.ALWAYS, True, (), True),
        (RestartPolicy.ON_FAILURE, False, (), True),
        (RestartPolicy.ON_FAILURE, True, (), False),
        (RestartPolicy.ON_FAILURE, True, (RestartRule(RuleAction.RESTART, frozenset({0})),), True),
        (RestartPolicy.NEVER, False, (), False),
    ],
)
def test_trigger_that_has_ended_is_awaited_if_kubelet_restarts_it(
    policy: RestartPolicy, succeeded: bool, others: tuple[RestartRule, ...], comes_back: bool
) -> None:
    """Else a fault next to one that has completed is on hold for ten minutes, and then forgotten."""
    trigger = replace(spec("b", *others, KILLED, running=False), succeeded=succeeded)
    pod = builders.pod(containers=(spec("a"), trigger), restart_policy=policy)
    assert rules.has_ended_trigger(pod) is comes_back
