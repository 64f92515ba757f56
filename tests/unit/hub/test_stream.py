"""Run the stream to the hub: Hello first, news afterwards, and everything again after each break."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from kubemend.agent.hub import connection, outbox
from kubemend.common.components import ComponentState
from kubemend.common.coordination import FaultAnswer, FaultKind, StepPhase
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from tests.fakes.hub import SECONDS
from tests.unit.hub import builders
from tests.unit.hub.env import HubEnv


async def test_hello_contains_epoch_and_results(env: HubEnv) -> None:
    env.rounds.stand = (builders.step_result(0),)
    await env.store.obey(7)

    async with env.replica(epoch=7) as hub, env.running(env.agent(hub)):
        stream, hello = await hub.welcomed()
        await env.reports.until(ComponentState.READY, saying="leader replica-0")

    assert stream.authorization == "Bearer token-1"
    assert (hello.protocol, hello.node, hello.epoch) == (1, "node-1", 7)
    (result,) = hello.results
    assert (result.pod, result.round, result.phase) == (builders.pod_of(0), "team/r1", pb.StepResult.STOPPED)
    assert result.seconds["stop"] == pytest.approx(0.02)


async def test_broken_stream_is_reopened_with_new_hello(env: HubEnv) -> None:
    async with env.replica() as hub, env.running(env.agent(hub)):
        first, _ = await hub.welcomed()
        env.rounds.stand = (builders.step_result(0),)
        first.end()
        _, hello = await hub.welcomed()
        assert len(hello.results) == 1
        await hub.stop()
        env.rounds.stand = (builders.step_result(0), builders.step_result(1))
        await hub.start()
        _, hello = await hub.welcomed()
        assert len(hello.results) == 2


async def test_standby_replica_is_skipped_for_leader(env: HubEnv) -> None:
    async with env.replica() as standby, env.replica() as leader:
        standby.stands_by = True
        async with env.running(env.agent(standby, leader)):
            stream, _ = await leader.welcomed()
            assert standby.refused == 1
            standby.stands_by, leader.stands_by = False, True
            stream.end()
            await standby.welcomed()


async def test_without_leader_client_reports_it_and_agent_works_alone(env: HubEnv) -> None:
    async with env.replica() as one, env.replica() as two:
        one.stands_by = two.stands_by = True
        async with env.running(env.agent(one, two)):
            status = await env.reports.until(ComponentState.DEGRADED, saying="no replica of the hub leads yet")
            assert "works alone" in status.message
            assert "controller" in status.hint
            one.stands_by = False
            await one.welcomed()
            await env.reports.until(ComponentState.READY)


async def test_hub_without_welcome_is_left(env: HubEnv) -> None:
    async with env.replica() as hub, env.running(env.agent(hub, welcome=3.0)):
        mute = await hub.stream()
        await mute.next("hello")
        await env.reports.until(ComponentState.DEGRADED, saying="did not answer")
        async with asyncio.timeout(SECONDS):
            await mute.over.wait()


async def test_stream_that_never_lasts_is_reported_despite_welcome(env: HubEnv) -> None:
    async with env.replica() as hub, env.running(env.agent(hub, settled=SECONDS)):
        for _ in range(2):
            stream, _ = await hub.welcomed()
            await env.reports.until(ComponentState.READY)
            stream.end(grpc.StatusCode.INVALID_ARGUMENT, "an invalid message")
            await env.reports.until(ComponentState.DEGRADED, saying="does not understand the agent")


async def test_stream_that_lasted_may_break_without_report(env: HubEnv) -> None:
    async with env.replica() as hub, env.running(env.agent(hub, settled=0.0)):
        for _ in range(3):
            stream, _ = await hub.welcomed()
            await env.reports.until(ComponentState.READY)
            stream.end()
        await hub.welcomed()
    assert {report.state for report in env.reports.all} == {ComponentState.READY}


async def test_sync_is_answered_with_hello(env: HubEnv) -> None:
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, first = await hub.welcomed()
        env.rounds.stand = (builders.step_result(0),)
        await stream.say(sync=pb.Sync())
        again = await stream.next("hello")
        assert again.node == first.node
        assert len(again.results) == 1


async def test_slow_hub_gets_newest_state_of_member_once(env: HubEnv) -> None:
    members, times = 40, 200
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        stream.stop_reading()
        for time in range(times):
            for number in range(members):
                env.rounds.report(replace(builders.step_result(number), detail=f"{time}" + "x" * 1000))
            await asyncio.sleep(0)  # let the agent write as much as it can
        stream.read_on()
        newest = {builders.ref(number).uid for number in range(members)}
        heard = 0
        while newest:
            result = await stream.next("result")
            heard += 1
            if result.detail.startswith(f"{times - 1}x"):
                newest.remove(result.pod.uid)
        assert heard < members * times


async def test_too_many_results_become_one_hello(env: HubEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST", 3)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.rounds.stand = tuple(builders.step_result(number) for number in range(8))
        for step_result in env.rounds.stand:
            env.rounds.report(step_result)
        hello = await stream.next("hello")
        assert len(hello.results) == 8


async def test_token_is_read_for_each_stream(env: HubEnv) -> None:
    async with env.replica() as hub, env.running(env.agent(hub)):
        first, _ = await hub.welcomed()
        env.token.write_text("token-2")
        first.end(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")
        second, _ = await hub.welcomed()
    assert (first.authorization, second.authorization) == ("Bearer token-1", "Bearer token-2")


async def test_queued_messages_are_sent_before_stream_closes(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub)) as agent:
        stream, _ = await hub.welcomed()
        await stream.say(stop=builders.stop(0))
        await env.rounds.ordered()
        env.rounds.report(builders.step_result(0, phase=StepPhase.RUNNING))
        await agent.leave(timeout=SECONDS)
        assert stream.over.is_set()
        assert (await stream.next("result")).phase == pb.StepResult.RUNNING
        assert hub.unseen == 0


async def test_leave_does_not_wait_for_absent_hub(env: HubEnv) -> None:
    hub = env.replica(port=1)
    async with env.running(env.agent(hub)) as agent:
        await env.reports.until(ComponentState.DEGRADED)
        await agent.leave(timeout=3600)


async def test_client_starts_with_address_after_the_latest(env: HubEnv) -> None:
    async with env.replica() as one, env.replica() as two, env.running(env.agent(one, two)):
        stream, _ = await one.welcomed()
        stream.end()
        stream, _ = await two.welcomed()
        stream.end()
        await one.welcomed()


def test_addresses_are_tried_in_turn_after_the_latest() -> None:
    assert connection.after([1, 2, 3], None) == [1, 2, 3]  # type: ignore[list-item, comparison-overlap]
    assert connection.after([1, 2, 3], 2) == [3, 1, 2]  # type: ignore[list-item, arg-type, comparison-overlap]
    assert connection.after([1, 2, 3], 9) == [1, 2, 3]  # type: ignore[list-item, arg-type, comparison-overlap]


async def test_fault_without_hub_is_left_to_agent_after_timeout(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    agent = env.agent(env.replica(port=1), answer_timeout=0.05)
    async with env.running(agent):
        assert (
            await agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE) is FaultAnswer.ALONE
        )
    assert env.count("kubemend_hub_fault_answers_total", kind="Device", answer="Unanswered") == 1
