"""Members that fail by themselves are told to the hub, once, whoever noticed it and when."""

import asyncio
from typing import Any

import pytest

from agent.coordination import exits, wire
from agent.model.workloads import ContainerId, ContainerState
from agent.restart.admission import Reason
from common.parts import PartState
from common.pb.coordination.v1 import coordination_pb2 as pb
from tests.fakes.hub import SECONDS
from tests.unit.coordination import builders
from tests.unit.coordination.rig import Rig

C = ContainerId("c")


async def test_a_member_that_dies_is_a_fault_and_a_change(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    rig.holders.hold(builders.trainer(0))
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.events.exit(C, code=137, reason="OOMKilled")
        told, change = await stream.each("fault", "change")
        (container,) = change.member.containers
    assert (told.id, told.kind, told.code, told.exit_code) == ("exit:c", pb.Fault.EXIT, "Exit137", 137)
    assert told.message == "container trainer ended with exit code 137 (OOMKilled)"
    assert (told.pod, told.container, told.action_class) == (builders.pod_of(0), "trainer", "None")
    assert (container.state, container.exit_code) == (pb.Container.EXITED, 137)


async def test_a_member_that_completes_is_a_change_alone(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.events.exit(C, code=0)
        (container,) = (await stream.next("change")).member.containers
        assert (container.state, container.exit_code) == (pb.Container.EXITED, 0)
        assert rig.count("kubemend_hub_messages_total", direction="out", body="fault") == 0


async def test_an_exit_code_that_the_stream_does_not_tell_is_asked_for(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    rig.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=3)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.events.exit(C, code=None)
        assert (await stream.next("fault")).exit_code == 3


async def test_an_end_that_nobody_can_tell_of_is_neither_a_fault_nor_a_success(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.events.exit(C, code=None)
        (container,) = (await stream.next("change")).member.containers
        assert (container.state, container.exit_code) == (pb.Container.UNKNOWN, 0)
        await stream.say(sync=pb.Sync())
        await stream.next("hello")
        assert rig.count("kubemend_hub_messages_total", direction="out", body="fault") == 0


@pytest.mark.parametrize("whose", ["restart", "round", "held pod"])
async def test_an_end_that_is_our_own_doing_is_no_fault(rig: Rig, whose: str) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    if whose == "restart":
        rig.runtime.ended.add(C)
    elif whose == "round":
        rig.rounds.expected.add(C)
    else:
        rig.rounds.pods_busy.add(builders.ref(0).uid)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.events.exit(C, code=137)
        assert (await stream.next("change")).member.containers[0].exit_code == 137
        await stream.say(sync=pb.Sync())
        await stream.next("hello")
        assert rig.count("kubemend_hub_messages_total", direction="out", body="fault") == 0


async def test_a_member_that_has_died_while_no_agent_ran_is_told_with_the_first_hello(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c", state=ContainerState.EXITED)
    rig.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=1)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, hello = await hub.welcomed()
        assert hello.members[0].containers[0].exit_code == 1
        assert (await stream.next("fault")).id == "exit:c"


async def test_a_member_that_is_over_for_good_is_no_news(rig: Rig) -> None:
    await rig.pods.put(builders.member(0, phase="Failed"))
    rig.events.run(builders.trainer(0), name="c", state=ContainerState.EXITED)
    rig.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=1)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, hello = await hub.welcomed()
        assert hello.members[0].containers[0].exit_code == 1
        await rig.pods.put(builders.member(1))
        await stream.next("change")
        assert rig.count("kubemend_hub_messages_total", direction="out", body="fault") == 0


async def test_a_member_that_dies_before_the_api_server_has_told_of_it_is_told_then(rig: Rig) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, hello = await hub.welcomed()
        assert not hello.members
        rig.events.run(builders.trainer(0), name="c")
        rig.events.exit(C, code=1)
        rig.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=1)
        await rig.pods.put(builders.member(0))
        assert (await stream.next("fault")).id == "exit:c"


async def test_pods_in_no_gang_are_not_told_of_at_all(rig: Rig) -> None:
    await rig.pods.put(builders.member(0, labels={}))
    rig.events.run(builders.trainer(0), name="c")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, hello = await hub.welcomed()
        rig.events.exit(C, code=1)
        await stream.say(sync=pb.Sync())
        again = await stream.next("hello")
        assert not hello.members
        assert not again.members
        await rig.reports.until(PartState.READY)
        for body in ("fault", "change"):
            assert rig.count("kubemend_hub_messages_total", direction="out", body=body) == 0


async def test_a_fault_on_devices_that_nobody_can_name_is_told_at_once(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")  # and kubelet does not say who holds what
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        rig.events.exit(C, code=1)
        assert (await stream.next("fault")).action_class == "None"  # nothing is held against any device


@pytest.mark.parametrize("said", [pb.FaultAnswer.ALONE, pb.FaultAnswer.NOTHING])
async def test_what_kubelet_starts_for_it_is_held_back_until_the_hub_has_answered(
    rig: Rig, said: "pb.FaultAnswer.Answer.ValueType"
) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        await rig.reports.until(PartState.READY)
        rig.events.exit(C, code=1)
        told = await stream.next("fault")
        assert [each.id for each in rig.rounds.guards] == [C]
        assert not rig.rounds.guards_over.is_set()
        await stream.say(answer=pb.FaultAnswer(fault_id=told.id, answer=said))
        async with asyncio.timeout(SECONDS):
            await rig.rounds.guards_over.wait()


async def test_it_is_held_back_until_the_order_of_the_round_that_has_taken_it(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, _ = await hub.welcomed()
        await rig.reports.until(PartState.READY)
        rig.events.exit(C, code=1)
        told = await stream.next("fault")
        await stream.say(answer=pb.FaultAnswer(fault_id=told.id, answer=pb.FaultAnswer.ROUND, round="team/r1"))
        await stream.say(sync=pb.Sync())
        await stream.next("hello")  # the answer has been heard
        assert not rig.rounds.guards_over.is_set()
        rig.rounds.guards_taken.set()
        async with asyncio.timeout(SECONDS):
            await rig.rounds.guards_over.wait()


async def test_it_is_not_held_back_for_longer_than_the_patience(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    async with rig.replica() as hub, rig.running(rig.agent(hub, patience=0.1)):
        stream, _ = await hub.welcomed()
        await rig.reports.until(PartState.READY)
        rig.events.exit(C, code=1)
        told = await stream.next("fault")
        async with asyncio.timeout(SECONDS):
            await rig.rounds.guards_over.wait()
        await stream.say(answer=pb.FaultAnswer(fault_id=told.id, answer=pb.FaultAnswer.ROUND, round="team/r1"))
        await stream.say(sync=pb.Sync())
        await stream.next("hello")
        assert rig.count("kubemend_hub_fault_answers_total", kind="Exit", answer="Round") == 1, (
            "it is told all the same"
        )


async def test_where_no_hub_hears_of_it_kubelet_is_not_held_up(rig: Rig) -> None:
    await rig.pods.put(builders.member(0))
    rig.events.run(builders.trainer(0), name="c")
    hub = rig.replica()
    async with hub:
        pass  # its port is known now, and nobody serves there
    async with rig.running(rig.agent(hub)):
        await rig.reports.until(PartState.DEGRADED)
        rig.events.exit(C, code=1)
        async with hub:
            stream, _ = await hub.welcomed()
            assert (await stream.next("fault")).id == "exit:c"
    assert rig.rounds.guards == []


async def test_a_member_at_which_a_defect_shows_keeps_no_other_from_being_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    why_no_fault, worded = exits.why_no_fault, wire.member

    def asked(ended: exits.Exit, **more: Any) -> exits.NoFault | Reason | None:
        if ended.pod.ref == builders.ref(0):
            raise IndexError
        return why_no_fault(ended, **more)

    def member(of: Any) -> pb.Member:
        if of.pod == builders.ref(2):
            raise IndexError
        return worded(of)

    monkeypatch.setattr(exits, "why_no_fault", asked)
    monkeypatch.setattr(wire, "member", member)
    for number in range(3):
        await rig.pods.put(builders.member(number))
        rig.events.run(builders.trainer(number), name=f"c{number}")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream, hello = await hub.welcomed()
        assert {each.pod.uid for each in hello.members} == {"uid-0", "uid-1"}
        for number in (0, 2, 1):
            rig.events.exit(ContainerId(f"c{number}"), code=1)
        told = [await stream.next("fault") for _ in range(2)]
    assert {each.id for each in told} == {"exit:c1", "exit:c2"}
