"""The stage that a kill hit, by journal and containers."""

from dataclasses import replace

import pytest

from bench.crash.stages import Injected, Stage, stage
from bench.crash.subjects import Subject
from bench.journal import Entry
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    SandboxId,
)
from kubemend.agent.restart import intents
from kubemend.agent.restart.intents import Strategy

SWAPPED = Subject("swapped")
RERUN = Subject("rerun", strategy=Strategy.RERUN)
AT = 1000.0
RUNNING, CREATED, EXITED = ContainerState.RUNNING, ContainerState.CREATED, ContainerState.EXITED


def pod(subject: Subject) -> PodRef:
    return PodRef("default", subject.name, PodUid("uid"))


def fault(subject: Subject = SWAPPED) -> Injected:
    return Injected(subject, "trainer", old=ContainerId("trainer-old"), pid=1, at=AT)


def old(name: str, state: ContainerState, *, of: Subject = SWAPPED) -> ContainerSummary:
    return view(f"{name}-old", name, state, created=AT - 1, of=of)


def new(name: str, state: ContainerState, *, of: Subject = SWAPPED) -> ContainerSummary:
    return view(f"{name}-new", name, state, created=AT + 1, of=of)


def view(container: str, name: str, state: ContainerState, *, created: float, of: Subject) -> ContainerSummary:
    ref = ContainerRef(pod(of), name)
    return ContainerSummary(
        ContainerId(container), ref, SandboxId("box"), attempt=0, state=state, created_at=int(created * 1e9)
    )


def entry(subject: Subject = SWAPPED, *, outcome: str | None = None, at: float = AT + 0.1) -> Entry:
    if subject.strategy is Strategy.SWAP:
        swap = intents.Intent(
            id="r1",
            target=ContainerRef(pod(subject), "trainer"),
            sandbox_id=SandboxId("box"),
            old=ContainerId("trainer-old"),
            old_attempt=0,
            order=intents.SwapOrder.STOP_FIRST,
            reason="Xid31",
            created_at=at,
        )
        return Entry(swap, outcome)
    whole = intents.PodIntent(
        id="r1",
        target=ContainerRef(pod(subject), "trainer"),
        sandbox_id=SandboxId("box"),
        strategy=subject.strategy,
        plan=(intents.Planned("trainer", ContainerRole.MAIN),),
        reason="Xid31",
        created_at=at,
    )
    return Entry(whole, outcome)


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param([old("trainer", RUNNING)], Stage.JOURNALLED, id="nothing-done"),
        pytest.param([old("trainer", RUNNING), new("trainer", CREATED)], Stage.BESIDE, id="created-beside"),
        pytest.param([old("trainer", EXITED)], Stage.OLD_KILLED, id="killed"),
        pytest.param([], Stage.OLD_KILLED, id="killed-and-collected"),
        pytest.param([old("trainer", EXITED), new("trainer", CREATED)], Stage.CREATED, id="created"),
        pytest.param([old("trainer", EXITED), new("trainer", RUNNING)], Stage.STARTED, id="started"),
    ],
)
def test_stages_of_a_swap(views: list[ContainerSummary], expected: Stage) -> None:
    bystander = old("shipper", RUNNING)
    assert stage(fault(), entries=[entry()], views=[*views, bystander]) is expected


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param([("prepare", EXITED), ("shipper", RUNNING), ("trainer", RUNNING)], Stage.JOURNALLED, id="nothing"),
        pytest.param([("trainer", EXITED)], Stage.OLD_KILLED, id="half-cleared"),
        pytest.param([], Stage.OLD_KILLED, id="cleared"),
    ],
)
def test_stages_of_a_rerun_before_anything_new(views: list[tuple[str, ContainerState]], expected: Stage) -> None:
    seen = [old(name, state, of=RERUN) for name, state in views]
    assert stage(fault(RERUN), entries=[entry(RERUN)], views=seen) is expected


def test_a_rerun_has_started_when_all_of_it_has() -> None:
    some = [new("prepare", EXITED, of=RERUN), new("shipper", RUNNING, of=RERUN)]
    assert stage(fault(RERUN), entries=[entry(RERUN)], views=some) is Stage.CREATED
    assert (
        stage(fault(RERUN), entries=[entry(RERUN)], views=[*some, new("trainer", RUNNING, of=RERUN)]) is Stage.STARTED
    )


def test_without_an_intent_nothing_was_begun() -> None:
    others = [entry(Subject("another")), entry(at=AT - 1)]  # of another pod, of an earlier fault
    assert stage(fault(), entries=others, views=[old("trainer", RUNNING)]) is Stage.NOT_JOURNALLED


def test_a_closed_intent_is_the_end() -> None:
    assert stage(fault(), entries=[entry(outcome="Swapped")], views=[new("trainer", RUNNING)]) is Stage.CLOSED


def test_of_a_pair_the_fault_is_about_one_container() -> None:
    pair = replace(SWAPPED, mains=("trainer", "worker"))
    seen = [old("trainer", RUNNING), new("worker", RUNNING)]
    hit = Injected(pair, "trainer", old=ContainerId("trainer-old"), pid=1, at=AT)
    assert stage(hit, entries=[entry()], views=seen) is Stage.JOURNALLED
