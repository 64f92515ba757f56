"""A member that failed by itself is told of, whoever else is slow."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry

from agent.coordination.desk import Desk
from agent.coordination.faults import OpenFaults
from agent.coordination.members import Failure
from agent.coordination.metrics import HubMetrics
from agent.model.actions import ActionClass
from agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerView, SandboxId
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
