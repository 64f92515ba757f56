"""The rerun rule, state by state, and against a kubelet that does what it likes in between."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.workloads import ContainerId, ContainerView
from agent.restart import intents, rerun, reset, steps
from tests.unit.restart import pods
from tests.unit.restart.pods import CREATED, EXITED, RUNNING, new, old

Short = tuple[str, str, str | None]
DONE_INIT = {ContainerId("ours-prepare"): reset.Exit(code=0, at=0)}
PREPARED = new("prepare", EXITED)
SHIPS = new("shipper", RUNNING)


def steps_for(seen: list[ContainerView], *, exits: dict[ContainerId, reset.Exit] | None = None) -> list[Short]:
    known = reset.Known(exits=DONE_INIT if exits is None else exits)
    found = rerun.next_steps(pods.intent(), seen, known=known)
    return [(step.kind.value, step.why.value, step.container or step.name) for step in found]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(
            [old("prepare", EXITED), old("shipper"), old("trainer")],
            [("remove", "OldLeft", "old-prepare")],
            id="exited-ones-go-first",
        ),
        pytest.param(
            [old("shipper"), old("trainer")],
            [("remove", "OldLeft", "old-shipper"), ("remove", "OldLeft", "old-trainer")],
            id="then-all-others-at-once",
        ),
        pytest.param(
            [old("shipper"), new("trainer", RUNNING, ours=False)],
            [("remove", "OldLeft", "old-shipper"), ("remove", "OutOfTurn", "kubelets-trainer")],
            id="what-kubelet-started-too-early-goes",
        ),
        pytest.param([], [("create", "NoSuccessor", "prepare")], id="init-comes-first"),
        pytest.param([new("prepare", CREATED)], [("start", "SuccessorReady", "ours-prepare")], id="is-started"),
        pytest.param([new("prepare", RUNNING)], [("wait", "InitRuns", "ours-prepare")], id="is-awaited"),
        pytest.param(
            [new("prepare", CREATED, ours=False)], [("wait", "KubeletStartsItsOwn", "kubelets-prepare")], id="adopted"
        ),
        pytest.param(
            [new("prepare", RUNNING), new("prepare", CREATED, ours=False, attempt=2)],
            [("remove", "KubeletWon", "ours-prepare")],
            id="of-two-ours-goes",
        ),
        pytest.param([PREPARED], [("create", "NoSuccessor", "shipper")], id="then-the-sidecar"),
        pytest.param(
            [PREPARED, SHIPS],
            [("create", "NoSuccessor", "trainer"), ("create", "NoSuccessor", "logger")],
            id="then-all-mains-side-by-side",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", CREATED), new("logger", CREATED, ours=False)],
            [("start", "SuccessorReady", "ours-trainer")],
            id="no-main-waits-for-kubelets-one",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", RUNNING), new("logger", CREATED, ours=False)],
            [("wait", "KubeletStartsItsOwn", "kubelets-logger")],
            id="kubelets-main-is-waited-for",
        ),
        pytest.param(
            [PREPARED, SHIPS, new("trainer", RUNNING), new("logger", EXITED)], [("done", "Rerun", None)], id="done"
        ),
        pytest.param(
            [PREPARED, new("shipper", EXITED)], [("done", "SidecarExited", "ours-shipper")], id="a-dead-sidecar"
        ),
        pytest.param([pods.view("debugger", "x"), PREPARED], [("create", "NoSuccessor", "shipper")], id="ephemeral"),
    ],
)
def test_next_steps(seen: list[ContainerView], expected: list[Short]) -> None:
    assert steps_for(seen) == expected


def test_a_failed_init_container_is_left_to_kubelet() -> None:
    assert steps_for([PREPARED], exits={ContainerId("ours-prepare"): reset.Exit(code=1, at=0)}) == [
        ("done", "InitFailed", "ours-prepare")
    ]


def test_an_unknown_exit_code_is_no_success_and_no_ground_to_kill() -> None:
    assert steps_for([PREPARED], exits={}) == [("wait", "StateUnknown", "ours-prepare")]
    assert steps_for([PREPARED, new("trainer", RUNNING, ours=False)], exits={}) == [
        ("wait", "StateUnknown", "ours-prepare")
    ]


def test_a_sidecars_startup_probe_is_awaited() -> None:
    plan = (pods.planned("shipper", pods.SIDECAR, has_startup_probe=True), pods.planned("trainer", pods.MAIN))
    intent = pods.intent(plan=plan)
    (waits,) = rerun.next_steps(intent, [SHIPS])
    (goes_on,) = rerun.next_steps(intent, [SHIPS], known=reset.Known(started=frozenset({SHIPS.id})))
    assert (waits.why, goes_on.name) == (steps.Why.NOT_STARTED, "trainer")


def test_grace_stops_everything_side_by_side_before_it_is_removed() -> None:
    found = rerun.next_steps(pods.intent(grace_seconds=5.0), [old("shipper"), old("trainer")])
    assert {(step.kind, step.container) for step in found} == {
        (steps.StepKind.STOP, "old-shipper"),
        (steps.StepKind.STOP, "old-trainer"),
    }


def test_without_configs_kubelet_starts_what_is_missing_and_nothing_of_ours_waits() -> None:
    intent = pods.intent()
    (removal,) = rerun.next_steps(intent, [PREPARED, new("shipper", CREATED)], can_clone=False)
    (end,) = rerun.next_steps(intent, [PREPARED], can_clone=False)
    assert (removal.kind, removal.container) == (steps.StepKind.REMOVE, "ours-shipper")
    assert (end.kind, end.why) == (steps.StepKind.DONE, steps.Why.LEFT_TO_KUBELET)


ALL_OLD = [old(item.name) for item in pods.PLAN]


def test_undo_leaves_an_untouched_pod_alone_and_clears_a_half_cleared_one() -> None:
    intent, undo = pods.intent(), steps.Resolution.UNDO
    assert rerun.next_steps(intent, ALL_OLD, resolution=undo)[0].why is steps.Why.UNDONE
    assert {step.why for step in rerun.next_steps(intent, ALL_OLD[1:], resolution=undo)} == {steps.Why.OLD_LEFT}


def full(intent: intents.PodIntent, seen: Sequence[ContainerView], known: reset.Known) -> tuple[steps.Step, ...]:
    return rerun.next_steps(intent, seen, known=known)


def replayed(intent: intents.PodIntent, seen: Sequence[ContainerView], known: reset.Known) -> tuple[steps.Step, ...]:
    return rerun.next_steps(intent, seen, known=known, can_clone=False)


def check_end(world: pods.World) -> None:
    for name in ("shipper", "trainer", "logger"):
        assert len(world.running(name)) == 1, name
    assert not world.running("prepare")
    assert not [view for view in world.containers if view.state is CREATED or view.id in world.intent.old]
    first = min(world.running(name)[0].created_at for name in ("shipper", "trainer", "logger"))
    ends = [end.at for container, end in world.exits.items() if container not in world.intent.old]
    assert ends
    assert max(ends) < first, "what init prepares is ready before anything uses it"


def test_undisturbed_each_container_is_started_once_and_in_order() -> None:
    world = pods.World(rule=full, intent=pods.intent())
    for _ in range(40):
        world.agent_turn()
        world.init_ends()
    check_end(world)
    assert world.starts == ["prepare", "shipper", "trainer", "logger"]


@settings(max_examples=1500, deadline=None)
@given(moves=st.lists(st.sampled_from(sorted(pods.MOVES)), max_size=60), grace=st.sampled_from([0.0, 5.0]))
def test_any_interleaving_with_kubelet_ends_in_one_running_container_per_name(moves: list[str], grace: float) -> None:
    world = pods.World(rule=full, intent=pods.intent(grace_seconds=grace))
    for move in moves:
        pods.MOVES[move](world)
    world.settle()
    check_end(world)
    assert world.we_started.count("prepare") <= 1, "we run init at most once"


@settings(max_examples=700, deadline=None)
@given(before=st.lists(st.sampled_from(sorted(pods.MOVES)), max_size=40))
def test_a_crash_at_any_step_is_finished_by_kubelet(before: list[str]) -> None:
    world = pods.World(rule=full, intent=pods.intent())
    for move in before:
        pods.MOVES[move](world)
    world.rule, world.sees, world.todo = replayed, None, []
    world.settle()
    check_end(world)
