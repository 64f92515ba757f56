"""Which pods are members, how they look, and what of it is news."""

from hypothesis import given
from hypothesis import strategies as st

from agent.coordination import membership
from agent.coordination.membership import Gone, Known, Member, MemberContainer
from agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerView, PodUid, SandboxId
from tests.unit.coordination import builders


def view(
    identity: str, *, name: str = "trainer", attempt: int = 0, state: ContainerState = ContainerState.RUNNING
) -> ContainerView:
    return ContainerView(
        id=ContainerId(identity),
        ref=ContainerRef(builders.ref(0), name),
        sandbox_id=SandboxId("s"),
        attempt=attempt,
        state=state,
        created_at=attempt,
    )


def test_a_pod_in_no_gang_is_no_member() -> None:
    assert membership.member(builders.member(labels={}), [view("c")], Known()) is None


def test_the_newest_of_each_name_counts() -> None:
    views = [view("new", attempt=2), view("old", attempt=1), view("proxy", name="proxy")]
    found = membership.member(builders.member(), views, Known(held={ContainerId("new")}))
    assert found == Member(
        builders.ref(0),
        builders.GANG,
        (
            MemberContainer("proxy", ContainerId("proxy"), 0, ContainerState.RUNNING),
            MemberContainer("trainer", ContainerId("new"), 2, ContainerState.RUNNING, held=True),
        ),
    )


def test_an_end_of_which_nothing_is_known_does_not_pass_for_success() -> None:
    ended = [view("c", state=ContainerState.EXITED)]
    unknown = membership.member(builders.member(), ended, Known())
    known = membership.member(builders.member(), ended, Known(exit_codes={ContainerId("c"): 0}))
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
def test_whoever_takes_every_change_knows_what_is_so(steps: list[tuple[int, Member | None]]) -> None:
    so: dict[PodUid, Member] = {}
    told: dict[PodUid, Member] = {}
    for number, found in steps:
        uid = found.pod.uid if found is not None else builders.ref(number).uid
        if found is None:
            so.pop(uid, None)
        else:
            so[uid] = found
        change = membership.change(told.get(uid), so.get(uid))
        match change:
            case Gone(pod):
                del told[pod.uid]
            case Member():
                told[change.pod.uid] = change
        assert told == so
        assert membership.change(told.get(uid), so.get(uid)) is None
