"""Determine which pods are members, their states, and the changes."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.hub import member_states
from kubemend.agent.hub.member_states import Gone, Known, Member, MemberContainer
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodUid,
    SandboxId,
)
from tests.unit.hub import builders


def view(
    identity: str, *, name: str = "trainer", attempt: int = 0, state: ContainerState = ContainerState.RUNNING
) -> ContainerSummary:
    return ContainerSummary(
        id=ContainerId(identity),
        ref=ContainerRef(builders.ref(0), name),
        sandbox_id=SandboxId("s"),
        attempt=attempt,
        state=state,
        created_at=attempt,
    )


def test_pod_without_gang_is_no_member() -> None:
    assert member_states.member(builders.member(labels={}), [view("c")], Known()) is None


def test_newest_container_of_each_name_counts() -> None:
    views = [view("new", attempt=2), view("old", attempt=1), view("proxy", name="proxy")]
    found = member_states.member(builders.member(), views, Known(held={ContainerId("new")}))
    assert found == Member(
        builders.ref(0),
        builders.GANG,
        (
            MemberContainer("proxy", ContainerId("proxy"), 0, ContainerState.RUNNING),
            MemberContainer("trainer", ContainerId("new"), 2, ContainerState.RUNNING, held=True),
        ),
    )


def test_unknown_exit_code_does_not_count_as_success() -> None:
    ended = [view("c", state=ContainerState.EXITED)]
    unknown = member_states.member(builders.member(), ended, Known())
    known = member_states.member(builders.member(), ended, Known(exit_codes={ContainerId("c"): 0}))
    assert unknown is not None
    assert known is not None
    assert (unknown.containers[0].state, unknown.containers[0].exit_code) == (ContainerState.UNKNOWN, None)
    assert (known.containers[0].state, known.containers[0].exit_code) == (ContainerState.EXITED, 0)


members = st.builds(
    lambda number, attempt: Member(
        builders.ref(number),
        builders.GANG,
        (MemberContainer("trainer", ContainerId(f"c{attempt}"), attempt, ContainerState.RUNNING),),
    ),
    st.integers(0, 3),
    st.integers(0, 2),
)


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.none() | members)))
def test_applying_every_change_gives_current_state(steps: list[tuple[int, Member | None]]) -> None:
    so: dict[PodUid, Member] = {}
    told: dict[PodUid, Member] = {}
    for number, found in steps:
        uid = found.pod.uid if found is not None else builders.ref(number).uid
        if found is None:
            so.pop(uid, None)
        else:
            so[uid] = found
        change = member_states.change(told.get(uid), so.get(uid))
        match change:
            case Gone(pod):
                del told[pod.uid]
            case Member():
                told[change.pod.uid] = change
        assert told == so
        assert member_states.change(told.get(uid), so.get(uid)) is None
