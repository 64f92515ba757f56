"""Streams over TLS: their begin, their messages and their end."""

import asyncio

import grpc
import grpc.aio
import pytest

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import ports
from kubemend.controller.hub.limits import Rate
from kubemend.controller.hub.messages import Limits
from kubemend.controller.hub.service import Rules
from kubemend.controller.model.members import NodeName, PodUid
from tests.unit.controller.hub import words
from tests.unit.controller.hub.rig import Rig


async def test_agent_is_welcomed_and_its_messages_arrive_in_order(rig: Rig) -> None:
    agent, _ = await rig.session("node-1", "uid-1")
    for message in (words.fault(), words.result(), words.samples("uid-1")):
        await agent.say(message)
    await rig.engine.until(lambda: len(rig.engine.heard) == 5)
    assert rig.engine.heard == [
        ("connected", "node-1", 1),
        ("hello", "node-1", words.hello("uid-1").hello),
        ("message", "node-1", words.fault()),
        ("message", "node-1", words.result()),
        ("message", "node-1", words.samples("uid-1")),
    ]
    assert not rig.counted()


async def test_sent_messages_arrive_in_order_with_epoch(rig: Rig) -> None:
    agent, session = await rig.session()
    answer = pb.FaultAnswer(fault_id="fault-1", answer=pb.FaultAnswer.ROUND)
    assert session.send(pb.HubMessage(answer=answer))
    assert session.send(ports.encode(pb.HubMessage(release=pb.Release(round="train/llm-1"))))
    assert await agent.hear() == pb.HubMessage(epoch=7, answer=answer)
    assert await agent.hear() == pb.HubMessage(epoch=7, release=pb.Release(round="train/llm-1"))


async def test_raised_epoch_is_on_all_later_messages(rig: Rig) -> None:
    agent, session = await rig.session()
    rig.hub.lead(8)
    assert session.send(pb.HubMessage(sync=pb.Sync()))
    assert (await agent.hear()).epoch == 8


async def test_second_hello_is_passed_on(rig: Rig) -> None:
    agent, _ = await rig.session()
    await agent.say(words.hello("uid-1"))
    await rig.engine.until(lambda: len(rig.engine.of("hello")) == 2)
    assert len(rig.engine.of("connected")) == 1


async def test_agent_that_disconnects_is_gone(rig: Rig) -> None:
    agent, session = await rig.session()
    agent.call.cancel()
    await rig.engine.until(lambda: rig.engine.of("gone") == [1])
    assert not session.send(pb.HubMessage(sync=pb.Sync()))
    assert not rig.hub.sessions()


async def test_agent_that_closes_its_side_ends_well(rig: Rig) -> None:
    agent, _ = await rig.session()
    await agent.call.done_writing()
    assert (await agent.ended())[0] is grpc.StatusCode.OK
    assert rig.engine.of("gone") == [1]


async def test_newer_stream_of_node_replaces_older(rig: Rig) -> None:
    older, old_session = await rig.session()
    newer, new_session = await rig.session()
    assert await older.ended() == (grpc.StatusCode.ABORTED, "a newer stream of this node has connected")
    kinds = [(kind, what) for kind, _, what in rig.engine.heard if kind != "hello"]
    assert kinds == [("connected", 1), ("gone", 1), ("connected", 2)]
    assert old_session.number < new_session.number
    assert not old_session.send(pb.HubMessage(sync=pb.Sync()))
    assert new_session.send(pb.HubMessage(sync=pb.Sync()))
    assert (await newer.hear()).HasField("sync")
    assert rig.counted("kubemend_hub_sessions_ended_total") == {"Replaced": 1}


async def test_standby_refuses_with_one_clear_line() -> None:
    async with Rig().running(epoch=None) as rig:
        agent = await rig.agent()
        await agent.say(words.hello())
        code, text = await agent.ended()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert text == "this replica does not lead. Connect to another one"
        assert rig.counted() == {"Standby": 1}


async def test_former_leader_ends_sessions_and_may_lead_again(rig: Rig) -> None:
    agents = [(await rig.session(node))[0] for node in ("node-1", "node-2")]
    rig.hub.stand_by()
    assert sorted(rig.engine.of("gone")) == [1, 2]
    assert [(await agent.ended())[0] for agent in agents] == [grpc.StatusCode.UNAVAILABLE] * 2
    rig.hub.lead(9)
    agent, session = await rig.session()
    assert session.send(pb.HubMessage(sync=pb.Sync()))
    assert (await agent.hear()).epoch == 9


async def test_messages_about_foreign_pods_are_counted_and_dropped(rig: Rig) -> None:
    agent, _ = await rig.session("node-1", "uid-1", "uid-2")
    for message in (words.fault("uid-2"), words.result("uid-2"), words.samples("uid-2"), words.result("uid-1")):
        await agent.say(message)
    await rig.engine.until(lambda: bool(rig.engine.of("message")))
    assert [result.pod.uid for result in rig.engine.of("hello")[0].results] == ["uid-1"]
    assert rig.engine.of("message") == [words.result("uid-1")]
    assert rig.counted() == {"ForeignPod": 4}


