"""The witness's records of a pod, and how long they are kept."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bench.crash.subjects import Subject
from bench.crash.witness import Witness
from bench.rig import Rig
from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.devices import pod_conditions
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.workloads import ContainerState, ContainerSummary, PodChange, PodChangeKind, PodView
from kubemend.agent.restart import admission
from kubemend.agent.restart.reasons import Reason
from tests.unit.restart import builders

SUBJECT = Subject(builders.POD.name)
DEADLINE = 60.0


@dataclass
class Pods:
    """The watch of the API server's pods: a test sets its changes."""

    newest: PodView = field(default_factory=builders.pod)
    listeners: list[Callable[[PodChange], None]] = field(default_factory=list)

    def subscribe(self, listener: Callable[[PodChange], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def by_name(self, namespace: str, name: str) -> PodView:
        assert (namespace, name) == (self.newest.ref.namespace, self.newest.ref.name)
        return self.newest

    def change(self, pod: PodView) -> None:
        """Report it as the watch does."""
        self.newest = pod
        for listener in self.listeners:
            listener(PodChange(PodChangeKind.CHANGED, pod))


@dataclass
class Events:
    """The watch of the runtime's containers: a test sets its events."""

    queue: "asyncio.Queue[ContainerEvent]" = field(default_factory=asyncio.Queue)
    listed: tuple[ContainerSummary, ...] = ()

    @contextlib.asynccontextmanager
    async def subscribe(self) -> AsyncIterator["asyncio.Queue[ContainerEvent]"]:
        yield self.queue

    def containers(self) -> tuple[ContainerSummary, ...]:
        return self.listed


@dataclass
class Watched:
    """A witness, and its inputs."""

    witness: Witness
    pods: Pods
    events: Events

    async def happens(self, kind: EventKind, view: ContainerSummary, *, at: float) -> None:
        """Return when the witness has recorded it."""
        lines = len(self.witness.timeline(SUBJECT))
        self.events.queue.put_nowait(ContainerEvent(kind, view, created_at=int(at * 1e9)))
        async with asyncio.timeout(DEADLINE):
            while len(self.witness.timeline(SUBJECT)) == lines:
                await self.witness.change(timeout=DEADLINE)


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    pods, events = Pods(), Events()
    observer = SimpleNamespace(volume=lambda _: tmp_path)
    rig = cast("Rig", SimpleNamespace(pods=pods, events=events, observer=observer))
    async with Witness.of(rig) as witness:
        yield Watched(witness, pods, events)


def test_the_phases_begin_when_the_pod_first_runs_and_none_is_forgotten(watched: Watched) -> None:
    for phase in ("Pending", "Running", "Running", "Failed", "Running"):
        watched.pods.change(builders.pod(phase=phase))
    watched.witness.turn_page()
    assert watched.witness.now(SUBJECT).phases == ("Running", "Failed", "Running")
    watched.witness.forget(SUBJECT)
    assert watched.witness.now(SUBJECT).phases == ()


def test_a_refusal_is_remembered_until_the_page_is_turned(watched: Watched) -> None:
    refusal = Condition(
        conditions.IN_PLACE_RESTART, ConditionStatus.FALSE, "DeviceNotUsable", "trainer not restarted for pid 17: …"
    )
    for status in (ConditionStatus.FALSE, ConditionStatus.FALSE, ConditionStatus.TRUE):
        watched.pods.change(builders.pod(conditions=(replace(refusal, status=status),)))
    assert watched.witness.now(SUBJECT).refusals == (refusal.message,)
    watched.witness.turn_page()
    assert watched.witness.now(SUBJECT).refusals == ()


def test_a_restart_on_hold_is_no_refusal(watched: Watched) -> None:
    decision = admission.Decision(
        admission.Verb.POSTPONE, Reason.POD_UNKNOWN, "the API server has not sent this pod yet"
    )
    cause = admission.Cause("Xid31", "Xid 31 on GPU-0 pid 17", happened_at=1.0)
    on_hold = pod_conditions.for_refusal(container="trainer", cause=cause, decision=decision)
    watched.pods.change(builders.pod(conditions=(on_hold,)))
    assert watched.witness.now(SUBJECT).refusals == ()
    refused = replace(decision, verb=admission.Verb.REFUSE)
    refusal = pod_conditions.for_refusal(container="trainer", cause=cause, decision=refused)
    watched.pods.change(builders.pod(conditions=(refusal,)))
    assert watched.witness.now(SUBJECT).refusals == (refusal.message,)


async def test_a_container_that_has_ended_is_forgotten_when_the_page_is_turned(watched: Watched) -> None:
    old, new = builders.view("old"), builders.view("new", attempt=1)
    await watched.happens(EventKind.STARTED, old, at=1.0)
    await watched.happens(EventKind.STOPPED, replace(old, state=ContainerState.EXITED), at=3.0)
    await watched.happens(EventKind.DELETED, replace(old, state=ContainerState.EXITED), at=4.0)
    await watched.happens(EventKind.STARTED, new, at=2.0)
    first, second = watched.witness.now(SUBJECT).lives
    assert (first.began, first.ended) == (1.0, 3.0), "removal is not its end"
    assert first.beside(second)
    watched.witness.turn_page()
    assert watched.witness.now(SUBJECT).lives == (second,)


async def test_a_container_that_is_removed_after_the_page_is_turned_stays_forgotten(watched: Watched) -> None:
    old = builders.view("old")
    await watched.happens(EventKind.STOPPED, replace(old, state=ContainerState.EXITED), at=3.0)
    watched.witness.turn_page()
    await watched.happens(EventKind.DELETED, replace(old, state=ContainerState.EXITED), at=4.0)
    assert watched.witness.now(SUBJECT).lives == ()


async def test_freeze_excuses_an_overlap_for_one_page_only(watched: Watched) -> None:
    view = builders.view("old")
    await watched.happens(EventKind.STARTED, view, at=1.0)
    watched.witness.stood_still(SUBJECT, view.id)
    assert [life.stood_still for life in watched.witness.now(SUBJECT).lives] == [True]
    watched.witness.turn_page()
    assert [life.stood_still for life in watched.witness.now(SUBJECT).lives] == [False]


@pytest.mark.parametrize(
    ("asked", "stood_still"), [pytest.param("1", True, id="frozen"), pytest.param("0", False, id="ended")]
)
async def test_a_container_that_freezes_and_dies_at_once_is_recorded(
    watched: Watched, tmp_path: Path, asked: str, *, stood_still: bool
) -> None:
    view = builders.view("old")
    await watched.happens(EventKind.STARTED, view, at=1.0)
    watched.events.listed = (view,)
    watched.witness._cgroups[view.id] = Cgroup(tmp_path)
    (tmp_path / "cgroup.freeze").write_text(asked)
    await watched.witness.follow_freezing(SUBJECT)
    (task,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("freezing"))
    async with asyncio.timeout(DEADLINE):
        await task
    assert [life.stood_still for life in watched.witness.now(SUBJECT).lives] == [stood_still]


async def test_a_container_is_followed_once_until_it_freezes(watched: Watched, tmp_path: Path) -> None:
    """Each trial follows all containers that run; threads that wait for one container would delay others."""
    view = builders.view("old")
    await watched.happens(EventKind.STARTED, view, at=1.0)
    watched.events.listed = (view,)
    watched.witness._cgroups[view.id] = Cgroup(tmp_path)
    (tmp_path / "cgroup.events").write_text("frozen 0\n")
    (tmp_path / "cgroup.freeze").write_text("1")
    for _ in range(3):
        await watched.witness.follow_freezing(SUBJECT)
    (task,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("freezing"))
    (tmp_path / "cgroup.events").write_text("frozen 1\n")
    async with asyncio.timeout(DEADLINE):
        await task
    await watched.witness.follow_freezing(SUBJECT)
    assert [task.get_name() for task in asyncio.all_tasks()].count(task.get_name()) == 1
