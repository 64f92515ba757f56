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
from tests.unit.hub.rig import Rig


async def test_hello_contains_epoch_and_results(rig: Rig) -> None:
    rig.rounds.stand = (builders.step_result(0),)
    await rig.store.obey(7)

    async with rig.replica(epoch=7) as hub, rig.running(rig.agent(hub)):
        stream, hello = await hub.welcomed()
        await rig.reports.until(ComponentState.READY, saying="leader replica-0")

    assert stream.authorization == "Bearer token-1"
    assert (hello.protocol, hello.node, hello.epoch) == (1, "node-1", 7)
    (result,) = hello.results
    assert (result.pod, result.round, result.phase) == (builders.pod_of(0), "team/r1", pb.StepResult.STOPPED)
    assert result.seconds["stop"] == pytest.approx(0.02)


async def test_broken_stream_is_reopened_with_new_hello(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        first, _ = await hub.welcomed()
        rig.rounds.stand = (builders.step_result(0),)
        first.end()
        _, hello = await hub.welcomed()
        assert len(hello.results) == 1
        await hub.stop()
        rig.rounds.stand = (builders.step_result(0), builders.step_result(1))
        await hub.start()
        _, hello = await hub.welcomed()
        assert len(hello.results) == 2


async def test_standby_replica_is_skipped_for_leader(rig: Rig) -> None:
    async with rig.replica() as standby, rig.replica() as leader:
        standby.stands_by = True
        async with rig.running(rig.agent(standby, leader)):
            stream, _ = await leader.welcomed()
            assert standby.refused == 1
            standby.stands_by, leader.stands_by = False, True
            stream.end()
            await standby.welcomed()


async def test_without_leader_client_reports_it_and_agent_works_alone(rig: Rig) -> None:
    async with rig.replica() as one, rig.replica() as two:
        one.stands_by = two.stands_by = True
        async with rig.running(rig.agent(one, two)):
            status = await rig.reports.until(ComponentState.DEGRADED, saying="no replica of the hub leads yet")
            assert "works alone" in status.message
            assert "controller" in status.hint
            one.stands_by = False
            await one.welcomed()
            await rig.reports.until(ComponentState.READY)


async def test_hub_without_welcome_is_left(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub, welcome=3.0)):
        mute = await hub.stream()
        await mute.next("hello")
        await rig.reports.until(ComponentState.DEGRADED, saying="did not answer")
        async with asyncio.timeout(SECONDS):
            await mute.over.wait()


async def test_stream_that_never_lasts_is_reported_despite_welcome(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub, settled=SECONDS)):
        for _ in range(2):
            stream, _ = await hub.welcomed()
            await rig.reports.until(ComponentState.READY)
            stream.end(grpc.StatusCode.INVALID_ARGUMENT, "an invalid message")
            await rig.reports.until(ComponentState.DEGRADED, saying="does not understand the agent")


async def test_stream_that_lasted_may_break_without_report(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub, settled=0.0)):
        for _ in range(3):
            stream, _ = await hub.welcomed()
            await rig.reports.until(ComponentState.READY)
            stream.end()
        await hub.welcomed()
    assert {report.state for report in rig.reports.all} == {ComponentState.READY}


async def test_sync_is_answered_with_hello(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, first = await hub.welcomed()
        rig.rounds.stand = (builders.step_result(0),)
        await stream.say(sync=pb.Sync())
        again = await stream.next("hello")
        assert again.node == first.node
        assert len(again.results) == 1


async def test_slow_hub_gets_newest_state_of_member_once(rig: Rig) -> None:
    members, times = 40, 200
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        stream.stop_reading()
        for time in range(times):
            for number in range(members):
                rig.rounds.report(replace(builders.step_result(number), detail=f"{time}" + "x" * 1000))
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


async def test_too_many_results_become_one_hello(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST", 3)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.rounds.stand = tuple(builders.step_result(number) for number in range(8))
        for step_result in rig.rounds.stand:
            rig.rounds.report(step_result)
        hello = await stream.next("hello")
        assert len(hello.results) == 8


async def test_token_is_read_for_each_stream(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        first, _ = await hub.welcomed()
        rig.token.write_text("token-2")
        first.end(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")
        second, _ = await hub.welcomed()
    assert (first.authorization, second.authorization) == ("Bearer token-1", "Bearer token-2")


async def test_queued_messages_are_sent_before_stream_closes(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    async with rig.replica() as hub, rig.running(rig.agent(hub)) as agent:
        stream, _ = await hub.welcomed()
        await stream.say(stop=builders.stop(0))
        await rig.rounds.ordered()
        rig.rounds.report(builders.step_result(0, phase=StepPhase.RUNNING))
        await agent.leave(timeout=SECONDS)
        assert stream.over.is_set()
        assert (await stream.next("result")).phase == pb.StepResult.RUNNING
        assert hub.unseen == 0


async def test_leave_does_not_wait_for_absent_hub(rig: Rig) -> None:
    hub = rig.replica(port=1)
    async with rig.running(rig.agent(hub)) as agent:
        await rig.reports.until(ComponentState.DEGRADED)
        await agent.leave(timeout=3600)


async def test_client_starts_with_address_after_the_latest(rig: Rig) -> None:
    async with rig.replica() as one, rig.replica() as two, rig.running(rig.agent(one, two)):
        stream, _ = await one.welcomed()
        stream.end()
        stream, _ = await two.welcomed()
        stream.end()
        await one.welcomed()


def test_addresses_are_tried_in_turn_after_the_latest() -> None:
    assert connection.after([1, 2, 3], None) == [1, 2, 3]  # type: ignore[list-item, comparison-overlap]
    assert connection.after([1, 2, 3], 2) == [3, 1, 2]  # type: ignore[list-item, arg-type, comparison-overlap]
    assert connection.after([1, 2, 3], 9) == [1, 2, 3]  # type: ignore[list-item, arg-type, comparison-overlap]


async def test_fault_without_hub_is_left_to_agent_after_timeout(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    agent = rig.agent(rig.replica(port=1), answer_timeout=0.05)
    async with rig.running(agent):
        assert (
            await agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE) is FaultAnswer.ALONE
        )
    assert rig.count("kubemend_hub_fault_answers_total", kind="Device", answer="Unanswered") == 1
