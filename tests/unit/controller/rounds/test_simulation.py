"""The round machine with lost messages and dying replicas and agents: thousands of schedules, by their seeds."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from kubemend.controller.rounds import status
from kubemend.controller.rounds.states import MemberPhase, Phase
from tests.unit.controller import builders
from tests.unit.controller.rounds import simulation as simulations
from tests.unit.controller.rounds.simulation import New, Node, Pod, Simulation

CHUNKS, IN_A_CHUNK = 20, 200
_STEPS = 150


def _pod(simulation: Simulation, act: Callable[[Pod], None]) -> None:
    if simulation.pods:
        act(simulation.rolls.choice(list(simulation.pods.values())))


def _node(simulation: Simulation, act: Callable[[Node], None]) -> None:
    act(simulation.rolls.choice(list(simulation.nodes.values())))


def _ordinary(simulation: Simulation) -> None:
    """Take a step that happens sooner or later."""
    for _ in range(3):
        simulation.carry_to_agent()
        simulation.carry_to_hub()
        _pod(simulation, simulation.work)
    simulation.delete()
    _pod(simulation, simulation.rolls.choice((simulation.end_deleted, simulation.schedule, simulation.start)))


MISHAPS: tuple[tuple[float, Callable[[Simulation], None]], ...] = (
    (0.10, lambda simulation: simulation.lose()),
    (0.02, lambda simulation: simulation.kill_hub()),
    (0.20, lambda simulation: simulation.resume()),
    (0.02, lambda simulation: _node(simulation, simulation.kill_agent)),
    (0.10, lambda simulation: _node(simulation, simulation.start_agent)),
    (0.01, lambda simulation: _node(simulation, simulation.lose_node)),
    (0.03, lambda simulation: _node(simulation, simulation.mend_node)),
    (0.01, lambda simulation: _pod(simulation, simulation.mark_deleted)),
    (0.01, lambda simulation: _pod(simulation, simulation.complete)),
    (0.03, lambda simulation: _pod(simulation, simulation.fault)),
    (0.01, lambda simulation: simulation.grow()),
    (0.002, lambda simulation: simulation.cancel()),
    (0.05, lambda simulation: simulation.collect()),
    (0.20, lambda simulation: _pod(simulation, simulation.go_on)),
)


FAULTS: tuple[tuple[float, Callable[[Simulation], None]], ...] = (
    (0.02, lambda simulation: simulation.lose()),
    (0.01, lambda simulation: simulation.kill_hub()),
    (0.50, lambda simulation: simulation.resume()),
    (0.10, lambda simulation: simulation.grow()),
    (0.50, lambda simulation: _pod(simulation, simulation.fault)),
)
"""In these schedules few other things go wrong, so that rounds reach their release."""


def play(seed: int, *, mishaps: Sequence[tuple[float, Callable[[Simulation], None]]] = MISHAPS) -> Simulation:
    """Play one schedule to its end: trouble first, then enough time to recover."""
    rolls = random.Random(seed)
    simulation = simulations.make(rolls)
    simulation.begin()
    for _ in range(_STEPS):
        simulation.pass_time(rolls.choice((0.0, 0.001, 0.01, 0.1, 1.0, 5.0)))
        _ordinary(simulation)
        for chance, mishap in mishaps:
            if rolls.random() < chance:
                mishap(simulation)
                simulation.look()
        simulation.look()
    simulation.trouble = False
    for _ in range(600):
        if simulation.outcome is not None:
            break
        _hint(simulation)
        simulation.look()
    return simulation


def _hint(simulation: Simulation) -> None:
    simulation.resume()
    simulation.pass_time(1.0)
    for node in simulation.nodes.values():
        simulation.mend_node(node)
        simulation.start_agent(node)
    simulation.collect()
    for pod in list(simulation.pods.values()):
        for act in (simulation.schedule, simulation.start, simulation.work, simulation.work, simulation.end_deleted):
            if pod.uid in simulation.pods:
                act(pod)
                simulation.look()
    for _ in range(len(simulation.deletions)):
        simulation.delete()
    for _ in range(len(simulation.to_agents)):
        simulation.carry_to_agent()
    for _ in range(len(simulation.to_hub)):
        simulation.carry_to_hub()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_new_containers_never_meet_old_ones_and_round_ends(chunk: int) -> None:
    phases = set()
    for seed in range(chunk * IN_A_CHUNK, (chunk + 1) * IN_A_CHUNK):
        simulation = play(seed)
        outcome = simulation.outcome
        assert outcome is not None, f"seed {seed}: the round has not ended"
        phases.add(outcome.phase)
        _nothing_is_kept(simulation, seed)
        _freed_members_are_reported(simulation, seed)
        _done_is_done(simulation, seed)
        assert not simulation.dropped(), f"seed {seed}: {simulation.dropped()} are dropped"
    assert {Phase.DONE, Phase.FAILED} <= phases, "these schedules show too little"


def test_no_fault_of_a_round_is_dropped() -> None:
    decided_next: Counter[MemberPhase | None] = Counter()
    for seed in range(1000):
        simulation = play(seed, mishaps=FAULTS)
        assert simulation.outcome is not None, f"seed {seed}: the round has not ended"
        assert not simulation.dropped(), f"seed {seed}: {simulation.dropped()} are dropped"
        again = simulation.outcome.again
        decided_next.update(each.stood for each in simulation.answered if each.fault in again)
    for stood in (
        None,
        MemberPhase.FAILED,
        MemberPhase.RELEASING,
        MemberPhase.RUNNING,
    ):  # None: the round did not know the pod
        assert decided_next[stood] > 5, f"these schedules show too few faults of pods that phase {stood}"


def calm(seed: int, *, lossy: bool) -> Simulation:
    """Play a healthy gang with some recreated members: deletions are slow, messages quick unless they are lost."""
    rolls = random.Random(seed)
    simulation = simulations.make(rolls, healthy=True)
    simulation.trouble, simulation.rolling = False, None
    simulation.begin()
    deleted_after = rolls.uniform(0.0, 10.0 if lossy else 50.0)
    for _ in range(600):
        if simulation.outcome is not None:
            break
        if lossy and rolls.random() < 0.2:
            simulation.lose()
        if not lossy and rolls.random() < 0.02:
            simulation.kill_hub()
        simulation.resume()
        _deliver(simulation)
        for pod in list(simulation.pods.values()):
            simulation.work(pod)
            simulation.look()
        simulation.delete()
        if simulation.now - builders.NOW > deleted_after:
            _pod(simulation, rolls.choice((simulation.end_deleted, simulation.schedule, simulation.start)))
        simulation.pass_time(rolls.choice((0.0, 0.1, 0.5)))
        simulation.look()
    return simulation


def _deliver(simulation: Simulation) -> None:
    while simulation.to_agents or simulation.to_hub:
        simulation.carry_to_agent()
        simulation.carry_to_hub()


@pytest.mark.parametrize("lossy", [False, True], ids=["replicas die", "messages are lost"])
def test_healthy_gang_recovers_despite_lost_messages_and_leaders(lossy: bool) -> None:
    recreated = 0
    for seed in range(500):
        simulation = calm(seed, lossy=lossy)
        assert simulation.outcome is not None, f"seed {seed}: the round has not ended"
        assert simulation.outcome.phase in (Phase.DONE, Phase.DEGRADED), f"seed {seed}: {simulation.outcome.detail}"
        late = simulation.outcome.phase is Phase.DEGRADED
        assert not late or simulation.decision.recreate, f"seed {seed}: no member had to be waited for"
        assert lossy or not simulation.excused, f"seed {seed}: {simulation.excused} ran next to old ones"
        left = [pod.uid for pod in simulation.pods.values() if pod.old_runs or pod.new is New.HELD]
        assert late or not left, f"seed {seed}: {left} are not back"
        recreated += bool(simulation.decision.recreate) and not late
    assert recreated > 50, "these schedules show too little recreation"


def _nothing_is_kept(simulation: Simulation, seed: int) -> None:
    """Check that every hold at the end was released or aborted, or will expire because its agent was killed."""
    for pod in simulation.pods.values():
        if pod.new is New.HELD and simulation.epoch == 1:
            assert pod.uid in simulation.freed, f"seed {seed}: {pod.uid} is kept"


def _done_is_done(simulation: Simulation, seed: int) -> None:
    """Check that Done is reliable: no process from before the round is left."""
    assert simulation.outcome is not None
    if simulation.outcome.phase is Phase.DONE:
        left = [pod.uid for pod in simulation.pods.values() if pod.old_runs and pod.uid in simulation.outcome.members]
        assert not left, f"seed {seed}: {left} still run as before"


def _freed_members_are_reported(simulation: Simulation, seed: int) -> None:
    outcome, final = simulation.outcome, simulation.final
    assert outcome is not None
    assert final is not None
    known = simulation.excused & simulation.heard & outcome.members.keys()
    conditions = final["conditions"]
    assert isinstance(conditions, list)
    reported = {each["type"]: each for each in conditions}[status.HELD_TOGETHER]
    if known and outcome.phase is not Phase.FAILED:
        assert reported["reason"] != "AllHeld", f"seed {seed}: no record shows that {known} ran early"