async def test_messages_about_new_pod_are_delivered_once_known(rig: Rig) -> None:
    agent, _ = await rig.session("node-1", "new")
    await agent.say(words.fault("new"))
    await agent.say(words.result("uid-1"))
    await rig.engine.until(lambda: bool(rig.engine.of("message")))
    assert rig.engine.of("message") == [words.result("uid-1")]
    rig.pods[PodUid("new")] = NodeName("node-1")
    rig.hub.pod_bound(PodUid("new"), NodeName("node-1"))
    assert rig.engine.of("message")[1:] == [words.result("new"), words.fault("new")]
    rig.hub.pod_bound(PodUid("new"), NodeName("node-1"))
    assert len(rig.engine.of("message")) == 3


async def test_repeated_fault_is_passed_on_once_until_next_hello(rig: Rig) -> None:
    agent, _ = await rig.session()
    for message in (words.fault(), words.fault(), words.hello(), words.fault()):
        await agent.say(message)
    await rig.engine.until(lambda: len(rig.engine.of("message")) == 2)
    assert rig.engine.of("message") == [words.fault(), words.fault()]
    assert rig.counted() == {"Replayed": 1}


async def test_newer_agents_messages_are_ignored(rig: Rig) -> None:
    agent, _ = await rig.session()
    await agent.say(b"\xfa\x01\x00")
    await agent.say(words.result())
    await rig.engine.until(lambda: bool(rig.engine.of("message")))
    assert rig.counted() == {"UnknownMessage": 1}


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "Malformed"),
        (b"\x0a" + b"\x00" * 5000, grpc.StatusCode.RESOURCE_EXHAUSTED, "Oversized"),
    ],
)
async def test_broken_rules_end_only_that_stream(data: bytes, code: grpc.StatusCode, reason: str) -> None:
    async with Rig(rules=Rules(limits=Limits(message_bytes=4096))).running() as rig:
        bad, _ = await rig.session("node-1")
        good, _ = await rig.session("node-2")
        await bad.say(data)
        assert (await bad.ended())[0] is code
        assert rig.engine.of("gone") == [1]
        await good.say(words.result("uid-2"))
        await rig.engine.until(lambda: rig.engine.of("message") == [words.result("uid-2")])
        assert rig.counted() == {reason: 1}


async def test_too_many_messages_end_stream() -> None:
    async with Rig(rules=Rules(rate=Rate(per_second=0.001, burst=5))).running() as rig:
        agent, _ = await rig.session()
        for _ in range(5):
            await agent.say(words.result())
        assert (await agent.ended())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(rig.engine.of("message")) == 4  # the fifth message has some bytes, too
        assert rig.counted() == {"TooOften": 1}


async def test_internal_error_of_coordinator_costs_one_stream_and_is_counted(rig: Rig) -> None:
    agent, _ = await rig.session()
    rig.engine.broken = True
    await agent.say(words.result())
    assert (await agent.ended())[0] is grpc.StatusCode.INTERNAL
    assert rig.counted() == {"Internal": 1}
    rig.engine.broken = False
    await rig.session()


async def test_internal_error_at_deferred_message_costs_only_its_stream(rig: Rig) -> None:
    agent, _ = await rig.session("node-1", "new")
    await agent.say(words.result("uid-1"))
    await rig.engine.until(lambda: bool(rig.engine.of("message")))
    rig.engine.broken = True
    rig.pods[PodUid("new")] = NodeName("node-1")
    rig.hub.pod_bound(PodUid("new"), NodeName("node-1"))
    assert (await agent.ended())[0] is grpc.StatusCode.INTERNAL
    assert rig.counted() == {"Internal": 1}


async def test_silent_peer_times_out() -> None:
    async with Rig(rules=Rules(hello_seconds=0.2)).running() as rig:
        agent = await rig.agent()
        code, text = await agent.ended()
        assert (code, text) == (grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello within 0.2 s")
        assert rig.counted() == {"Silent": 1}


async def test_unauthenticated_streams_are_limited() -> None:
    async with Rig(rules=Rules(unauthenticated=2)).running() as rig:
        rig.tokens.answering.clear()
        waiting = [await rig.agent(f"node-{number}") for number in (1, 2)]
        for number, agent in enumerate(waiting, start=1):
            await agent.say(words.hello(node=f"node-{number}"))
        async with asyncio.timeout(60):
            for _ in waiting:
                await rig.tokens.asked.get()
        third = await rig.agent("node-3")
        assert (await third.ended())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        rig.tokens.answering.set()
        for agent in waiting:
            assert (await agent.hear()).HasField("welcome")
        assert rig.counted() == {"Crowded": 1}


async def test_one_nodes_token_cannot_use_up_unauthenticated_slots() -> None:
    async with Rig(rules=Rules(unauthenticated=3, streams_of_node=2)).running() as rig:
        silent = [await rig.agent("node-1") for _ in range(3)]
        endings = [asyncio.create_task(each.ended()) for each in silent]
        ended, waiting = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result()[0] for each in ended] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        await rig.session("node-2")
        assert rig.counted() == {"Crowded": 1}
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


async def test_plain_text_gets_no_answer(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{rig.port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/x/Y")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"", timeout=30)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not rig.engine.heard
