"""An agent that does not read is dropped, and other agents are not affected."""

import grpc

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub.ports import Session
from kubemend.controller.hub.server import HubOptions
from kubemend.controller.hub.service import Rules
from tests.unit.controller.hub import words
from tests.unit.controller.hub.env import Agent, HubServiceEnv

_LONG = pb.HubMessage(abort=pb.Abort(round="train/llm-1", reason="x" * 64_000))
_MANY = 128  # these are twice the 4 MiB that a client's gRPC buffers before any read
_HASTY = HubOptions(address="127.0.0.1:0", write_seconds=0.2)


def _flood(session: Session) -> int:
    """Send until messages are refused; return how many were sent."""
    return next((number for number in range(_MANY) if not session.send(_LONG)), _MANY)


async def _stuck(env: HubServiceEnv, *, number: int = 1) -> tuple[Agent, Session]:
    """Return an agent that has sent Hello and reads nothing, and its session, which was sent too much."""
    agent = await env.agent()
    await agent.say(words.hello())
    await env.engine.until(lambda: number in env.engine.of("connected"))
    session = next(iter(env.engine.sessions.values()))
    return agent, session


async def test_message_not_read_in_time_ends_session() -> None:
    async with HubServiceEnv(options=_HASTY).running() as env:
        agent, session = await _stuck(env)
        assert _flood(session) == _MANY
        await env.engine.until(lambda: env.engine.of("gone") == [1])
        assert not session.send(_LONG)
        assert env.counted("kubemend_hub_sessions_ended_total") == {"Slow": 1}
        code, text = await agent.ended()  # once it reads
        assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "the agent reads too slowly. Connect again and send Hello")


async def test_queue_of_one_agent_is_limited() -> None:
    async with HubServiceEnv(rules=Rules(waiting=8)).running() as env:
        _, session = await _stuck(env)
        assert _flood(session) == 8
        assert env.engine.of("gone") == []  # called by the stream's own task, not within send
        await env.engine.until(lambda: env.engine.of("gone") == [1])
        assert env.counted("kubemend_hub_sessions_ended_total") == {"Slow": 1}


async def test_other_agents_receive_while_one_does_not_read(env: HubServiceEnv) -> None:
    _, stuck = await _stuck(env)
    good, session = await env.session("node-2")
    for _ in range(_MANY):
        assert stuck.send(_LONG)
        assert session.send(pb.HubMessage(sync=pb.Sync()))
        assert (await good.hear()).HasField("sync")


async def test_unread_streams_of_one_node_are_limited() -> None:
    async with HubServiceEnv(rules=Rules(streams_of_node=2), options=_HASTY).running() as env:
        for number in (1, 2):
            _, session = await _stuck(env, number=number)
            assert _flood(session) == _MANY
            await env.engine.until(lambda gone=number: gone in env.engine.of("gone"))  # type: ignore[misc]
        third = await env.agent()
        await third.say(words.hello())
        assert (await third.ended())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert env.counted() == {"Crowded": 1}
        await env.session("node-2")
