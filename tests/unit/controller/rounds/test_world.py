"""The round machine with lost messages and dying replicas and agents: thousands of schedules, by their seeds."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from kubemend.controller.rounds import status
from kubemend.controller.rounds.states import MemberPhase, Phase
from tests.unit.controller import builders
from tests.unit.controller.rounds import world as worlds
from tests.unit.controller.rounds.world import New, Node, Pod, World

CHUNKS, IN_A_CHUNK = 20, 200
_STEPS = 150


def _pod(world: World, act: Callable[[Pod], None]) -> None:
    if world.pods:
        act(world.rolls.choice(list(world.pods.values())))


def _node(world: World, act: Callable[[Node], None]) -> None:
    act(world.rolls.choice(list(world.nodes.values())))


def _ordinary(world: World) -> None:
    """Take a step that happens sooner or later."""
    for _ in range(3):
        world.carry_to_agent()
        world.carry_to_hub()
        _pod(world, world.work)
    world.delete()
    _pod(world, world.rolls.choice((world.end_deleted, world.schedule, world.start)))


MISHAPS: tuple[tuple[float, Callable[[World], None]], ...] = (
    (0.10, lambda world: world.lose()),
    (0.02, lambda world: world.kill_hub()),
    (0.20, lambda world: world.resume()),
    (0.02, lambda world: _node(world, world.kill_agent)),
    (0.10, lambda world: _node(world, world.start_agent)),
    (0.01, lambda world: _node(world, world.lose_node)),
    (0.03, lambda world: _node(world, world.mend_node)),
    (0.01, lambda world: _pod(world, world.mark_deleted)),
    (0.01, lambda world: _pod(world, world.complete)),
    (0.03, lambda world: _pod(world, world.fault)),
    (0.01, lambda world: world.grow()),
    (0.002, lambda world: world.cancel()),
    (0.05, lambda world: world.collect()),
    (0.20, lambda world: _pod(world, world.go_on)),
)


FAULTS: tuple[tuple[float, Callable[[World], None]], ...] = (
    (0.02, lambda world: world.lose()),
    (0.01, lambda world: world.kill_hub()),
    (0.50, lambda world: world.resume()),
    (0.10, lambda world: world.grow()),
    (0.50, lambda world: _pod(world, world.fault)),
)
"""In these schedules few other things go wrong, so that rounds reach their release."""


def play(seed: int, *, mishaps: Sequence[tuple[float, Callable[[World], None]]] = MISHAPS) -> World:
    """Play one schedule to its end: trouble first, then enough time to recover."""
    rolls = random.Random(seed)
    world = worlds.make(rolls)
    world.begin()
    for _ in range(_STEPS):
        world.pass_time(rolls.choice((0.0, 0.001, 0.01, 0.1, 1.0, 5.0)))
        _ordinary(world)
        for chance, mishap in mishaps:
            if rolls.random() < chance:
                mishap(world)
                world.look()
        world.look()
    world.trouble = False
    for _ in range(600):
        if world.outcome is not None:
            break
        _hint(world)
        world.look()
    return world


def _hint(world: World) -> None:
    world.resume()
    world.pass_time(1.0)
    for node in world.nodes.values():
        world.mend_node(node)
        world.start_agent(node)
    world.collect()
    for pod in list(world.pods.values()):
        for act in (world.schedule, world.start, world.work, world.work, world.end_deleted):
            if pod.uid in world.pods:
                act(pod)
                world.look()
    for _ in range(len(world.deletions)):
        world.delete()
    for _ in range(len(world.to_agents)):
        world.carry_to_agent()
    for _ in range(len(world.to_hub)):
        world.carry_to_hub()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_new_containers_never_meet_old_ones_and_round_ends(chunk: int) -> None:
    phases = set()
    for seed in range(chunk * IN_A_CHUNK, (chunk + 1) * IN_A_CHUNK):
        world = play(seed)
        outcome = world.outcome
        assert outcome is not None, f"seed {seed}: the round has not ended"
        phases.add(outcome.phase)
        _nothing_is_kept(world, seed)
        _what_was_let_go_is_reported(world, seed)
        _done_is_done(world, seed)
        assert not world.dropped(), f"seed {seed}: {world.dropped()} are dropped"
    assert {Phase.DONE, Phase.FAILED} <= phases, "these schedules show too little"


def test_no_fault_of_a_round_is_dropped() -> None:
    decided_next: Counter[MemberPhase | None] = Counter()
    for seed in range(1000):
        world = play(seed, mishaps=FAULTS)
        assert world.outcome is not None, f"seed {seed}: the round has not ended"
        assert not world.dropped(), f"seed {seed}: {world.dropped()} are dropped"
        again = world.outcome.again
        decided_next.update(each.stood for each in world.answered if each.fault in again)
    for stood in (
        None,
        MemberPhase.FAILED,
        MemberPhase.RELEASING,
        MemberPhase.RUNNING,
    ):  # None: the round did not know the pod
        assert decided_next[stood] > 5, f"these schedules show too few faults of pods that phase {stood}"


def calm(seed: int, *, lossy: bool) -> World:
    """Play a healthy gang with some recreated members: deletions are slow, messages quick unless they are lost."""
    rolls = random.Random(seed)
    world = worlds.make(rolls, healthy=True)
    world.trouble, world.rolling = False, None
    world.begin()
    deleted_after = rolls.uniform(0.0, 10.0 if lossy else 50.0)
    for _ in range(600):
        if world.outcome is not None:
            break
        if lossy and rolls.random() < 0.2:
            world.lose()
        if not lossy and rolls.random() < 0.02:
            world.kill_hub()
        world.resume()
        _deliver(world)
        for pod in list(world.pods.values()):
            world.work(pod)
            world.look()
        world.delete()
        if world.now - builders.NOW > deleted_after:
            _pod(world, rolls.choice((world.end_deleted, world.schedule, world.start)))
        world.pass_time(rolls.choice((0.0, 0.1, 0.5)))
        world.look()
    return world


def _deliver(world: World) -> None:
    while world.to_agents or world.to_hub:
        world.carry_to_agent()
        world.carry_to_hub()


@pytest.mark.parametrize("lossy", [False, True], ids=["replicas die", "messages are lost"])
def test_healthy_gang_recovers_despite_lost_messages_and_leaders(lossy: bool) -> None:
    recreated = 0
    for seed in range(500):
        world = calm(seed, lossy=lossy)
        assert world.outcome is not None, f"seed {seed}: the round has not ended"
        assert world.outcome.phase in (Phase.DONE, Phase.DEGRADED), f"seed {seed}: {world.outcome.detail}"
        late = world.outcome.phase is Phase.DEGRADED
        assert not late or world.decision.recreate, f"seed {seed}: no member had to be waited for"
        assert lossy or not world.excused, f"seed {seed}: {world.excused} ran next to old ones"
        left = [pod.uid for pod in world.pods.values() if pod.old_runs or pod.new is New.HELD]
        assert late or not left, f"seed {seed}: {left} are not back"
        recreated += bool(world.decision.recreate) and not late
    assert recreated > 50, "these schedules show too little recreation"


def _nothing_is_kept(world: World, seed: int) -> None:
    """Check that every hold at the end was released or aborted, or will expire because its agent was killed."""
    for pod in world.pods.values():
        if pod.new is New.HELD and world.epoch == 1:
            assert pod.uid in world.let_go, f"seed {seed}: {pod.uid} is kept"


def _done_is_done(world: World, seed: int) -> None:
    """Check that Done is reliable: no process from before the round is left."""
    assert world.outcome is not None
    if world.outcome.phase is Phase.DONE:
        left = [pod.uid for pod in world.pods.values() if pod.old_runs and pod.uid in world.outcome.members]
        assert not left, f"seed {seed}: {left} still run as before"


def _what_was_let_go_is_reported(world: World, seed: int) -> None:
    outcome, final = world.outcome, world.final
    assert outcome is not None
    assert final is not None
    known = world.excused & world.heard & outcome.members.keys()
    conditions = final["conditions"]
    assert isinstance(conditions, list)
    reported = {each["type"]: each for each in conditions}[status.HELD_TOGETHER]
    if known and outcome.phase is not Phase.FAILED:
        assert reported["reason"] != "AllHeld", f"seed {seed}: no record shows that {known} ran early"
