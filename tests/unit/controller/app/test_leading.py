"""A term of leadership, from its begin to its end, without a server."""

import asyncio
import contextlib
from collections.abc import Mapping

from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.app.leading import Leading, Relay
from controller.hub.ports import Session
from controller.leader.election import Term
from controller.model.members import NodeName
from tests import eventually
from tests.unit.controller import builders
from tests.unit.controller.app.stage import Agent, Stage


class Hub:
    """Whether agents are heard, and what was left of the term when they were not any more."""

    def __init__(self, stage: Stage) -> None:
        self.epochs: list[int] = []
        self.subscribed_at_end: int | None = None
        self._members = stage.members

    def lead(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def stand_by(self) -> None:
        self.subscribed_at_end = len(self._members.listeners)

    def sessions(self) -> Mapping[NodeName, Session]:
        return {}


async def test_agents_are_heard_no_more_before_anything_else_of_the_term_ends() -> None:
    stage = Stage(builders.gang(2))
    hub, relay = Hub(stage), Relay()
    leading = Leading(outside=stage.outside, hub=hub, relay=relay)  # type: ignore[arg-type]
    task = asyncio.create_task(leading(Term(epoch=4, renewed_at=0.0)))
    await eventually.true(lambda: hub.epochs == [4])
    assert stage.outside.metrics.leads._value.get() == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert hub.subscribed_at_end == 1  # the conductor was still there
    assert stage.members.listeners == []
    assert stage.outside.metrics.leads._value.get() == 0
    relay.told(Agent(NodeName("n")), pb.AgentMessage())  # falls on deaf ears
