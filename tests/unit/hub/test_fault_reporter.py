"""Report a member's own failure, even if other components are slow."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent.hub.fault_reporter import FaultReporter
from kubemend.agent.hub.members import Failure
from kubemend.agent.hub.metrics import HubMetrics
from kubemend.agent.hub.open_faults import FaultReport, OpenFaults
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodView,
    SandboxId,
)
from kubemend.agent.restart import admission
from kubemend.common.coordination import FaultAnswer, FaultKind
from tests import virtual_time
from tests.fakes.hub import SECONDS
from tests.unit.hub import builders

TIMEOUT = 0.05
BRIEF = 0.5


@contextlib.asynccontextmanager
async def guard() -> AsyncIterator[asyncio.Event]:
    yield asyncio.Event()


async def no_doubt(_: Failure) -> str:
    return ""


def failure() -> Failure:
    ended = ContainerSummary(
        id=ContainerId("c"),
        ref=builders.trainer(0),
        sandbox_id=SandboxId("s"),
        attempt=0,
        state=ContainerState.EXITED,
        created_at=1,
    )
    return Failure(pod=builders.member(0), container=ended, exit_code=1, reason="", at=0.0)


def desk_of(pod: PodView, *, faults: OpenFaults, answer_timeout: float = SECONDS) -> FaultReporter:
    async def worst(_: ContainerRef) -> ActionClass:
        return ActionClass.NONE

    return FaultReporter(
        pods=lambda: {pod.ref.uid: pod},
        faults=faults,
        worst=worst,
        metrics=HubMetrics(CollectorRegistry()),
        opted_in_namespaces=frozenset(),
        answer_timeout=answer_timeout,
    )


BESIDE = [
    pytest.param("exporter", {}, id="a-sidecar"),
    pytest.param("warm-up", {}, id="an-init-container"),
    pytest.param("debugger-x7k2p", {}, id="an-ephemeral-container"),
    pytest.param("shipper", {}, id="a-main-one-that-holds-no-device"),
    pytest.param("evaluator", {"kubemend.io/containers": "trainer"}, id="one-that-the-annotation-leaves-out"),
]


@pytest.mark.parametrize(("name", "annotations"), BESIDE)
@pytest.mark.parametrize("kind", FaultKind)
async def test_fault_of_container_outside_targets_is_not_reported(
    name: str, annotations: dict[str, str], kind: FaultKind
) -> None:
    pod = builders.member(
        containers=(
            ContainerSpec("warm-up", ContainerRole.INIT, holds_devices=True),
            ContainerSpec("exporter", ContainerRole.SIDECAR, holds_devices=True),
            ContainerSpec("trainer", ContainerRole.MAIN, running=True, holds_devices=True),
            ContainerSpec("evaluator", ContainerRole.MAIN, running=True, holds_devices=True),
            ContainerSpec("shipper", ContainerRole.MAIN, running=True),
        ),
        annotations={"kubemend.io/restart": "InPlace"} | annotations,
    )
    faults = OpenFaults()
    reporter, target = desk_of(pod, faults=faults), ContainerRef(pod.ref, name)
    assert await reporter.report_fault(target, builders.cause(), kind=kind) is FaultAnswer.ALONE
    assert await reporter.device_lost(target, builders.cause()) is FaultAnswer.ALONE
    assert faults.next() is None
    alone = admission.Facts(target=target, cause=builders.cause(), pod=pod, runtime=None, owner=None)
    assert admission.decide(alone, now=20.0).verb is admission.Verb.REFUSE


async def test_fault_of_target_is_reported_to_gang() -> None:
    faults, pod = OpenFaults(), builders.member(0)
    reporter = desk_of(pod, faults=faults)
    taking = asyncio.create_task(reporter.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE))
    async with asyncio.timeout(SECONDS):
        await faults.added.wait()
        said = faults.next()
        assert said is not None
        faults.answered(said.fault.id, FaultAnswer.ROUND)
        assert await taking is FaultAnswer.ROUND


async def answered_late(faults: OpenFaults, taken: FaultAnswer) -> None:
    """Block the event loop for longer than ``BRIEF``; after that it finds the expired timer and the hub's answer.

    The answer is handled in a few turns of the loop, as one that arrives by gRPC.
    """
    said = faults.next()
    assert said is not None
    time.sleep(1.2 * BRIEF)  # noqa: ASYNC251 - blocks the loop
    for _ in range(5):
        await asyncio.sleep(0)
    faults.answered(said.fault.id, taken)


@pytest.mark.parametrize("by_itself", [True, False])
async def test_answer_that_a_blocked_loop_finds_late_counts(*, by_itself: bool) -> None:
    faults, pod = OpenFaults(), builders.member(0)
    reporter = desk_of(pod, faults=faults, answer_timeout=BRIEF)
    if by_itself:
        work = reporter.report_exit(failure(), guarded=guard(), doubt=no_doubt)
    else:
        work = reporter.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE)
    async with asyncio.timeout(SECONDS):
        waiting = asyncio.create_task(work)
        await faults.added.wait()
        await answered_late(faults, FaultAnswer.ROUND)
        assert await waiting is FaultAnswer.ROUND


def test_exit_is_reported_even_if_devices_are_known_late() -> None:
    async def slow(_: ContainerRef) -> ActionClass:
        await virtual_time.passes(4 * TIMEOUT)
        return ActionClass.NONE

    faults, pod = OpenFaults(), builders.member(0)
    reporter = FaultReporter(
        pods=lambda: {pod.ref.uid: pod},
        faults=faults,
        worst=slow,
        metrics=HubMetrics(CollectorRegistry()),
        opted_in_namespaces=frozenset(),
        answer_timeout=TIMEOUT,
    )

    async def reported() -> FaultReport | None:
        await reporter.report_exit(failure(), guarded=guard(), doubt=no_doubt)
        return faults.next()

    said = virtual_time.run(reported())
    assert said is not None
    assert said.fault.code == "Exit1"


async def test_exit_of_ending_pod_is_not_reported() -> None:
    async def doubt(_: Failure) -> str:
        return "its sandbox has been stopped"

    faults = OpenFaults()
    reporter = desk_of(builders.member(0), faults=faults)
    assert await reporter.report_exit(failure(), guarded=guard(), doubt=doubt) is FaultAnswer.NOTHING
    assert faults.next() is None


async def test_exit_without_hub_restarts_alone_and_is_reported_later() -> None:
    faults = OpenFaults()
    reporter = desk_of(builders.member(0), faults=faults)
    assert await reporter.report_exit(failure(), guarded=None, doubt=no_doubt) is FaultAnswer.ALONE
    said = faults.next()
    assert said is not None
    assert said.alone


@pytest.mark.parametrize("answer", [FaultAnswer.ALONE, FaultAnswer.NOTHING])
async def test_answer_of_hub_decides_about_member(answer: FaultAnswer) -> None:
    faults = OpenFaults()
    reporter = desk_of(builders.member(0), faults=faults)
    telling = asyncio.create_task(reporter.report_exit(failure(), guarded=guard(), doubt=no_doubt))
    async with asyncio.timeout(SECONDS):
        await faults.added.wait()
        faults.answered("exit:c", answer)
        assert await telling is answer


async def test_failed_program_waits_for_the_answer() -> None:
    faults = OpenFaults()
    reporter = desk_of(builders.member(0), faults=faults)
    asking = asyncio.create_task(reporter.program_failed(program(), is_welcomed=True))
    await asyncio.sleep(0)
    said = faults.next()
    assert said is not None
    assert (said.fault.id, said.fault.kind, said.fault.exit_code) == ("program:c/2", FaultKind.EXIT, 1)
    assert said.fault.message == "the program in container trainer ended with exit code 1"
    faults.answered(said.fault.id, FaultAnswer.ROUND)
    assert await asking is FaultAnswer.ROUND


async def test_failed_program_is_left_to_its_launcher_where_no_answer_can_arrive() -> None:
    faults = OpenFaults()
    reporter = desk_of(builders.member(0), faults=faults)
    assert await reporter.program_failed(program(), is_welcomed=False) is FaultAnswer.ALONE
    said = faults.next()
    assert said is not None
    assert said.alone


async def test_failed_program_outside_gangs_is_not_reported() -> None:
    faults = OpenFaults()
    reporter = desk_of(replace(builders.member(0), labels={}), faults=faults)
    assert await reporter.program_failed(program(), is_welcomed=True) is FaultAnswer.ALONE
    assert faults.next() is None


def program() -> Failure:
    return replace(failure(), program=2)
