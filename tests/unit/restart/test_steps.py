"""A restart in a terminating pod: its unstarted containers are removed, and nothing is started or ended."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart.steps import StepKind, StepReason, abandon
from tests.unit.restart import builders

OURS = "r1"

views = st.builds(
    builders.view,
    st.sampled_from(["a", "b", "c", "d"]),
    state=st.sampled_from(list(ContainerState)),
    attempt=st.integers(0, 3),
    restart_id=st.sampled_from([OURS, "another", None]),
)


def test_waiting_container_is_removed_and_running_one_is_left() -> None:
    waits = builders.view("new", state=ContainerState.CREATED, attempt=1, restart_id=OURS)
    old = builders.view("old")
    (step,) = abandon(OURS, [old, waits])
    assert (step.kind, step.reason, step.container) == (StepKind.REMOVE, StepReason.POD_ENDS, waits.id)
    (step,) = abandon(OURS, [old])
    assert (step.kind, step.reason) == (StepKind.DONE, StepReason.POD_ENDS)


def test_started_but_held_container_is_removed() -> None:
    held = builders.view("new", attempt=1, restart_id=OURS)
    (step,) = abandon(OURS, [held], waiting={held.id})
    assert (step.kind, step.container) == (StepKind.REMOVE, held.id)
    (step,) = abandon(OURS, [held])
    assert step.kind is StepKind.DONE


def test_old_container_next_to_a_successor_that_runs_is_stopped() -> None:
    old, new = builders.view("old"), builders.view("new", attempt=1, restart_id=OURS)
    (step,) = abandon(OURS, [old, new], old={old.id})
    assert (step.kind, step.reason, step.container) == (StepKind.STOP, StepReason.POD_ENDS, old.id)
    (step,) = abandon(OURS, [old, new], waiting={new.id}, old={old.id})
    assert (step.kind, step.container) == (StepKind.REMOVE, new.id)


@given(st.lists(views, unique_by=lambda view: view.id), st.sets(st.sampled_from([ContainerId(x) for x in "abcd"])))
def test_nothing_is_started_or_stopped_until_done(seen: list[ContainerSummary], waiting: set[ContainerId]) -> None:
    left = list(seen)
    for _ in range(len(seen) + 1):
        steps = abandon(OURS, left, waiting=waiting)
        assert {step.kind for step in steps} in ({StepKind.REMOVE}, {StepKind.DONE})
        gone = {step.container for step in steps if step.kind is StepKind.REMOVE}
        assert all(view.restart_id == OURS for view in left if view.id in gone)
        left = [view for view in left if view.id not in gone]
    assert steps[0].kind is StepKind.DONE
