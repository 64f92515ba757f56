"""Run the stream to the hub: Hello first, changes afterwards, and everything again after each break."""

import asyncio

import grpc
import pytest

from kubemend.agent.hub import connection, outbox
from kubemend.agent.model.rounds import FaultKind, Phase, Taken
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.common.components import ComponentState
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from tests.fakes.hub import SECONDS
from tests.unit.hub import builders
from tests.unit.hub.rig import Rig


async def test_hello_contains_members_containers_and_results(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    await rig.pods.put(builders.member(1, labels={}))
    rig.events.run(builders.trainer(0), name="old", attempt=0, state=ContainerState.EXITED)
    rig.events.run(builders.trainer(0), name="new", attempt=1, created_at=2)
    rig.rounds.frozen = frozenset({ContainerId("new")})
    rig.rounds.stand = (builders.standing(0),)
    await rig.store.obey(7)

    async with rig.replica(epoch=7) as hub, rig.running(rig.agent(hub)):
        stream, hello = await hub.welcomed()
        await rig.reports.until(ComponentState.READY, saying="leader replica-0")

    assert stream.authorization == "Bearer token-1"
    assert (hello.protocol, hello.node, hello.epoch, hello.can_hold) == (1, "node-1", 7, True)
    assert hello.instance
    (member,) = hello.members
    assert (member.pod, member.gang) == (builders.pod_of(0), "team/JobSet/train")
    (container,) = member.containers
    assert container == pb.Container(name="trainer", id="new", attempt=1, state=pb.Container.RUNNING, held=True)
    (result,) = hello.results
    assert (result.round, result.phase) == ("team/r1", pb.StepResult.STOPPED)
    assert result.seconds["stop"] == pytest.approx(0.02)


async def test_stream_after_hello_sends_only_changes(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        await rig.pods.put(builders.member(0, phase="Running", resource_version="2"))  # no relevant change
        rig.events.run(builders.trainer(0), name="c")
        change = await stream.next("change")
        assert [item.id for item in change.member.containers] == ["c"]
        rig.events.remove(ContainerId("c"))
        rig.pods.drop(builders.ref(0).uid)
        gone = await stream.next("change")
        while gone.WhichOneof("body") == "member":  # the container first, if the agent was fast enough
            gone = await stream.next("change")
        assert gone.gone == builders.pod_of(0)


async def test_force_deleted_pod_is_gone_after_its_last_container(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.pods.drop(builders.ref(0).uid)
        await rig.pods.put(builders.member(1))  # a later change
        assert (await stream.next("change")).member.pod == builders.pod_of(1)
        rig.events.exit(ContainerId("c"), code=137)
        change = await stream.next("change")
        while change.WhichOneof("body") == "member":
            change = await stream.next("change")
        assert change.gone == builders.pod_of(0)
        assert stream.heard.empty()


async def test_broken_stream_is_reopened_with_new_hello(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        first, _ = await hub.welcomed()
        await rig.pods.put(builders.member(1))
        await first.next("change")
        first.end()
        _, hello = await hub.welcomed()
        assert {member.pod.name for member in hello.members} == {"train-0", "train-1"}
        await hub.stop()
        await rig.pods.put(builders.member(2))
        await hub.start()
        _, hello = await hub.welcomed()
        assert len(hello.members) == 3


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
    async with rig.replica() as hub, rig.running(rig.agent(hub, welcome=0.1)):
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
        await rig.pods.put(builders.member(0))
        await stream.next("change")
        await stream.say(sync=pb.Sync())
        again = await stream.next("hello")
        assert again.instance == first.instance
        assert len(again.members) == 1


async def test_slow_hub_gets_newest_state_of_member_once(rig: Rig) -> None:
    pods = 40
    for number in range(pods):
        await rig.pods.put(builders.member(number))
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        stream.stop_reading()
        rounds = 200
        for attempt in range(rounds):
            for number in range(pods):
                rig.events.run(
                    builders.trainer(number), name=f"c-{number}-{attempt}", attempt=attempt, created_at=attempt
                )
            await asyncio.sleep(0)  # let the agent write as much as it can
        stream.read_on()
        newest = {f"c-{number}-{rounds - 1}" for number in range(pods)}
        heard = 0
        while newest:
            change = await stream.next("change")
            heard += 1
            newest.discard(change.member.containers[0].id)
        assert heard < pods * rounds


async def test_too_many_changes_become_one_hello(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST", 3)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        for number in range(8):
            await rig.pods.put(builders.member(number))
        hello = await stream.next("hello")
        assert len(hello.members) == 8


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
        _, told = await rig.rounds.ordered()
        told(builders.standing(0, phase=Phase.RUNNING))
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
    agent = rig.agent(rig.replica(port=1), patience=0.05)
    async with rig.running(agent):
        assert await agent.take(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE) is Taken.ALONE
    assert rig.count("kubemend_hub_fault_answers_total", kind="Device", answer="Unanswered") == 1
