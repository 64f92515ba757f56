"""The stream to the hub: Hello first, what changes afterwards, and all of it again after every break."""

import asyncio

import grpc
import pytest

from agent.coordination import connection, outbox
from agent.model.rounds import FaultKind, Phase, Taken
from agent.model.workloads import ContainerId, ContainerState
from common.parts import PartState
from common.pb.coordination.v1 import coordination_pb2 as pb
from tests.fakes.hub import SECONDS
from tests.unit.coordination import builders
from tests.unit.coordination.rig import Rig


async def test_hello_tells_all_members_their_containers_and_where_they_stand(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    await rig.pods.put(builders.member(1, labels={}))
    rig.events.run(builders.trainer(0), name="old", attempt=0, state=ContainerState.EXITED)
    rig.events.run(builders.trainer(0), name="new", attempt=1, created_at=2)
    rig.rounds.frozen = frozenset({ContainerId("new")})
    rig.rounds.stand = (builders.standing(0),)
    await rig.store.obey(7)

    async with rig.replica(epoch=7) as hub, rig.running(rig.agent(hub)):
        stream, hello = await hub.welcomed()
        await rig.reports.until(PartState.READY, saying="leader replica-0")

    assert stream.authorization == "Bearer token-1"
    assert (hello.protocol, hello.node, hello.epoch, hello.can_hold) == (1, "node-1", 7, True)
    assert hello.instance
    (member,) = hello.members
    assert (member.pod, member.gang) == (builders.pod_of(0), "team/JobSet/train")
    (container,) = member.containers
    assert container == pb.Container(name="trainer", id="new", attempt=1, state=pb.Container.RUNNING, held=True)
    (result,) = hello.results
    assert (result.round, result.phase, result.containers[0].id) == ("team/r1", pb.StepResult.STOPPED, "new")
    assert result.seconds["stop"] == pytest.approx(0.02)


async def test_after_hello_only_what_changes_is_told(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        await rig.pods.put(builders.member(0, phase="Running", resource_version="2"))  # nothing that matters
        rig.events.run(builders.trainer(0), name="c")
        change = await stream.next("change")
        assert [item.id for item in change.member.containers] == ["c"]
        rig.events.remove(ContainerId("c"))
        rig.pods.drop(builders.ref(0).uid)
        gone = await stream.next("change")
        while gone.WhichOneof("body") == "member":  # the container first, where the agent was fast enough
            gone = await stream.next("change")
        assert gone.gone == builders.pod_of(0)


async def test_a_pod_deleted_by_force_is_gone_only_when_its_last_container_is(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.pods.drop(builders.ref(0).uid)
        await rig.pods.put(builders.member(1))  # a change that comes after
        assert (await stream.next("change")).member.pod == builders.pod_of(1)
        rig.events.exit(ContainerId("c"), code=137)
        change = await stream.next("change")
        while change.WhichOneof("body") == "member":
            change = await stream.next("change")
        assert change.gone == builders.pod_of(0)
        assert stream.heard.empty()


async def test_a_stream_that_breaks_is_opened_again_with_a_new_hello(rig: Rig) -> None:
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


async def test_a_replica_that_stands_by_is_passed_over_for_the_one_that_leads(rig: Rig) -> None:
    async with rig.replica() as standby, rig.replica() as leader:
        standby.stands_by = True
        async with rig.running(rig.agent(standby, leader)):
            stream, _ = await leader.welcomed()
            assert standby.refused == 1
            standby.stands_by, leader.stands_by = False, True
            stream.end()
            await standby.welcomed()


async def test_while_nobody_leads_the_part_says_so_and_the_agent_is_not_in_anybodys_way(rig: Rig) -> None:
    async with rig.replica() as one, rig.replica() as two:
        one.stands_by = two.stands_by = True
        async with rig.running(rig.agent(one, two)):
            status = await rig.reports.until(PartState.DEGRADED, saying="no replica of the hub leads yet")
            assert "works alone" in status.message
            assert "controller" in status.mend
            one.stands_by = False
            await one.welcomed()
            await rig.reports.until(PartState.READY)


async def test_a_hub_that_does_not_welcome_is_left(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub, welcome=0.1)):
        mute = await hub.stream()
        await mute.next("hello")
        await rig.reports.until(PartState.DEGRADED, saying="has not answered")
        async with asyncio.timeout(SECONDS):
            await mute.over.wait()


async def test_a_stream_that_never_lasts_is_told_although_each_was_welcomed(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub, settled=SECONDS)):
        for _ in range(2):
            stream, _ = await hub.welcomed()
            await rig.reports.until(PartState.READY)
            stream.end(grpc.StatusCode.INVALID_ARGUMENT, "a word that is none")
            await rig.reports.until(PartState.DEGRADED, saying="does not understand the agent")


async def test_a_stream_that_has_lasted_may_break_without_a_word(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub, settled=0.0)):
        for _ in range(3):
            stream, _ = await hub.welcomed()
            await rig.reports.until(PartState.READY)
            stream.end()
        await hub.welcomed()
    assert {report.state for report in rig.reports.all} == {PartState.READY}


