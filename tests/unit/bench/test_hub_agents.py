"""The simulated agents of ``bench.hub`` on the real hub: several on one connection, each with its own stream."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from bench.hub import http2
from bench.hub.agents import Agent, Place, Times
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.model.members import NodeName
from tests import eventually
from tests.unit.controller.hub.env import HubServiceEnv

_GANG = "train/Gang/llm"


def _place(number: int) -> Place:
    return Place(
        node=f"node-{number}",
        token=f"token-of-node-{number}",
        gang=_GANG,
        namespace="train",
        pod=f"worker-{number}",
        uid=f"uid-{number}",
    )


@pytest.fixture
async def env() -> AsyncIterator[HubServiceEnv]:
    async with HubServiceEnv().running() as running:
        yield running


@pytest.fixture
async def connection(env: HubServiceEnv) -> AsyncIterator[http2.Connection]:
    made = http2.Connection(("127.0.0.1", env.port), tls=http2.tls(env.bundle))
    loop = asyncio.get_running_loop()
    loop.add_reader(made.fileno(), made.read)
    yield made
    loop.remove_reader(made.fileno())
    made.close()


async def test_agents_that_share_a_connection_answer_their_own_orders(
    env: HubServiceEnv, connection: http2.Connection
) -> None:
    times = Times()
    agents = [Agent(_place(number), connection, times=times) for number in (1, 2)]
    await eventually.true(lambda: all(agent.welcome for agent in agents))
    for agent in agents:
        stop = pb.HubMessage(stop=pb.Stop(round=f"train/of-{agent.place.node}"))
        env.engine.sessions[NodeName(agent.place.node)].send(stop)
    await env.engine.until(lambda: len(env.engine.of("message")) == 2)
    answers = {
        (node, what.result.round, what.result.pod.uid) for kind, node, what in env.engine.heard if kind == "message"
    }
    assert answers == {("node-1", "train/of-node-1", "uid-1"), ("node-2", "train/of-node-2", "uid-2")}
    assert len(times.stops) == 2
    assert all(pb.HubMessage.FromString(agent.orders["stop"]).stop.round.endswith(agent.place.node) for agent in agents)


async def test_faults_of_agents_that_share_a_connection_are_of_their_own_pods(
    env: HubServiceEnv, connection: http2.Connection
) -> None:
    first, second = (Agent(_place(number), connection, times=Times()) for number in (1, 2))
    await eventually.true(lambda: first.welcome and second.welcome)
    second.fail()
    first.fail()
    await env.engine.until(lambda: len(env.engine.of("message")) == 2)
    assert {what.fault.pod.uid for what in env.engine.of("message")} == {"uid-1", "uid-2"}
