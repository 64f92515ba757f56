"""Of what stands still for an agent that is gone one container of each name goes on, and never two."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerView, PodRef, PodUid, SandboxId
from agent.restart import leftovers
from agent.restart.leftovers import Fate

RUNNING, CREATED, EXITED, UNKNOWN = (
    ContainerState.RUNNING,
    ContainerState.CREATED,
    ContainerState.EXITED,
    ContainerState.UNKNOWN,
)
OLD, NEW = ContainerId("old"), ContainerId("new")


def view(
    container_id: str, *, at: int, state: ContainerState = RUNNING, ours: bool = False, name: str = "main"
) -> ContainerView:
    return ContainerView(
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
        (None, Fate.GOES_ON),
        (view("new", at=2, state=EXITED), Fate.GOES_ON),
        (view("new", at=2), Fate.ENDS),
        (view("new", at=2, ours=True), Fate.ENDS),
        (view("new", at=2, state=CREATED), Fate.WAITS),
        (view("new", at=2, state=UNKNOWN), Fate.WAITS),
        (view("new", at=0), Fate.WAITS),
        (view("new", at=0, state=CREATED), Fate.GOES_ON),
        (view("new", at=2, name="second"), Fate.GOES_ON),
    ],
)
def test_the_newest_of_a_name_goes_on_once_it_is_alone(other: ContainerView | None, fate: Fate) -> None:
    seen = [view("old", at=1), *([other] if other is not None else [])]
    assert leftovers.fates(seen, still={OLD}) == {OLD: fate}


def test_of_two_that_stand_still_the_older_ends_before_the_newer_goes_on() -> None:
    seen = [view("old", at=1), view("new", at=2, ours=True)]
    assert leftovers.fates(seen, still={OLD, NEW}) == {OLD: Fate.ENDS, NEW: Fate.WAITS}
    assert leftovers.fates([view("old", at=1, state=EXITED), seen[1]], still={NEW}) == {NEW: Fate.GOES_ON}


def test_what_the_runtime_does_not_know_goes_on() -> None:
    assert leftovers.fates([], still={OLD}) == {OLD: Fate.GOES_ON}


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
def test_a_successor_of_ours_that_waits_behind_it_goes_first(
    successor: ContainerView, removed: tuple[ContainerId, ...]
) -> None:
    assert leftovers.in_the_way([view("old", at=1), successor], still={OLD}) == removed


@given(st.data())
def test_never_do_two_of_a_name_run(data: st.DataObject) -> None:
    states = data.draw(st.lists(st.sampled_from(ContainerState), max_size=5))
    seen = [view(str(number), at=number, state=state) for number, state in enumerate(states)]
    runs = [each.id for each in seen if each.state is RUNNING]
    still = data.draw(st.sets(st.sampled_from(runs))) if runs else set()
    found = leftovers.fates(seen, still=still)
    free = [each for each in runs if each not in still]
    let_go = [each for each, fate in found.items() if fate is Fate.GOES_ON]
    assert len(let_go) <= 1
    assert not let_go or not free
    for each, fate in found.items():
        later = itertools.dropwhile(lambda other, this=each: other.id != this, seen)  # type: ignore[misc]
        assert fate is not Fate.ENDS or any(other.state is RUNNING for other in [*later][1:])