async def test_sync_is_answered_with_a_hello(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, first = await hub.welcomed()
        await rig.pods.put(builders.member(0))
        await stream.next("change")
        await stream.say(sync=pb.Sync())
        again = await stream.next("hello")
        assert again.instance == first.instance
        assert len(again.members) == 1


async def test_a_hub_that_is_slow_to_read_gets_the_newest_state_of_each_member_once(rig: Rig) -> None:
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
            await asyncio.sleep(0)  # let the agent write what it can
        stream.read_on()
        newest = {f"c-{number}-{rounds - 1}" for number in range(pods)}
        heard = 0
        while newest:
            change = await stream.next("change")
            heard += 1
            newest.discard(change.member.containers[0].id)
        assert heard < pods * rounds


async def test_more_changes_than_are_kept_become_one_hello(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST", 3)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        for number in range(8):
            await rig.pods.put(builders.member(number))
        hello = await stream.next("hello")
        assert len(hello.members) == 8


async def test_the_token_is_read_for_each_stream(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        first, _ = await hub.welcomed()
        rig.token.write_text("token-2")
        first.end(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")
        second, _ = await hub.welcomed()
    assert (first.authorization, second.authorization) == ("Bearer token-1", "Bearer token-2")


async def test_what_is_left_to_say_is_said_before_the_stream_is_closed(rig: Rig) -> None:
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


async def test_leaving_does_not_wait_for_a_hub_that_is_not_there(rig: Rig) -> None:
    hub = rig.replica(port=1)
    async with rig.running(rig.agent(hub)) as agent:
        await rig.reports.until(PartState.DEGRADED)
        await agent.leave(timeout=3600)


async def test_agents_begin_with_the_address_after_the_latest(rig: Rig) -> None:
    async with rig.replica() as one, rig.replica() as two, rig.running(rig.agent(one, two)):
        stream, _ = await one.welcomed()
        stream.end()
        stream, _ = await two.welcomed()
        stream.end()
        await one.welcomed()


def test_the_addresses_are_tried_in_turn_whatever_became_of_the_latest() -> None:
    assert connection.after([1, 2, 3], None) == [1, 2, 3]  # type: ignore[list-item, comparison-overlap]
    assert connection.after([1, 2, 3], 2) == [3, 1, 2]  # type: ignore[list-item, arg-type, comparison-overlap]
    assert connection.after([1, 2, 3], 9) == [1, 2, 3]  # type: ignore[list-item, arg-type, comparison-overlap]


async def test_a_fault_of_an_agent_without_a_hub_is_its_own_after_the_patience(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    agent = rig.agent(rig.replica(port=1), patience=0.05)
    async with rig.running(agent):
        assert await agent.take(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE) is Taken.ALONE
    assert rig.count("kubemend_hub_fault_answers_total", kind="Device", answer="Unanswered") == 1
