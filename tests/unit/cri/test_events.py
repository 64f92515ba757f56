"""Steps of containers' lives, from two listings and from a stream."""

import dataclasses
import tracemalloc
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.clients.cri import events
from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    SandboxId,
)
from kubemend.common.pb.runtime.v1 import api_pb2

POD = PodRef(namespace="default", name="p", uid=PodUid("u"))
KINDS = list(EventKind)
STATES = [ContainerState.CREATED, ContainerState.RUNNING, ContainerState.EXITED]


def view(name: str, state: ContainerState) -> ContainerSummary:
    return ContainerSummary(
        id=ContainerId(name),
        ref=ContainerRef(pod=POD, name=name),
        sandbox_id=SandboxId("s"),
        attempt=0,
        state=state,
        created_at=1,
    )


listings = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(list(ContainerState))).map(
    lambda states: tuple(view(name, state) for name, state in states.items())
)
histories = st.lists(listings, min_size=1, max_size=6)


def of(steps: Iterable[events.ContainerEvent], name: str) -> list[EventKind]:
    return [step.kind for step in steps if step.container_id == name]


@given(listing=listings)
def test_equal_listings_have_no_events(listing: tuple[ContainerSummary, ...]) -> None:
    assert events.diff(listing, listing, at=1) == ()


@given(before=listings, after=listings)
def test_diff_returns_steps_in_order_to_the_current_state(
    before: tuple[ContainerSummary, ...], after: tuple[ContainerSummary, ...]
) -> None:
    steps = events.diff(before, after, at=7)
    present = {item.id for item in after}

    for name in {step.container_id for step in steps}:
        kinds = of(steps, name)
        assert kinds == sorted(set(kinds), key=KINDS.index)
        assert (kinds[-1] is EventKind.DELETED) == (name not in present)
    assert {step.created_at for step in steps} <= {7}


@given(history=histories)
def test_listing_history_never_repeats_a_step(history: list[tuple[ContainerSummary, ...]]) -> None:
    ledger = events.Ledger()
    reported: dict[str, list[EventKind]] = {}
    for at, listing in enumerate(history):
        for step in ledger.reconcile(listing, at=at):
            reported.setdefault(step.container_id, []).append(step.kind)

    for kinds in reported.values():
        for life in _lives(kinds):
            assert life == sorted(set(life), key=KINDS.index)


def _lives(kinds: list[EventKind]) -> list[list[EventKind]]:
    """Split at DELETED: a listing generator may bring an id back, which real runtimes never do."""
    lives: list[list[EventKind]] = [[]]
    for kind in kinds:
        lives[-1].append(kind)
        if kind is EventKind.DELETED:
            lives.append([])
    return lives


@given(kinds=st.lists(st.sampled_from(KINDS), max_size=8), listing_state=st.sampled_from(STATES))
def test_stream_and_listing_return_each_step_once(kinds: list[EventKind], listing_state: ContainerState) -> None:
    ledger = events.Ledger()
    ledger.reconcile((), at=0)
    reported: list[EventKind] = []
    for number, kind in enumerate(kinds):
        seen = events.Observation(kind, ContainerId("a"), 10 + number, view("a", ContainerState.UNKNOWN))
        reported += of(ledger.observe(seen), "a")
    reported += of(ledger.reconcile((view("a", listing_state),), at=100), "a")

    for life in _lives(reported):
        assert life == sorted(set(life), key=KINDS.index)


def test_first_listing_only_sets_the_state() -> None:
    ledger = events.Ledger()

    assert ledger.reconcile([view("a", ContainerState.RUNNING)], at=1) == ()
    assert [item.id for item in ledger.containers()] == ["a"]


def test_container_that_vanished_while_running_has_stopped() -> None:
    steps = events.diff([view("a", ContainerState.RUNNING)], [], at=1)

    assert of(steps, "a") == [EventKind.STOPPED, EventKind.DELETED]


def test_short_lived_container_may_never_have_started() -> None:
    steps = events.diff([], [view("a", ContainerState.EXITED)], at=1)

    assert of(steps, "a") == [EventKind.CREATED, EventKind.STOPPED]


def test_unknown_state_changes_nothing() -> None:
    ledger = events.Ledger()
    ledger.reconcile([view("a", ContainerState.RUNNING)], at=1)

    assert ledger.reconcile([view("a", ContainerState.UNKNOWN)], at=2) == ()
    assert ledger.reconcile([view("a", ContainerState.RUNNING)], at=3) == ()


def test_replayed_stream_events_are_dropped() -> None:
    ledger = events.Ledger()
    ledger.stream_opened(events.Clocks(unix=100, since_boot=5))
    ledger.reconcile([view("a", ContainerState.EXITED)], at=101)
    old = events.Observation(EventKind.CREATED, ContainerId("b"), 99, view("b", ContainerState.CREATED))

    assert ledger.observe(old) == ()


