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
from tests.unit.controller.hub.env import HubServiceEnv


async def test_agent_is_welcomed_and_its_messages_arrive_in_order(env: HubServiceEnv) -> None:
    agent, _ = await env.session("node-1", "uid-1")
    for message in (words.fault(), words.result(), words.samples("uid-1")):
        await agent.say(message)
    await env.engine.until(lambda: len(env.engine.heard) == 5)
    assert env.engine.heard == [
        ("connected", "node-1", 1),
        ("hello", "node-1", words.hello("uid-1").hello),
        ("message", "node-1", words.fault()),
        ("message", "node-1", words.result()),
        ("message", "node-1", words.samples("uid-1")),
    ]
    assert not env.counted()


async def test_sent_messages_arrive_in_order_with_epoch(env: HubServiceEnv) -> None:
    agent, session = await env.session()
    answer = pb.FaultAnswer(fault_id="fault-1", answer=pb.FaultAnswer.ROUND)
    assert session.send(pb.HubMessage(answer=answer))
    assert session.send(ports.encode(pb.HubMessage(release=pb.Release(round="train/llm-1"))))
    assert await agent.hear() == pb.HubMessage(epoch=7, answer=answer)
    assert await agent.hear() == pb.HubMessage(epoch=7, release=pb.Release(round="train/llm-1"))


async def test_raised_epoch_is_on_all_later_messages(env: HubServiceEnv) -> None:
    agent, session = await env.session()
    env.hub.lead(8)
    assert session.send(pb.HubMessage(sync=pb.Sync()))
    assert (await agent.hear()).epoch == 8


async def test_second_hello_is_passed_on(env: HubServiceEnv) -> None:
    agent, _ = await env.session()
    await agent.say(words.hello("uid-1"))
    await env.engine.until(lambda: len(env.engine.of("hello")) == 2)
    assert len(env.engine.of("connected")) == 1


async def test_agent_that_disconnects_is_gone(env: HubServiceEnv) -> None:
    agent, session = await env.session()
    agent.call.cancel()
    await env.engine.until(lambda: env.engine.of("gone") == [1])
    assert not session.send(pb.HubMessage(sync=pb.Sync()))
    assert not env.hub.sessions()


async def test_agent_that_closes_its_side_ends_well(env: HubServiceEnv) -> None:
    agent, _ = await env.session()
    await agent.call.done_writing()
    assert (await agent.ended())[0] is grpc.StatusCode.OK
    assert env.engine.of("gone") == [1]


async def test_newer_stream_of_node_replaces_older(env: HubServiceEnv) -> None:
    older, old_session = await env.session()
    newer, new_session = await env.session()
    assert await older.ended() == (grpc.StatusCode.ABORTED, "a newer stream of this node has connected")
    kinds = [(kind, what) for kind, _, what in env.engine.heard if kind != "hello"]
    assert kinds == [("connected", 1), ("gone", 1), ("connected", 2)]
    assert old_session.number < new_session.number
    assert not old_session.send(pb.HubMessage(sync=pb.Sync()))
    assert new_session.send(pb.HubMessage(sync=pb.Sync()))
    assert (await newer.hear()).HasField("sync")
    assert env.counted("kubemend_hub_sessions_ended_total") == {"Replaced": 1}


async def test_standby_refuses_with_one_clear_line() -> None:
    async with HubServiceEnv().running(epoch=None) as env:
        agent = await env.agent()
        await agent.say(words.hello())
        code, text = await agent.ended()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert text == "this replica does not lead. Connect to another one"
        assert env.counted() == {"Standby": 1}


async def test_former_leader_ends_sessions_and_may_lead_again(env: HubServiceEnv) -> None:
    agents = [(await env.session(node))[0] for node in ("node-1", "node-2")]
    env.hub.stand_by()
    assert sorted(env.engine.of("gone")) == [1, 2]
    assert [(await agent.ended())[0] for agent in agents] == [grpc.StatusCode.UNAVAILABLE] * 2
    env.hub.lead(9)
    agent, session = await env.session()
    assert session.send(pb.HubMessage(sync=pb.Sync()))
    assert (await agent.hear()).epoch == 9


async def test_messages_about_foreign_pods_are_counted_and_dropped(env: HubServiceEnv) -> None:
    agent, _ = await env.session("node-1", "uid-1", "uid-2")
    for message in (words.fault("uid-2"), words.result("uid-2"), words.samples("uid-2"), words.result("uid-1")):
        await agent.say(message)
    await env.engine.until(lambda: bool(env.engine.of("message")))
    assert [result.pod.uid for result in env.engine.of("hello")[0].results] == ["uid-1"]
    assert env.engine.of("message") == [words.result("uid-1")]
    assert env.counted() == {"ForeignPod": 4}


