"""The reset and rules rules, the model of kubelet beside the first included."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.workloads import ContainerId, ContainerSpec, ContainerView, RestartRule, RuleAction
from agent.restart import intents, reset, rules, steps
from agent.restart.intents import Strategy
from tests.unit.restart import builders, pods, worlds
from tests.unit.restart.pods import CREATED, EXITED, RUNNING, new, old

RESET = pods.intent(strategy=Strategy.RESET)
KILLED = RestartRule(RuleAction.RESTART_ALL, frozenset({137}))


def test_a_cleared_pod_is_done() -> None:
    assert reset.next_steps(RESET, []) == (steps.Step(steps.StepKind.DONE, steps.Why.CLEARED),)


def test_kubelets_own_rerun_is_left_alone() -> None:
    seen = [
        new("prepare", EXITED, ours=False),
        new("shipper", RUNNING, ours=False),
        new("trainer", CREATED, ours=False),
    ]
    assert reset.next_steps(RESET, seen)[0].kind is steps.StepKind.DONE


def test_a_main_that_was_started_beside_a_late_init_container_goes() -> None:
    seen = [new("prepare", RUNNING, ours=False), new("trainer", RUNNING, ours=False)]
    assert [(step.why, step.name) for step in reset.next_steps(RESET, seen)] == [(steps.Why.OUT_OF_TURN, "trainer")]


def test_a_main_from_before_the_end_of_its_init_container_goes_even_if_nobody_looked_in_time() -> None:
    init = pods.view("prepare", "k-prepare", attempt=1, state=EXITED, created_at=10)
    main = pods.view("trainer", "k-trainer", attempt=1, created_at=20)
    known = reset.Known(exits={init.id: reset.Exit(code=0, at=30)})
    assert [step.container for step in reset.next_steps(RESET, [init, main], known=known)] == ["k-trainer"]


def test_kubelet_may_have_collected_the_init_container_that_came_first() -> None:
    main = pods.view("trainer", "ours-trainer", attempt=1, created_at=20)
    second = pods.view("prepare", "k-prepare", attempt=2, state=EXITED, created_at=25)
    known = reset.Known(exits={second.id: reset.Exit(code=0, at=30)})
    assert [step.container for step in reset.next_steps(RESET, [main, second], known=known)] == ["ours-trainer"]


def test_a_clock_that_was_set_back_is_no_ground_to_kill() -> None:
    late = pods.intent(strategy=Strategy.RESET, created_at=100e-9)
    init = pods.view("prepare", "k-prepare", attempt=1, state=EXITED, created_at=110)
    main = pods.view("trainer", "k-trainer", attempt=1, created_at=20)
    known = reset.Known(exits={init.id: reset.Exit(code=0, at=130)})
    assert reset.next_steps(late, [init, main], known=known)[0].kind is steps.StepKind.DONE


def rule(intent: intents.PodIntent, seen: Sequence[ContainerView], known: reset.Known) -> tuple[steps.Step, ...]:
    return reset.next_steps(intent, seen, known=known)


@settings(max_examples=700, deadline=None)
@given(moves=st.lists(st.sampled_from(sorted(worlds.MOVES)), max_size=60), grace=st.sampled_from([0.0, 5.0]))
def test_whatever_kubelet_does_meanwhile_it_reruns_the_whole_pod_in_order(moves: list[str], grace: float) -> None:
    world = worlds.World.of(rule, pods.intent(strategy=Strategy.RESET, grace_seconds=grace))
    for move in moves:
        worlds.MOVES[move](world)
    world.settle()
    for name in ("shipper", "trainer", "logger"):
        assert len(world.running(name)) == 1, name
    assert not [view for view in world.containers if view.state is CREATED or view.id in world.intent.old]
    ends = [end.at for container, end in world.exits.items() if container not in world.intent.old]
    first = min(world.running(name)[0].created_at for name in ("shipper", "trainer", "logger"))
    assert ends
    assert max(ends) < first
    assert world.we_started == []


RULES = pods.intent(strategy=Strategy.RULES, trigger=ContainerId("old-trainer"))


def test_rules_kill_the_trigger_once_and_nothing_else() -> None:
    (kill,) = rules.next_steps(RULES, [old("trainer"), old("shipper")])
    (end,) = rules.next_steps(RULES, [old("trainer", EXITED), old("shipper")])
    assert (kill.kind, kill.container) == (steps.StepKind.STOP, "old-trainer")
    assert (end.kind, end.why) == (steps.StepKind.DONE, steps.Why.TRIGGERED)


def test_rules_are_not_triggered_any_more_when_it_is_too_late() -> None:
    assert rules.next_steps(RULES, [old("trainer")], resolution=steps.Resolution.UNDO)[0].why is steps.Why.UNDONE


def spec(name: str, *restart_rules: RestartRule, running: bool = True) -> ContainerSpec:
    return ContainerSpec(name=name, role=pods.MAIN, restart_rules=restart_rules, running=running)


def test_the_container_that_was_hit_is_the_preferred_trigger() -> None:
    pod = builders.pod(containers=(spec("a", KILLED), spec("b", KILLED)))
    assert [found.name for name in ("b", "c") if (found := rules.trigger(pod, preferred=name)) is not None] == [
        "b",
        "a",
    ]


def test_only_a_running_container_whose_first_matching_rule_restarts_all_is_a_trigger() -> None:
    other = RestartRule(RuleAction.RESTART, frozenset({0}), inverted=True)
    pod = builders.pod(containers=(spec("a"), spec("b", other, KILLED), spec("c", KILLED, running=False)))
    assert rules.trigger(pod, preferred="b") is None
