"""The rerun rule against a kubelet that acts at any moment in between: every reachable state."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerSummary
from kubemend.agent.restart import intents, rerun, reset, steps
from tests.unit.restart import exploring, pods
from tests.unit.restart import simulation as simulations
from tests.unit.restart.pods import CREATED, EXITED, INIT, MAIN, SIDECAR
from tests.unit.restart.simulation import Simulation

pytestmark = pytest.mark.timeout(900)  # 300,000 states take a minute of a quiet processor

AGENT: tuple[exploring.Move, ...] = (Simulation.agent_looks, Simulation.agent_acts)
SYNCS: tuple[exploring.Move, ...] = (
    Simulation.kubelet_syncs,
    Simulation.kubelet_creates,
    Simulation.kubelet_starts,
    Simulation.init_ends,
)
AT_ONCE: tuple[exploring.Move, ...] = (Simulation.kubelet_relists, *SYNCS, *AGENT)
ONE_BY_ONE: tuple[exploring.Move, ...] = (Simulation.kubelet_lists, Simulation.kubelet_asks, *SYNCS, *AGENT)

SMALL = pods.PLAN[:3]
TWO_INITS = (
    pods.planned("prepare", INIT),
    pods.planned("fetch", INIT),
    pods.planned("shipper", SIDECAR),
    pods.planned("trainer", MAIN),
)
NO_INIT = (pods.planned("shipper", SIDECAR), pods.planned("trainer", MAIN), pods.planned("logger", MAIN))


def full(intent: intents.PodIntent, seen: Sequence[ContainerSummary], known: reset.Known) -> tuple[steps.Step, ...]:
    return rerun.next_steps(intent, seen, known=known)


def replayed(intent: intents.PodIntent, seen: Sequence[ContainerSummary], known: reset.Known) -> tuple[steps.Step, ...]:
    return rerun.next_steps(intent, seen, known=known, can_clone=False)


def check_end(simulation: Simulation) -> None:
    lasting = [item.name for item in simulation.intent.plan if item.role is not INIT]
    for item in simulation.intent.plan:
        assert len(simulation.running(item.name)) == (item.name in lasting), item.name
    if simulation.done is steps.StepReason.ALREADY_REPLACED:
        assert not [view for view in simulation.containers if pods.RESERVED in view.ref.name]
        return
    assert not [view for view in simulation.containers if view.state is CREATED or view.id in simulation.intent.old_ids]
    ends = [end.at for container, end in simulation.exits.items() if container not in simulation.intent.old_ids]
    assert len(lasting) == len(simulation.intent.plan) or ends
    first = min(simulation.running(name)[0].created_at for name in lasting)
    assert max(ends, default=0) < first, "what init prepares is ready before anything uses it"


def check_once_and_in_order(simulation: Simulation) -> None:
    """Each container is started once, and the mains, in any order, last."""
    first = [item.name for item in simulation.intent.plan if item.role is not MAIN]
    mains = {item.name for item in simulation.intent.plan if item.role is MAIN}
    assert simulation.starts[: len(first)] == first[: len(simulation.starts)]
    assert len(set(simulation.starts[len(first) :]) & mains) == len(simulation.starts[len(first) :])


def rerun_of(*plan: intents.Planned, grace: float = 0.0) -> Simulation:
    return Simulation.of(full, pods.intent(plan=plan, grace_seconds=grace))


def test_undisturbed_rerun_starts_each_container_once_in_order() -> None:
    simulation = rerun_of(*pods.PLAN)
    for _ in range(40):
        simulation.agent_turn()
        simulation.init_ends()
    assert simulation.starts == ["prepare", "shipper", "trainer", "logger"]
    simulation.settle()
    check_end(simulation)


@pytest.mark.parametrize(
    ("simulation", "moves"),
    [
        pytest.param(rerun_of(*pods.PLAN), AT_ONCE, id="init-and-two-mains", marks=pytest.mark.long),
        pytest.param(
            rerun_of(*pods.PLAN, grace=5.0), AT_ONCE, id="with-grace-init-and-two-mains", marks=pytest.mark.long
        ),
        pytest.param(rerun_of(*SMALL, grace=5.0), AT_ONCE, id="with-grace-one-main"),
        pytest.param(rerun_of(*NO_INIT, grace=5.0), AT_ONCE, id="with-grace-no-init", marks=pytest.mark.long),
        pytest.param(rerun_of(*TWO_INITS), AT_ONCE, id="two-inits", marks=pytest.mark.long),
        pytest.param(rerun_of(*NO_INIT), AT_ONCE, id="no-init"),
        pytest.param(
            rerun_of(*SMALL), ONE_BY_ONE, id="a-look-that-is-not-of-one-moment-and-init", marks=pytest.mark.long
        ),
        pytest.param(rerun_of(*NO_INIT[:2]), ONE_BY_ONE, id="a-look-that-is-not-of-one-moment"),
    ],
)
def test_every_state_has_started_each_container_once_in_order(
    simulation: Simulation, moves: Sequence[exploring.Move]
) -> None:
    ends = 0
    for number, reached in enumerate(exploring.reachable(simulation, moves)):
        check_once_and_in_order(reached)
        ends += reached.done is steps.StepReason.RERUN
        if number % 100 == 0:
            on = reached.copied()
            on.settle()
            check_end(on)
            check_once_and_in_order(on)
    assert ends, "it has come to its end"


def test_every_state_completes_with_the_next_agent_or_kubelet() -> None:
    """The agent is killed anywhere. Without another one the names become free when kubelet collects its garbage."""
    for number, reached in enumerate(exploring.reachable(rerun_of(*SMALL), AT_ONCE)):
        if number % 10:
            continue
        taken_up, left_alone = reached.copied(), reached.copied()
        taken_up.rule, taken_up.sees, taken_up.todo = replayed, None, []
        taken_up.settle()
        check_end(taken_up)
        for _ in range(4):
            left_alone.settle(rounds=5, agent=False)
            left_alone.kubelet_collects()
        left_alone.settle(rounds=5, agent=False)
        assert [len(left_alone.running(item.name)) for item in SMALL] == [0, 1, 1]
        assert not [view for view in left_alone.containers if pods.RESERVED in view.ref.name]


MOVES = st.lists(st.sampled_from(sorted(simulations.MOVES)), max_size=80)
GARBAGE_TOO = st.lists(st.sampled_from(sorted(simulations.WITH_GARBAGE)), max_size=80)


def play(simulation: Simulation, moves: Sequence[str]) -> None:
    for move in moves:
        simulations.WITH_GARBAGE[move](simulation)


@settings(max_examples=600, deadline=None)
@given(
    before=st.lists(st.sampled_from(("relist", "sync", "create", "start")), max_size=12),
    moves=MOVES,
    ended=st.sets(st.sampled_from(("shipper", "trainer", "logger"))),
)
def test_init_runs_once_even_if_kubelet_was_restarting_it(before: list[str], moves: list[str], ended: set[str]) -> None:
    """Kubelet may have begun before the names were reserved; its container is then out of turn and removed."""
    simulation = rerun_of(*pods.PLAN)
    simulation.containers = [
        replace(view, state=EXITED) if view.ref.name in ended else view for view in simulation.containers
    ]
    play(simulation, before + moves)
    simulation.settle()
    check_end(simulation)
    assert simulation.starts.count("prepare") == 1 or simulation.done is steps.StepReason.ALREADY_REPLACED


@settings(max_examples=600, deadline=None)
@given(moves=GARBAGE_TOO)
def test_garbage_collection_may_repeat_a_run_but_rerun_completes(moves: list[str]) -> None:
    simulation = rerun_of(*pods.PLAN)
    play(simulation, moves)
    simulation.settle()
    check_end(simulation)
    assert simulation.we_started.count("prepare") <= 1, "kubemend runs init at most once"
