"""An agent that does not read is dropped, and nobody else notices."""

import grpc

from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.hub.ports import Session
from controller.hub.server import HubOptions
from controller.hub.service import Rules
from tests.unit.controller.hub import words
from tests.unit.controller.hub.rig import Agent, Rig

_LONG = pb.HubMessage(abort=pb.Abort(round="train/llm-1", reason="x" * 64_000))
_MANY = 128  # of these are twice the 4 MiB that a client's gRPC takes before anybody reads
_HASTY = HubOptions(address="127.0.0.1:0", write_seconds=0.2)


def _flood(session: Session) -> int:
    """Send until nothing is taken any more; return how many messages were."""
    return next((number for number in range(_MANY) if not session.send(_LONG)), _MANY)


async def _stuck(rig: Rig, *, instance: str) -> tuple[Agent, Session]:
    """Return an agent that has said Hello and reads nothing, and its session, which was sent too much."""
    agent = await rig.agent()
    await agent.say(words.hello(instance=instance))
    await rig.engine.until(lambda: instance in rig.engine.of("connected"))
    session = next(iter(rig.engine.sessions.values()))
    return agent, session


async def test_a_message_that_is_not_taken_in_time_costs_the_session() -> None:
    async with Rig(options=_HASTY).running() as rig:
        agent, session = await _stuck(rig, instance="i-1")
        assert _flood(session) == _MANY
        await rig.engine.until(lambda: rig.engine.of("gone") == ["i-1"])
        assert not session.send(_LONG)
        assert rig.counted("kubemend_hub_sessions_ended_total") == {"Slow": 1}
        code, text = await agent.ended()  # once it reads
        assert (code, text) == (grpc.StatusCode.UNAVAILABLE, "too slow a reader: connect again, say Hello")


async def test_only_so_many_messages_wait_for_one_agent() -> None:
    async with Rig(rules=Rules(waiting=8)).running() as rig:
        _, session = await _stuck(rig, instance="i-1")
        assert _flood(session) == 8
        assert rig.engine.of("gone") == []  # told by the stream's own task, not within send
        await rig.engine.until(lambda: rig.engine.of("gone") == ["i-1"])
        assert rig.counted("kubemend_hub_sessions_ended_total") == {"Slow": 1}


async def test_others_hear_while_one_does_not_read(rig: Rig) -> None:
    _, stuck = await _stuck(rig, instance="i-1")
    good, session = await rig.session("node-2")
    for _ in range(_MANY):
        assert stuck.send(_LONG)
        assert session.send(pb.HubMessage(sync=pb.Sync()))
        assert (await good.hear()).HasField("sync")


async def test_one_node_has_only_so_many_streams_that_it_does_not_read() -> None:
    async with Rig(rules=Rules(streams_of_node=2), options=_HASTY).running() as rig:
        for instance in ("i-1", "i-2"):
            _, session = await _stuck(rig, instance=instance)
            assert _flood(session) == _MANY
            await rig.engine.until(lambda gone=instance: gone in rig.engine.of("gone"))  # type: ignore[misc]
        third = await rig.agent()
        await third.say(words.hello(instance="i-3"))
        assert (await third.ended())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert rig.counted() == {"Crowded": 1}
        await rig.session("node-2")