async def test_messages_about_new_pod_are_delivered_once_known(env: HubServiceEnv) -> None:
    agent, _ = await env.session("node-1", "new")
    await agent.say(words.fault("new"))
    await agent.say(words.result("uid-1"))
    await env.engine.until(lambda: bool(env.engine.of("message")))
    assert env.engine.of("message") == [words.result("uid-1")]
    env.pods[PodUid("new")] = NodeName("node-1")
    env.hub.pod_bound(PodUid("new"), NodeName("node-1"))
    assert env.engine.of("message")[1:] == [words.result("new"), words.fault("new")]
    env.hub.pod_bound(PodUid("new"), NodeName("node-1"))
    assert len(env.engine.of("message")) == 3


async def test_repeated_fault_is_passed_on_once_until_next_hello(env: HubServiceEnv) -> None:
    agent, _ = await env.session()
    for message in (words.fault(), words.fault(), words.hello(), words.fault()):
        await agent.say(message)
    await env.engine.until(lambda: len(env.engine.of("message")) == 2)
    assert env.engine.of("message") == [words.fault(), words.fault()]
    assert env.counted() == {"Replayed": 1}


async def test_newer_agents_messages_are_ignored(env: HubServiceEnv) -> None:
    agent, _ = await env.session()
    await agent.say(b"\xfa\x01\x00")
    await agent.say(words.result())
    await env.engine.until(lambda: bool(env.engine.of("message")))
    assert env.counted() == {"UnknownMessage": 1}


@pytest.mark.parametrize(
    ("data", "code", "reason"),
    [
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, "Malformed"),
        (b"\x0a" + b"\x00" * 5000, grpc.StatusCode.RESOURCE_EXHAUSTED, "Oversized"),
    ],
)
async def test_broken_rules_end_only_that_stream(data: bytes, code: grpc.StatusCode, reason: str) -> None:
    async with HubServiceEnv(rules=Rules(limits=Limits(message_bytes=4096))).running() as env:
        bad, _ = await env.session("node-1")
        good, _ = await env.session("node-2")
        await bad.say(data)
        assert (await bad.ended())[0] is code
        assert env.engine.of("gone") == [1]
        await good.say(words.result("uid-2"))
        await env.engine.until(lambda: env.engine.of("message") == [words.result("uid-2")])
        assert env.counted() == {reason: 1}


async def test_too_many_messages_end_stream() -> None:
    async with HubServiceEnv(rules=Rules(rate=Rate(per_second=0.001, burst=5))).running() as env:
        agent, _ = await env.session()
        for _ in range(5):
            await agent.say(words.result())
        assert (await agent.ended())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(env.engine.of("message")) == 4  # the fifth message has some bytes, too
        assert env.counted() == {"TooOften": 1}


async def test_internal_error_of_coordinator_costs_one_stream_and_is_counted(env: HubServiceEnv) -> None:
    agent, _ = await env.session()
    env.engine.broken = True
    await agent.say(words.result())
    assert (await agent.ended())[0] is grpc.StatusCode.INTERNAL
    assert env.counted() == {"Internal": 1}
    env.engine.broken = False
    await env.session()


async def test_internal_error_at_deferred_message_costs_only_its_stream(env: HubServiceEnv) -> None:
    agent, _ = await env.session("node-1", "new")
    await agent.say(words.result("uid-1"))
    await env.engine.until(lambda: bool(env.engine.of("message")))
    env.engine.broken = True
    env.pods[PodUid("new")] = NodeName("node-1")
    env.hub.pod_bound(PodUid("new"), NodeName("node-1"))
    assert (await agent.ended())[0] is grpc.StatusCode.INTERNAL
    assert env.counted() == {"Internal": 1}


async def test_silent_peer_times_out() -> None:
    async with HubServiceEnv(rules=Rules(hello_seconds=0.2)).running() as env:
        agent = await env.agent()
        code, text = await agent.ended()
        assert (code, text) == (grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello within 0.2 s")
        assert env.counted() == {"Silent": 1}


async def test_unauthenticated_streams_are_limited() -> None:
    async with HubServiceEnv(rules=Rules(unauthenticated=2)).running() as env:
        env.tokens.answering.clear()
        waiting = [await env.agent(f"node-{number}") for number in (1, 2)]
        for number, agent in enumerate(waiting, start=1):
            await agent.say(words.hello(node=f"node-{number}"))
        async with asyncio.timeout(60):
            for _ in waiting:
                await env.tokens.asked.get()
        third = await env.agent("node-3")
        assert (await third.ended())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        env.tokens.answering.set()
        for agent in waiting:
            assert (await agent.hear()).HasField("welcome")
        assert env.counted() == {"Crowded": 1}


async def test_one_nodes_token_cannot_use_up_unauthenticated_slots() -> None:
    async with HubServiceEnv(rules=Rules(unauthenticated=3, streams_of_node=2)).running() as env:
        silent = [await env.agent("node-1") for _ in range(3)]
        endings = [asyncio.create_task(each.ended()) for each in silent]
        ended, waiting = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result()[0] for each in ended] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        await env.session("node-2")
        assert env.counted() == {"Crowded": 1}
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


async def test_plain_text_gets_no_answer(env: HubServiceEnv) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{env.port}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/x/Y")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"", timeout=30)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not env.engine.heard
