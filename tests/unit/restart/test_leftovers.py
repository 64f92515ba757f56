"""Of containers that a dead agent left frozen one of each name continues, and never two."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    SandboxId,
)
from kubemend.agent.restart import leftovers
from kubemend.agent.restart.leftovers import Disposition

RUNNING, CREATED, EXITED, UNKNOWN = (
    ContainerState.RUNNING,
    ContainerState.CREATED,
    ContainerState.EXITED,
    ContainerState.UNKNOWN,
)
OLD, NEW = ContainerId("old"), ContainerId("new")


def view(
    container_id: str, *, at: int, state: ContainerState = RUNNING, ours: bool = False, name: str = "main"
) -> ContainerSummary:
    return ContainerSummary(
        id=ContainerId(container_id),
        ref=ContainerRef(PodRef("default", "p", PodUid("uid")), name),
        sandbox_id=SandboxId("s"),
        attempt=at,
        state=state,
        created_at=at,
        restart_id="r" if ours else None,
    )


@pytest.mark.parametrize(
    ("other", "fate"),
    [
        (None, Disposition.GOES_ON),
        (view("new", at=2, state=EXITED), Disposition.GOES_ON),
        (view("new", at=2), Disposition.ENDS),
        (view("new", at=2, ours=True), Disposition.ENDS),
        (view("new", at=2, state=CREATED), Disposition.WAITS),
        (view("new", at=2, state=UNKNOWN), Disposition.WAITS),
        (view("new", at=0), Disposition.WAITS),
        (view("new", at=0, state=CREATED), Disposition.GOES_ON),
        (view("new", at=2, name="second"), Disposition.GOES_ON),
    ],
)
def test_newest_of_a_name_continues_once_it_is_alone(other: ContainerSummary | None, fate: Disposition) -> None:
    seen = [view("old", at=1), *([other] if other is not None else [])]
    assert leftovers.dispositions(seen, still={OLD}) == {OLD: fate}


def test_older_of_two_frozen_ends_before_the_newer_continues() -> None:
    seen = [view("old", at=1), view("new", at=2, ours=True)]
    assert leftovers.dispositions(seen, still={OLD, NEW}) == {OLD: Disposition.ENDS, NEW: Disposition.WAITS}
    assert leftovers.dispositions([view("old", at=1, state=EXITED), seen[1]], still={NEW}) == {NEW: Disposition.GOES_ON}


def test_container_unknown_to_the_runtime_continues() -> None:
    assert leftovers.dispositions([], still={OLD}) == {OLD: Disposition.GOES_ON}


@pytest.mark.parametrize(
    ("successor", "removed"),
    [
        (view("new", at=2, state=CREATED, ours=True), (NEW,)),
        (view("new", at=2, state=CREATED), ()),  # kubelet's, which it will start
        (view("new", at=2, ours=True), ()),
        (view("new", at=2, state=CREATED, ours=True, name="second"), ()),
        (view("new", at=0, state=CREATED, ours=True), ()),
    ],
)
def test_waiting_successor_is_removed_first(successor: ContainerSummary, removed: tuple[ContainerId, ...]) -> None:
    assert leftovers.in_the_way([view("old", at=1), successor], still={OLD}) == removed


def test_successor_of_a_container_that_is_not_frozen_is_kept() -> None:
    """An ordinary restart is starting it."""
    seen = [view("old", at=1), view("free", at=1, name="second")]
    seen.append(view("new", at=2, state=CREATED, ours=True, name="second"))
    assert leftovers.in_the_way(seen, still={OLD}) == ()


@given(st.data())
def test_two_of_a_name_never_run(data: st.DataObject) -> None:
    states = data.draw(st.lists(st.sampled_from(ContainerState), max_size=5))
    seen = [view(str(number), at=number, state=state) for number, state in enumerate(states)]
    runs = [each.id for each in seen if each.state is RUNNING]
    still = data.draw(st.sets(st.sampled_from(runs))) if runs else set()
    found = leftovers.dispositions(seen, still=still)
    free = [each for each in runs if each not in still]
    released = [each for each, fate in found.items() if fate is Disposition.GOES_ON]
    assert len(released) <= 1
    assert not released or not free
    for each, fate in found.items():
        later = itertools.dropwhile(lambda other, this=each: other.id != this, seen)  # type: ignore[misc]
        assert fate is not Disposition.ENDS or any(other.state is RUNNING for other in [*later][1:])
