"""The rerun rule against a kubelet that acts at any moment in between: every reachable state."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerSummary
from kubemend.agent.restart import intents, rerun, reset, steps
from tests.unit.restart import exploring, pods, worlds
from tests.unit.restart.pods import CREATED, EXITED, INIT, MAIN, SIDECAR
from tests.unit.restart.worlds import World

pytestmark = pytest.mark.timeout(900)  # 300,000 states take a minute of a quiet processor

AGENT: tuple[exploring.Move, ...] = (World.agent_looks, World.agent_acts)
SYNCS: tuple[exploring.Move, ...] = (World.kubelet_syncs, World.kubelet_creates, World.kubelet_starts, World.init_ends)
AT_ONCE: tuple[exploring.Move, ...] = (World.kubelet_relists, *SYNCS, *AGENT)
ONE_BY_ONE: tuple[exploring.Move, ...] = (World.kubelet_lists, World.kubelet_asks, *SYNCS, *AGENT)

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


def check_end(world: World) -> None:
    lasting = [item.name for item in world.intent.plan if item.role is not INIT]
    for item in world.intent.plan:
        assert len(world.running(item.name)) == (item.name in lasting), item.name
    assert not [view for view in world.containers if view.state is CREATED or view.id in world.intent.old_ids]
    ends = [end.at for container, end in world.exits.items() if container not in world.intent.old_ids]
    assert len(lasting) == len(world.intent.plan) or ends
    first = min(world.running(name)[0].created_at for name in lasting)
    assert max(ends, default=0) < first, "what init prepares is ready before anything uses it"


def check_once_and_in_order(world: World) -> None:
    """Each container is started once, and the mains, in any order, last."""
    first = [item.name for item in world.intent.plan if item.role is not MAIN]
    mains = {item.name for item in world.intent.plan if item.role is MAIN}
    assert world.starts[: len(first)] == first[: len(world.starts)]
    assert len(set(world.starts[len(first) :]) & mains) == len(world.starts[len(first) :])


def rerun_of(*plan: intents.Planned, grace: float = 0.0) -> World:
    return World.of(full, pods.intent(plan=plan, grace_seconds=grace))


def test_undisturbed_rerun_starts_each_container_once_in_order() -> None:
    world = rerun_of(*pods.PLAN)
    for _ in range(40):
        world.agent_turn()
        world.init_ends()
    assert world.starts == ["prepare", "shipper", "trainer", "logger"]
    world.settle()
    check_end(world)


@pytest.mark.parametrize(
    ("world", "moves"),
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
def test_every_state_has_started_each_container_once_in_order(world: World, moves: Sequence[exploring.Move]) -> None:
    ends = 0
    for number, reached in enumerate(exploring.reachable(world, moves)):
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


MOVES = st.lists(st.sampled_from(sorted(worlds.MOVES)), max_size=80)
GARBAGE_TOO = st.lists(st.sampled_from(sorted(worlds.WITH_GARBAGE)), max_size=80)


def play(world: World, moves: Sequence[str]) -> None:
    for move in moves:
        worlds.WITH_GARBAGE[move](world)


@settings(max_examples=600, deadline=None)
@given(
    before=st.lists(st.sampled_from(("relist", "sync", "create", "start")), max_size=12),
    moves=MOVES,
    ended=st.sets(st.sampled_from(("shipper", "trainer", "logger"))),
)
def test_init_runs_once_even_if_kubelet_was_restarting_it(before: list[str], moves: list[str], ended: set[str]) -> None:
    """Kubelet may have begun before the names were reserved; its container is then out of turn and removed."""
    world = rerun_of(*pods.PLAN)
    world.containers = [replace(view, state=EXITED) if view.ref.name in ended else view for view in world.containers]
    play(world, before + moves)
    world.settle()
    check_end(world)
    assert world.starts.count("prepare") == 1


@settings(max_examples=600, deadline=None)
@given(moves=GARBAGE_TOO)
def test_garbage_collection_may_repeat_a_run_but_rerun_completes(moves: list[str]) -> None:
    world = rerun_of(*pods.PLAN)
    play(world, moves)
    world.settle()
    check_end(world)
    assert world.we_started.count("prepare") <= 1, "kubemend runs init at most once"