def test_stream_events_after_the_clock_was_set_back_have_their_steps() -> None:
    """Also those of containers that are newer than the stream; only the replayed ones are dropped."""
    second, hour = 10**9, 3600 * 10**9
    opened = events.Clocks(unix=10 * hour, since_boot=hour)
    ledger = events.Ledger()
    ledger.stream_opened(opened)
    ledger.reconcile([view("a", ContainerState.RUNNING)], at=opened.unix)
    now = events.Clocks(unix=opened.unix - hour + 30 * second, since_boot=opened.since_boot + 30 * second)
    ledger.clocks_read(now)

    def seen(kind: EventKind, name: str, *, at: int) -> list[EventKind]:
        step = events.Observation(kind, ContainerId(name), at, view(name, ContainerState.UNKNOWN))
        return [each.kind for each in ledger.observe(step)]

    assert seen(EventKind.STOPPED, "a", at=now.unix) == [EventKind.STOPPED]
    assert seen(EventKind.CREATED, "b", at=now.unix) == [EventKind.CREATED]
    assert seen(EventKind.CREATED, "c", at=opened.unix - hour - 1) == []


def test_clock_that_ran_on_or_was_put_forward_changes_no_replay() -> None:
    ledger = events.Ledger()
    ledger.stream_opened(events.Clocks(unix=10**12, since_boot=0))
    ledger.reconcile([], at=10**12)
    for now in (events.Clocks(10**12 + 5, 6), events.Clocks(10**15, 10**10)):
        ledger.clocks_read(now)
        old = events.Observation(EventKind.CREATED, ContainerId("b"), 10**12 - 1, view("b", ContainerState.CREATED))
        assert ledger.observe(old) == ()


def test_late_events_of_a_deleted_container_are_dropped() -> None:
    ledger = events.Ledger()
    ledger.reconcile([view("a", ContainerState.RUNNING)], at=1)
    ledger.reconcile([], at=5)

    for kind in KINDS:
        assert ledger.observe(events.Observation(kind, ContainerId("a"), 4, view("a", ContainerState.EXITED))) == ()


def test_deleted_containers_of_a_stream_that_never_breaks_take_a_bounded_amount_of_memory() -> None:
    ledger, life = events.Ledger(), [EventKind.CREATED, EventKind.DELETED]
    ledger.reconcile([], at=1)
    tracemalloc.start()
    try:
        for number in range(20_000):
            one = view(f"{number:064}", ContainerState.EXITED)
            for kind in life:
                ledger.observe(events.Observation(kind, one.id, 4, one))
        assert tracemalloc.get_traced_memory()[0] < 2 << 20
    finally:
        tracemalloc.stop()
    assert ledger.observe(events.Observation(EventKind.STOPPED, one.id, 4, one)) == (), "a late one is dropped still"


def test_late_stream_events_cover_a_life_between_listings() -> None:
    ledger = events.Ledger()
    ledger.reconcile([], at=1)
    ledger.reconcile([], at=5)

    seen = [events.Observation(kind, ContainerId("a"), 4, view("a", ContainerState.UNKNOWN)) for kind in KINDS]

    assert [step.kind for item in seen for step in ledger.observe(item)] == KINDS


def test_new_events_of_a_listing_change_nothing() -> None:
    ledger = events.Ledger()
    ledger.reconcile([], at=1)
    listing = [view("a", ContainerState.CREATED)]

    first, second = ledger.new_events(listing, at=5), ledger.new_events(listing, at=5)

    assert first == second == ledger.reconcile(listing, at=5)
    assert ledger.new_events(listing, at=6) == ()


def test_stop_event_has_its_exit_code() -> None:
    message = _message(api_pb2.CONTAINER_STOPPED_EVENT, state=api_pb2.CONTAINER_EXITED)
    ledger = events.Ledger()
    ledger.reconcile([view("a", ContainerState.RUNNING)], at=1)
    seen = events.read(message)
    assert seen is not None

    [step] = ledger.observe(seen)

    assert (step.kind, step.exit_code, step.reason) == (EventKind.STOPPED, 137, "OOMKilled")


def test_sandbox_events_are_not_container_events() -> None:
    message = _message(api_pb2.CONTAINER_STARTED_EVENT, state=api_pb2.CONTAINER_RUNNING)
    message.container_id = message.pod_sandbox_status.id

    assert events.read(message) is None


def test_container_without_kubelets_labels_is_ignored() -> None:
    message = _message(api_pb2.CONTAINER_STARTED_EVENT, state=api_pb2.CONTAINER_RUNNING)
    message.containers_statuses[0].labels.clear()
    ledger = events.Ledger()
    ledger.reconcile([], at=1)
    seen = events.read(message)
    assert seen is not None

    assert ledger.observe(seen) == ()
    assert ledger.observe(dataclasses.replace(seen, kind=EventKind.DELETED)) == ()


def _message(
    kind: "api_pb2.ContainerEventType.ValueType", *, state: "api_pb2.ContainerState.ValueType"
) -> api_pb2.ContainerEventResponse:
    labels = {
        "io.kubernetes.pod.name": "p",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "u",
        "io.kubernetes.container.name": "a",
    }
    status = api_pb2.ContainerStatus(id="a", state=state, labels=labels, exit_code=137, reason="OOMKilled")
    return api_pb2.ContainerEventResponse(
        container_id="a",
        container_event_type=kind,
        created_at=50,
        pod_sandbox_status=api_pb2.PodSandboxStatus(id="s"),
        containers_statuses=[status],
    )
