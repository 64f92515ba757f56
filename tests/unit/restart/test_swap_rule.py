"""The swap rule, state by state, and against a kubelet that acts at any moment in between."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, steps, swap
from tests.unit.restart import builders

RUNNING, CREATED, EXITED = ContainerState.RUNNING, ContainerState.CREATED, ContainerState.EXITED
OURS = {"restart_id": "r1"}
OLD_RUNS = builders.view("old")
OLD_DEAD = builders.view("old", state=EXITED)
STOP_FIRST = builders.intent()
CREATE_FIRST = builders.intent(order=intents.SwapOrder.CREATE_FIRST)
START_FIRST = builders.intent(order=intents.SwapOrder.START_FIRST)


def ours(state: ContainerState) -> ContainerSummary:
    return builders.view("ours", attempt=1, state=state, restart_id="r1")


def kubelets(state: ContainerState, attempt: int = 1) -> ContainerSummary:
    return builders.view("kubelets", attempt=attempt, state=state)


@pytest.mark.parametrize(
    ("intent", "seen", "expected"),
    [
        pytest.param(STOP_FIRST, [OLD_RUNS], ("stop", "OldRuns", "old"), id="stop-first-begins-with-the-stop"),
        pytest.param(CREATE_FIRST, [OLD_RUNS], ("create", "NoSuccessor", None), id="create-first-begins-with-create"),
        pytest.param(CREATE_FIRST, [OLD_RUNS, ours(CREATED)], ("stop", "OldRuns", "old"), id="then-stops"),
        pytest.param(START_FIRST, [OLD_RUNS], ("create", "NoSuccessor", None), id="start-first-begins-with-create"),
        pytest.param(
            START_FIRST, [OLD_RUNS, ours(CREATED)], ("start", "OnStandby", "ours"), id="then-starts-and-holds"
        ),
        pytest.param(START_FIRST, [OLD_RUNS, ours(RUNNING)], ("stop", "OldRuns", "old"), id="then-stops-the-old-one"),
        pytest.param(START_FIRST, [OLD_DEAD, ours(RUNNING)], ("done", "Swapped", "ours"), id="then-is-done"),
        pytest.param(
            START_FIRST, [OLD_DEAD, ours(CREATED)], ("start", "SuccessorReady", "ours"), id="died-by-itself-in-between"
        ),
        pytest.param(
            START_FIRST,
            [OLD_RUNS, ours(ContainerState.UNKNOWN)],
            ("wait", "StateUnknown", "ours"),
            id="a-successor-of-unknown-state-may-run",
        ),
        pytest.param(STOP_FIRST, [OLD_DEAD], ("create", "NoSuccessor", None), id="dead-old-needs-no-stop"),
        pytest.param(STOP_FIRST, [], ("create", "NoSuccessor", None), id="collected-old-needs-no-stop"),
        pytest.param(STOP_FIRST, [OLD_DEAD, ours(CREATED)], ("start", "SuccessorReady", "ours"), id="starts-ours"),
        pytest.param(STOP_FIRST, [OLD_DEAD, ours(RUNNING)], ("done", "Swapped", "ours"), id="swapped"),
        pytest.param(STOP_FIRST, [OLD_RUNS, ours(RUNNING)], ("stop", "OldRuns", "old"), id="never-two-trainers"),
        pytest.param(STOP_FIRST, [OLD_DEAD, kubelets(RUNNING)], ("done", "Adopted", "kubelets"), id="kubelet-won"),
        pytest.param(
            STOP_FIRST,
            [replace(OLD_DEAD, created_at=9), ours(RUNNING)],
            ("remove", "SeemsNewer", "old"),
            id="the-clock-was-set-back-so-kubelet-would-take-the-old-one-for-the-newest",
        ),
        pytest.param(
            STOP_FIRST,
            [replace(OLD_DEAD, created_at=9), kubelets(RUNNING)],
            ("remove", "SeemsNewer", "old"),
            id="and-next-to-its-own",
        ),
        pytest.param(
            STOP_FIRST,
            [OLD_DEAD, ours(RUNNING), replace(kubelets(EXITED, 2), created_at=9)],
            ("done", "Swapped", "ours"),
            id="a-newer-one-that-has-ended-stays",
        ),
        pytest.param(
            STOP_FIRST, [OLD_DEAD, kubelets(CREATED)], ("wait", "KubeletStartsItsOwn", "kubelets"), id="kubelet-starts"
        ),
        pytest.param(
            CREATE_FIRST,
            [OLD_DEAD, ours(RUNNING), kubelets(RUNNING, 2)],
            ("remove", "KubeletWon", "ours"),
            id="duplicate-is-resolved-in-kubelets-favour",
        ),
        pytest.param(
            CREATE_FIRST,
            [OLD_RUNS, ours(CREATED), kubelets(RUNNING, 2)],
            ("remove", "KubeletWon", "ours"),
            id="kubelets-copy-beside-the-running-one",
        ),
        pytest.param(CREATE_FIRST, [OLD_RUNS, kubelets(RUNNING, 2)], ("stop", "OldRuns", "old"), id="old-goes-next"),
        pytest.param(
            STOP_FIRST, [OLD_DEAD, ours(EXITED)], ("done", "SuccessorExited", "ours"), id="a-dead-successor-is-kubelets"
        ),
        pytest.param(
            STOP_FIRST,
            [builders.view("old", state=ContainerState.UNKNOWN)],
            ("wait", "StateUnknown", "old"),
            id="unknown-is-waited-for",
        ),
        pytest.param(
            CREATE_FIRST,
            [builders.view("old", state=CREATED)],
            ("wait", "StateUnknown", "old"),
            id="so-is-an-unstarted-one",
        ),
        pytest.param(
            STOP_FIRST,
            [OLD_DEAD, ours(ContainerState.UNKNOWN)],
            ("wait", "StateUnknown", "ours"),
            id="nor-is-one-of-unknown-state-a-success",
        ),
    ],
)
def test_next_step(intent: intents.Intent, seen: list[ContainerSummary], expected: tuple[str, str, str | None]) -> None:
    step = swap.next_step(intent, seen)
    assert (step.kind.value, step.reason.value, step.container) == expected


def test_a_dead_container_from_before_the_old_one_changes_nothing() -> None:
    """Kubelet keeps it for its log."""
    before, old = builders.view("before", state=EXITED), builders.view("old", attempt=1)
    intent = builders.intent(old_attempt=1)
    assert swap.next_step(intent, [before, old]).kind is steps.StepKind.STOP
    assert swap.next_step(intent, [before, replace(old, state=EXITED)]).kind is steps.StepKind.CREATE


@pytest.mark.parametrize("order", intents.SwapOrder)
@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param([OLD_DEAD], ("wait", "KubeletCreates", "old"), id="waits-for-kubelets"),
        pytest.param([OLD_DEAD, kubelets(CREATED)], ("wait", "KubeletStartsItsOwn", "kubelets"), id="has-created-it"),
        pytest.param([OLD_DEAD, kubelets(RUNNING)], ("done", "Adopted", "kubelets"), id="adopts-it"),
        pytest.param([OLD_DEAD, ours(CREATED)], ("start", "SuccessorReady", "ours"), id="starts-ours-of-before"),
    ],
)
def test_successor_of_an_ended_container_is_left_to_a_kubelet_that_creates_it(
    order: intents.SwapOrder, seen: list[ContainerSummary], expected: tuple[str, str, str]
) -> None:
    step = swap.next_step(builders.intent(order=order), seen, kubelet_first=True)
    assert (step.kind.value, step.reason.value, step.container) == expected


@pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each.starts_first])
def test_old_container_is_stopped_once_its_successor_runs(order: intents.SwapOrder) -> None:
    intent = builders.intent(order=order)
    steps_taken = [swap.next_step(intent, seen) for seen in ([OLD_RUNS], [OLD_RUNS, ours(CREATED)])]
    assert [step.kind.value for step in steps_taken] == ["create", "start"]
    assert swap.next_step(intent, [OLD_RUNS, ours(RUNNING)]).kind is steps.StepKind.STOP


@pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each.otherwise is not None])
@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([OLD_DEAD], "create"),
        ([OLD_DEAD, ours(CREATED)], "start"),
        ([OLD_DEAD, ours(RUNNING)], "done"),
        ([OLD_RUNS, ours(CREATED)], "start"),
    ],
)
def test_replay_completes_by_the_journalled_order(
    order: intents.SwapOrder, seen: list[ContainerSummary], expected: str
) -> None:
    """The journal does not record that the successor could not be held."""
    assert swap.next_step(builders.intent(order=order), seen).kind.value == expected


@pytest.mark.parametrize(
    ("order", "otherwise"),
    [
        (intents.SwapOrder.START_FIRST, None),
        (intents.SwapOrder.START_ELSE_STOP_FIRST, intents.SwapOrder.STOP_FIRST),
        (intents.SwapOrder.START_ELSE_CREATE_FIRST, intents.SwapOrder.CREATE_FIRST),
        (intents.SwapOrder.STOP_FIRST, None),
    ],
)
def test_order_names_the_fallback_without_holds(order: intents.SwapOrder, otherwise: intents.SwapOrder | None) -> None:
    assert order.otherwise is otherwise
    assert otherwise is None or otherwise.with_start_first is order


@pytest.mark.parametrize("order", list(intents.SwapOrder))
@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([OLD_RUNS, ours(CREATED)], ("remove", "NotAlike", "ours")),
        ([OLD_DEAD, ours(CREATED)], ("remove", "NotAlike", "ours")),
        ([OLD_RUNS], ("done", "NotAlike", None)),
        ([OLD_DEAD], ("done", "NotAlike", None)),
        ([OLD_RUNS, ours(RUNNING)], ("stop", "OldRuns", "old")),
        ([OLD_RUNS, ours(CREATED), kubelets(RUNNING, 2)], ("remove", "KubeletWon", "ours")),
        ([OLD_DEAD, kubelets(RUNNING, 2)], ("done", "Adopted", "kubelets")),
    ],
)
def test_a_successor_that_differs_is_taken_back_and_nothing_is_stopped_for_it(
    order: intents.SwapOrder, seen: list[ContainerSummary], expected: tuple[str, str, str | None]
) -> None:
    step = swap.next_step(builders.intent(order=order), seen, is_unlike=True)
    assert (step.kind.value, step.reason.value, step.container) == expected


@pytest.mark.parametrize("old", [OLD_RUNS, OLD_DEAD])
def test_a_successor_that_differs_is_removed_although_it_runs_if_it_is_held(old: ContainerSummary) -> None:
    for state in (CREATED, RUNNING):
        step = swap.next_step(START_FIRST, [old, ours(state)], is_unlike=True, is_held=True)
        assert (step.kind, step.reason, step.container) == (steps.StepKind.REMOVE, steps.StepReason.NOT_ALIKE, "ours")
    step = swap.next_step(START_FIRST, [old, ours(RUNNING), kubelets(RUNNING, 2)], is_unlike=True, is_held=True)
    assert (step.kind, step.reason) == (steps.StepKind.REMOVE, steps.StepReason.KUBELET_WON)


@pytest.mark.parametrize("order", list(intents.SwapOrder))
def test_the_order_for_a_comparison_creates_first(order: intents.SwapOrder) -> None:
    assert order.with_create_first not in (intents.SwapOrder.STOP_FIRST, intents.SwapOrder.START_ELSE_STOP_FIRST)
    assert order.with_create_first.starts_first is order.starts_first


@pytest.mark.parametrize("intent", [CREATE_FIRST, START_FIRST])
def test_undo_removes_a_waiting_successor_while_old_runs_and_is_done(intent: intents.Intent) -> None:
    step = swap.next_step(intent, [OLD_RUNS, ours(CREATED)], resolution=steps.Resolution.UNDO)
    assert (step.kind, step.container) == (steps.StepKind.REMOVE, "ours")
    step = swap.next_step(intent, [OLD_RUNS], resolution=steps.Resolution.UNDO)
    assert (step.kind, step.reason) == (steps.StepKind.DONE, steps.StepReason.UNDONE)


@pytest.mark.parametrize("state", [CREATED, RUNNING])
def test_kubelets_copy_of_a_released_successor_is_removed(state: ContainerState) -> None:
    copy = builders.view("theirs", attempt=2, state=state)
    step = swap.next_step(STOP_FIRST, [ours(RUNNING), copy], stays={ours(RUNNING).id})
    assert (step.kind, step.reason, step.container) == (steps.StepKind.REMOVE, steps.StepReason.OUT_OF_TURN, "theirs")
    step = swap.next_step(STOP_FIRST, [ours(RUNNING), copy])
    assert (step.kind, step.reason, step.container) == (steps.StepKind.REMOVE, steps.StepReason.KUBELET_WON, "ours")


def test_successor_of_another_restart_is_not_kubelets_copy() -> None:
    another = builders.view("another", attempt=2, state=RUNNING, restart_id="r2")
    step = swap.next_step(STOP_FIRST, [ours(RUNNING), another], stays={ours(RUNNING).id})
    assert (step.kind, step.container) == (steps.StepKind.REMOVE, "ours")


def test_undo_stops_the_old_container_next_to_kubelets() -> None:
    step = swap.next_step(CREATE_FIRST, [OLD_RUNS, kubelets(RUNNING)], resolution=steps.Resolution.UNDO)
    assert (step.kind, step.container) == (steps.StepKind.STOP, "old")


def test_undo_never_removes_a_running_successor() -> None:
    step = swap.next_step(START_FIRST, [OLD_RUNS, ours(RUNNING)], resolution=steps.Resolution.UNDO)
    assert (step.kind, step.container) == (steps.StepKind.STOP, "old")


def test_missing_config_starts_nothing_next_to_old() -> None:
    step = swap.next_step(START_FIRST, [OLD_RUNS, ours(CREATED)], can_clone=False)
    assert (step.kind, step.container) == (steps.StepKind.REMOVE, "ours")


def test_undo_continues_if_the_old_container_is_dead() -> None:
    step = swap.next_step(CREATE_FIRST, [OLD_DEAD, ours(CREATED)], resolution=steps.Resolution.UNDO)
    assert step.kind is steps.StepKind.START


@pytest.mark.parametrize("order", intents.SwapOrder)
@pytest.mark.parametrize(("seen", "code"), [([OLD_DEAD], 0), ([OLD_DEAD], 1), ([OLD_DEAD], None), ([], None)])
def test_undo_creates_nothing_in_place_of_a_container_that_may_have_ended_for_good(
    order: intents.SwapOrder, seen: list[ContainerSummary], code: int | None
) -> None:
    intent, undo = builders.intent(order=order), steps.Resolution.UNDO
    step = swap.next_step(intent, seen, resolution=undo, old_exit=code)
    restarted = code == 1 and order.exit_is_restarted
    assert (step.kind.value, step.reason.value) == (("create", "NoSuccessor") if restarted else ("done", "Undone"))


@pytest.mark.parametrize("order", intents.SwapOrder)
@pytest.mark.parametrize(
    ("seen", "grace", "expected"),
    [
        pytest.param([OLD_DEAD], 0.0, ("done", "Completed"), id="before-the-stop"),
        pytest.param([OLD_DEAD, ours(CREATED)], 0.0, ("remove", "Completed"), id="while-its-successor-waits"),
        pytest.param([OLD_DEAD, ours(RUNNING)], 0.0, ("done", "Swapped"), id="its-successor-runs"),
        pytest.param([OLD_DEAD, ours(EXITED)], 0.0, ("done", "SuccessorExited"), id="its-successor-has-run"),
        pytest.param([OLD_DEAD, kubelets(RUNNING)], 0.0, ("done", "Adopted"), id="kubelet-restarts-it"),
        pytest.param([OLD_DEAD], 5.0, ("done", "Completed"), id="before-a-stop-with-SIGTERM"),
        pytest.param([OLD_DEAD, ours(CREATED)], 5.0, ("start", "SuccessorReady"), id="it-may-have-answered-SIGTERM"),
    ],
)
def test_container_that_has_completed_is_not_started_again(
    order: intents.SwapOrder, seen: list[ContainerSummary], grace: float, expected: tuple[str, str]
) -> None:
    intent = builders.intent(order=order, grace_seconds=grace, completes=True)
    step = swap.next_step(intent, seen, old_exit=0)
    assert (step.kind.value, step.reason.value) == expected


@pytest.mark.parametrize(
    ("seen", "stays", "expected"),
    [
        pytest.param([OLD_DEAD, ours(CREATED)], set(), ("remove", "Completed"), id="it-would-run-a-second-time"),
        pytest.param([OLD_DEAD, ours(RUNNING)], set(), ("remove", "Completed"), id="it-runs-a-second-time"),
        pytest.param([OLD_DEAD, ours(RUNNING)], {"ours"}, ("done", "Swapped"), id="its-round-has-released-it"),
        pytest.param([OLD_DEAD, ours(EXITED)], set(), ("done", "SuccessorExited"), id="it-has-ended-again"),
        pytest.param([OLD_DEAD, kubelets(RUNNING)], set(), ("done", "Adopted"), id="kubelet-restarts-it"),
    ],
)
def test_running_successor_of_a_container_that_has_completed_is_recalled(
    seen: list[ContainerSummary], stays: set[ContainerId], expected: tuple[str, str]
) -> None:
    intent = builders.intent(order=intents.SwapOrder.START_FIRST, completes=True)
    step = swap.next_step(intent, seen, old_exit=0, recalls=True, stays=stays)
    assert (step.kind.value, step.reason.value) == expected
    assert step.container == seen[-1].id


@pytest.mark.parametrize(("completes", "code"), [(True, 1), (True, 137), (True, None), (False, 0)])
def test_container_that_has_not_completed_is_started_again(*, completes: bool, code: int | None) -> None:
    intent = builders.intent(completes=completes)
    assert swap.next_step(intent, [OLD_DEAD], old_exit=code).kind is steps.StepKind.CREATE
    assert swap.next_step(intent, [OLD_DEAD, ours(CREATED)], old_exit=code).kind is steps.StepKind.START


def test_missing_config_creates_nothing() -> None:
    assert swap.next_step(STOP_FIRST, [], can_clone=False).reason is steps.StepReason.NOTHING_TO_CLONE


def test_created_orphan_is_found() -> None:
    found = swap.orphans([OLD_RUNS, ours(CREATED)], owned=frozenset(), now=5.0)
    assert [(intent.id, intent.old, intent.old_attempt) for intent in found] == [("r1", "old", 0)]


def test_running_orphan_next_to_old_is_found() -> None:
    (intent,) = swap.orphans([OLD_RUNS, ours(RUNNING)], owned=frozenset(), now=5.0)
    step = swap.next_step(intent, [OLD_RUNS, ours(RUNNING)], resolution=steps.Resolution.UNDO, can_clone=False)
    assert (step.kind, step.container) == (steps.StepKind.STOP, "old")


def test_no_container_of_another_name_is_stopped_for_an_orphan() -> None:
    other = replace(OLD_RUNS, ref=replace(OLD_RUNS.ref, name="logger"))
    assert swap.orphans([other, ours(RUNNING)], owned=frozenset(), now=5.0) == ()


def test_successor_of_a_dead_container_is_no_orphan() -> None:
    assert swap.orphans([OLD_DEAD, ours(RUNNING)], owned=frozenset(), now=5.0) == ()


def test_successor_with_an_open_intent_is_no_orphan() -> None:
    assert swap.orphans([OLD_RUNS, ours(CREATED)], owned=frozenset({"r1"}), now=5.0) == ()


def test_kubelets_created_container_is_no_orphan() -> None:
    assert swap.orphans([OLD_RUNS, kubelets(CREATED)], owned=frozenset(), now=5.0) == ()


@dataclass
class Simulation:
    """A runtime, kubelet's rules (pkg/kubelet/container/helpers.go, research) and one agent, moved one step at a time.

    Kubelet acts on its last relist; a name (attempt) can be taken once, as in containerd's registrar.
    """

    intent: intents.Intent
    containers: list[ContainerSummary] = field(default_factory=lambda: [builders.view("old")])
    clock: int = 10
    kubelet_saw: ContainerSummary | None = None
    kubelet_saw_one_running: bool = True
    kubelet_starts: ContainerId | None = None
    pod_failed: bool = False
    agent_sees: list[ContainerSummary] | None = None

    def _add(self, name: str, *, attempt: int, restart_id: str | None) -> bool:
        if any(view.attempt == attempt for view in self.containers):
            return False
        self.clock += 1
        self.containers.append(
            builders.view(name, attempt=attempt, state=CREATED, created_at=self.clock, restart_id=restart_id)
        )
        return True

    def _set(self, which: str | None, state: ContainerState) -> None:
        self.containers = [replace(view, state=state) if view.id == which else view for view in self.containers]

    def newest(self) -> ContainerSummary | None:
        return max(self.containers, key=lambda view: view.created_at, default=None)

    def kubelet_relists(self) -> None:
        self.kubelet_saw = self.newest()
        self.kubelet_saw_one_running = any(view.state is RUNNING for view in self.containers)

    def kubelet_syncs(self) -> None:
        if self.kubelet_starts is not None:
            return  # one worker per pod: it starts what it created before it syncs again
        saw, self.kubelet_saw = self.kubelet_saw, None
        if self.intent.order.starts_first and not self.kubelet_saw_one_running:
            self.pod_failed = True  # restartPolicy Never and nothing else in the pod: getPhase returns Failed
            return
        if saw is None or saw.state is RUNNING:
            return
        if saw.state is EXITED and self.intent.order is not intents.SwapOrder.STOP_FIRST:
            self.pod_failed = True  # restartPolicy Never: an exit of the newest container is final; else a gap
            return
        if self._add(f"kubelet-{saw.attempt + 1}", attempt=saw.attempt + 1, restart_id=None):
            self.kubelet_starts = ContainerId(f"kubelet-{saw.attempt + 1}")

    def kubelet_starts_what_it_created(self) -> None:
        created, self.kubelet_starts = self.kubelet_starts, None
        if created is not None:
            # The next sync waits for a relist newer than this one (podCache.GetNewerThan).
            self.kubelet_saw, self.kubelet_saw_one_running = None, True
        if any(view.id == created and view.state is CREATED for view in self.containers):
            self._set(created, RUNNING)

    def agent_looks(self) -> None:
        self.agent_sees = list(self.containers)

    def agent_acts(self, resolution: steps.Resolution = steps.Resolution.FINISH) -> bool:
        """Do one step by the last listing (it may be stale by now); return whether the agent is done."""
        if self.agent_sees is None:
            self.agent_looks()
        assert self.agent_sees is not None
        step = swap.next_step(self.intent, self.agent_sees, resolution=resolution)
        match step.kind:
            case steps.StepKind.STOP:
                assert step.container == self.intent.old
                self._set(step.container, EXITED)
            case steps.StepKind.CREATE:
                self._add("ours", attempt=self.intent.old_attempt + 1, restart_id=self.intent.id)
            case steps.StepKind.START:
                old_runs = any(view.id == self.intent.old and view.state is RUNNING for view in self.containers)
                held = step.reason is steps.StepReason.ON_STANDBY and self.intent.order.starts_first
                assert held or not old_runs, "a successor was started next to the running old container"
                if any(view.id == step.container and view.state is CREATED for view in self.containers):
                    self._set(step.container, RUNNING)
            case steps.StepKind.REMOVE:
                assert any(v.id == step.container and v.restart_id == self.intent.id for v in self.agent_sees)
                self.containers = [view for view in self.containers if view.id != step.container]
        self.agent_sees = None
        return step.kind is steps.StepKind.DONE

    def settle(self) -> None:
        """Run everything in progress to its end, with the agent watching."""
        for _ in range(30):
            self.kubelet_starts_what_it_created()
            self.kubelet_relists()
            self.kubelet_syncs()
            self.kubelet_starts_what_it_created()
            self.agent_looks()
            self.agent_acts()


MOVES: dict[str, Callable[[Simulation], object]] = {
    "relist": Simulation.kubelet_relists,
    "sync": Simulation.kubelet_syncs,
    "start": Simulation.kubelet_starts_what_it_created,
    "look": Simulation.agent_looks,
    "act": Simulation.agent_acts,
}


@settings(max_examples=600, deadline=None)
@given(order=st.sampled_from(intents.SwapOrder), moves=st.lists(st.sampled_from(sorted(MOVES)), max_size=24))
def test_swap_and_kubelet_interleaved_leave_exactly_one_running_container(
    order: intents.SwapOrder, moves: list[str]
) -> None:
    simulation = Simulation(builders.intent(order=order))
    for move in moves:
        MOVES[move](simulation)
        if order is not intents.SwapOrder.STOP_FIRST:
            assert not simulation.pod_failed, "kubelet saw the newest container exited, or nothing running"
    simulation.settle()
    running = [view for view in simulation.containers if view.state is RUNNING]
    assert len(running) == 1
    assert running[0].id != simulation.intent.old
    assert not [view for view in simulation.containers if view.state is CREATED]


@settings(max_examples=300, deadline=None)
@given(order=st.sampled_from(intents.SwapOrder), moves=st.lists(st.sampled_from(sorted(MOVES)), max_size=12))
def test_crash_at_any_step_then_undo_leaves_no_duplicate(order: intents.SwapOrder, moves: list[str]) -> None:
    simulation = Simulation(builders.intent(order=order))
    for move in moves:
        MOVES[move](simulation)
    for _ in range(30):  # the agent died and is back, and undoes what it can
        simulation.agent_looks()
        simulation.agent_acts(steps.Resolution.UNDO)
        simulation.kubelet_starts_what_it_created()
        simulation.kubelet_relists()
        simulation.kubelet_syncs()
    assert len([view for view in simulation.containers if view.state is RUNNING]) == 1
