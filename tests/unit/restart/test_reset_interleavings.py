"""The reset rule against a kubelet that acts at any moment in between, and only on changes that it notices."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerSummary
from kubemend.agent.restart import intents, reset, steps
from kubemend.agent.restart.intents import Strategy
from tests.unit.restart import exploring, pods
from tests.unit.restart import simulation as simulations
from tests.unit.restart.kubelets import Kubelet
from tests.unit.restart.pods import CREATED, EXITED, INIT, MAIN, SIDECAR
from tests.unit.restart.simulation import Simulation

SYNCS: tuple[exploring.Move, ...] = (
    Simulation.kubelet_syncs,
    Simulation.kubelet_creates,
    Simulation.kubelet_starts,
    Simulation.init_ends,
)
pytestmark = pytest.mark.timeout(900)  # 300,000 states take a minute of a quiet processor

AGENT: tuple[exploring.Move, ...] = (Simulation.agent_looks, Simulation.agent_acts)
AT_ONCE: tuple[exploring.Move, ...] = (Simulation.kubelet_relists, *SYNCS, *AGENT)
ONE_BY_ONE: tuple[exploring.Move, ...] = (Simulation.kubelet_lists, Simulation.kubelet_asks, *SYNCS, *AGENT)

ALONE = (pods.planned("trainer", MAIN),)
WITH_INIT = (pods.planned("prepare", INIT), pods.planned("trainer", MAIN))
NO_INIT = (pods.planned("shipper", SIDECAR), pods.planned("trainer", MAIN), pods.planned("logger", MAIN))
LASTING = ("shipper", "trainer", "logger")


def rule(intent: intents.PodIntent, seen: Sequence[ContainerSummary], known: reset.Known) -> tuple[steps.Step, ...]:
    return reset.next_steps(intent, seen, known=known)


def eager(intent: intents.PodIntent, seen: Sequence[ContainerSummary], known: reset.Known) -> tuple[steps.Step, ...]:
    """Ignore what kubelet has seen."""
    return reset.clearing(intent, seen, known=known) or (steps.Step(steps.StepKind.DONE, steps.StepReason.CLEARED),)


def reset_of(*plan: intents.Planned, ended: Sequence[str] = (), young: bool = False, grace: float = 0.0) -> Simulation:
    """Create a pod to reset. ``ended`` have ended by themselves; kubelet has seen none of a ``young`` one."""
    simulation = Simulation.of(rule, pods.intent(strategy=Strategy.RESET, plan=plan, grace_seconds=grace))
    simulation.containers = [
        replace(view, state=EXITED) if view.ref.name in ended else view for view in simulation.containers
    ]
    if young:
        simulation.kubelet = Kubelet()
    return simulation


def is_up(simulation: Simulation) -> bool:
    """Return whether everything that must run does, once."""
    return all(len(simulation.running(item.name)) == (item.role is not INIT) for item in simulation.intent.plan)


def check_end(simulation: Simulation) -> None:
    """All containers are new, and init's work was complete before anything used it; or all was left to kubelet."""
    assert is_up(simulation)
    if simulation.done is steps.StepReason.ALREADY_REPLACED:
        return
    assert not [view for view in simulation.containers if view.state is CREATED or view.id in simulation.intent.old_ids]
    ends = [end.at for container, end in simulation.exits.items() if container not in simulation.intent.old_ids]
    assert ends or not any(item.role is INIT for item in simulation.intent.plan)
    lasting = (item.name for item in simulation.intent.plan if item.role is not INIT)
    assert max(ends, default=0) < min(simulation.running(name)[0].created_at for name in lasting)


@pytest.mark.parametrize(
    ("simulation", "moves"),
    [
        pytest.param(reset_of(*WITH_INIT), AT_ONCE, id="init"),
        pytest.param(reset_of(*WITH_INIT, grace=5.0), AT_ONCE, id="with-grace"),
        pytest.param(reset_of(*WITH_INIT, ended=("trainer",)), AT_ONCE, id="ended-by-itself"),
        pytest.param(reset_of(*WITH_INIT, ended=("trainer",)), ONE_BY_ONE, id="a-look-that-is-not-of-one-moment"),
        pytest.param(reset_of(*WITH_INIT, young=True), AT_ONCE, id="young"),
        pytest.param(reset_of(*NO_INIT, ended=("trainer",)), AT_ONCE, id="no-init"),
        pytest.param(reset_of(*ALONE, young=True), AT_ONCE, id="alone-and-young"),
    ],
)
def test_every_state_makes_kubelet_start_the_pod_without_timer(
    simulation: Simulation, moves: Sequence[exploring.Move]
) -> None:
    """Kubelet starts something, even if the agent dies here; and with the agent's help the right containers."""
    ends = 0
    for reached in exploring.reachable(simulation, moves):
        ends += reached.done is steps.StepReason.CLEARED
        left_alone, on = reached.copied(), reached.copied()
        left_alone.settle(rounds=8, agent=False)
        assert is_up(left_alone)
        on.settle(rounds=20)
        check_end(on)
    assert ends, "it has come to its end"


def test_model_shows_the_failure_of_not_waiting_for_kubelet() -> None:
    """A container unseen by kubelet is removed, and kubelet does not notice it."""
    simulation = reset_of(*WITH_INIT, ended=("trainer",))
    simulation.rule = eager
    ends = []
    for reached in exploring.reachable(simulation, AT_ONCE):
        on = reached.copied()
        on.settle(rounds=20)
        ends.append(is_up(on))
    assert not all(ends)


@settings(max_examples=700, deadline=None)
@given(
    moves=st.lists(st.sampled_from(sorted(simulations.WITH_CRASHES)), max_size=60),
    grace=st.sampled_from([0.0, 5.0]),
    ended=st.sets(st.sampled_from(LASTING)),
    young=st.booleans(),
)
def test_kubelet_reruns_the_whole_pod_in_order_despite_interleaving(
    moves: list[str], grace: float, ended: set[str], young: bool
) -> None:
    simulation = reset_of(*pods.PLAN, grace=grace, ended=sorted(ended), young=young)
    for move in moves:
        simulations.WITH_CRASHES[move](simulation)
    left_alone = simulation.copied()
    left_alone.settle(rounds=8, agent=False)
    assert is_up(left_alone)
    simulation.settle()
    check_end(simulation)
    assert simulation.we_started == []
