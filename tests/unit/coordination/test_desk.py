"""A member that failed by itself is told of, whoever else is slow."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from agent.coordination.desk import Desk
from agent.coordination.faults import OpenFaults
from agent.coordination.members import Failure
from agent.coordination.metrics import HubMetrics
from agent.model.actions import ActionClass
from agent.model.rounds import FaultKind, Taken
from agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerView,
    PodView,
    SandboxId,
)
from agent.restart import admission
from tests.fakes.hub import SECONDS
from tests.unit.coordination import builders

PATIENCE = 0.05


@contextlib.asynccontextmanager
async def guard() -> AsyncIterator[asyncio.Event]:
    yield asyncio.Event()


def failure() -> Failure:
    ended = ContainerView(
        id=ContainerId("c"),
        ref=builders.trainer(0),
        sandbox_id=SandboxId("s"),
        attempt=0,
        state=ContainerState.EXITED,
        created_at=1,
    )
    return Failure(pod=builders.member(0), container=ended, exit_code=1, reason="", at=0.0)


def desk_of(pod: PodView, *, faults: OpenFaults) -> Desk:
    async def worst(_: ContainerRef) -> ActionClass:
        return ActionClass.NONE

    return Desk(
        pods=lambda: {pod.ref.uid: pod},
        faults=faults,
        worst=worst,
        metrics=HubMetrics(CollectorRegistry()),
        opted_in_namespaces=frozenset(),
        patience=SECONDS,
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
async def test_a_fault_of_a_container_that_no_restart_is_for_is_not_told_to_the_gang(
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
    desk, target = desk_of(pod, faults=faults), ContainerRef(pod.ref, name)
    assert await desk.take(target, builders.cause(), kind=kind) is Taken.ALONE
    assert await desk.device_lost(target, builders.cause()) is Taken.ALONE
    assert faults.next() is None
    alone = admission.Facts(target=target, cause=builders.cause(), pod=pod, runtime=None, owner=None)
    assert admission.decide(alone, now=20.0).verb is admission.Verb.REFUSE


async def test_a_fault_of_a_target_is_told_to_the_gang() -> None:
    faults, pod = OpenFaults(), builders.member(0)
    desk = desk_of(pod, faults=faults)
    taking = asyncio.create_task(desk.take(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE))
    told = asyncio.Event()
    faults.on_new(told.set)
    async with asyncio.timeout(SECONDS):
        await told.wait()
        said = faults.next()
        assert said is not None
        faults.answered(said.fault.id, Taken.ROUND)
        assert await taking is Taken.ROUND


async def test_an_end_is_told_of_also_when_its_devices_are_known_later_than_an_answer_is_waited_for() -> None:
    async def slow(_: ContainerRef) -> ActionClass:
        await asyncio.sleep(4 * PATIENCE)  # kubelet's answer, which cannot be awaited otherwise
        return ActionClass.NONE

    faults, pod = OpenFaults(), builders.member(0)
    desk = Desk(
        pods=lambda: {pod.ref.uid: pod},
        faults=faults,
        worst=slow,
        metrics=HubMetrics(CollectorRegistry()),
        opted_in_namespaces=frozenset(),
        patience=PATIENCE,
    )
    async with asyncio.timeout(SECONDS):
        await desk.tell(failure(), guarded=guard())
    said = faults.next()
    assert said is not None
    assert said.fault.code == "Exit1"
