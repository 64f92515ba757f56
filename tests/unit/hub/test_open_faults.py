"""Wait for the hub's answer to a member's fault until the timeout; then the agent acts alone."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.hub import open_faults
from kubemend.agent.hub.open_faults import Fault, OpenFaults
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.workloads import ContainerRole, ContainerSpec, PodView
from kubemend.common.components import ComponentState
from kubemend.common.coordination import FaultAnswer, FaultKind
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from tests.fakes.hub import SECONDS
from tests.unit.hub import builders
from tests.unit.hub.env import HubEnv


def answer(fault_id: str, said: "pb.FaultAnswer.Answer.ValueType" = pb.FaultAnswer.ROUND) -> pb.FaultAnswer:
    return pb.FaultAnswer(fault_id=fault_id, answer=said, round="team/r1")


def fault(number: int = 0, *, fault_id: str = "f", kind: FaultKind = FaultKind.EXIT, at: float = 100.0) -> Fault:
    return Fault(fault_id, builders.trainer(number), builders.GANG, kind, "Exit1", "it ended", at)


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (pb.FaultAnswer.ROUND, FaultAnswer.ROUND),
        (pb.FaultAnswer.ALONE, FaultAnswer.ALONE),
        (pb.FaultAnswer.NOTHING, FaultAnswer.NOTHING),
    ],
)
async def test_answer_of_hub_decides_about_fault(
    env: HubEnv, said: "pb.FaultAnswer.Answer.ValueType", taken: FaultAnswer
) -> None:
    await env.pods.put(builders.member(0))
    cause = builders.cause(action=ActionClass.RESET_DEVICE, message="Xid 48 \udcff" + "x" * 5000)
    async with env.replica() as hub, env.running(env.agent(hub)) as agent:
        stream, _ = await hub.welcomed()
        taking = asyncio.create_task(agent.report_fault(builders.trainer(0), cause, kind=FaultKind.DEVICE))
        reported = await stream.next("fault")
        await stream.say(answer=answer(reported.id, said))
        assert await taking is taken
    assert (reported.pod, reported.gang, reported.container) == (builders.pod_of(0), "team/JobSet/train", "trainer")
    assert (reported.kind, reported.code, reported.device) == (pb.Fault.DEVICE, "Xid31", "GPU-0")
    assert reported.action_class == "ResetDevice"
    assert reported.message.startswith("Xid 48 ?x")
    assert len(reported.message) <= 1024
    assert reported.age_seconds > 0
    assert env.count("kubemend_hub_fault_answers_total", kind="Device", answer=taken.value) == 1


async def test_fault_without_answer_is_left_to_agent(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub, answer_timeout=0.2)) as agent:
        stream, _ = await hub.welcomed()
        taken = await agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.HANG)
        assert taken is FaultAnswer.ALONE
        late = await stream.next("fault")
        assert not late.alone
        await stream.say(answer=answer(late.id, pb.FaultAnswer.NOTHING))
        await stream.say(sync=pb.Sync())
        await stream.next("hello")
        await env.caught_up(stream)  # an answered fault, however late, is not reported again after the Hello
        assert env.count("kubemend_hub_messages_total", direction="out", body="fault") == 1


async def test_fault_restarted_alone_is_reported_when_hub_returns(env: HubEnv) -> None:
    """Otherwise the other ranks wait for an interrupted operation, without a visible reason."""
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub, answer_timeout=0.2)) as agent:
        stream, _ = await hub.welcomed()
        assert (
            await agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE) is FaultAnswer.ALONE
        )
        unheard = await stream.next("fault")
        stream.end()
        stream, _ = await hub.welcomed()
        again = await stream.next("fault")
        assert (again.id, again.alone) == (unheard.id, True)
        await stream.say(answer=answer(again.id, pb.FaultAnswer.ALONE))
        await stream.say(sync=pb.Sync())
        await stream.next("hello")
        await env.caught_up(stream)
        assert env.count("kubemend_hub_messages_total", direction="out", body="fault") == 2


async def test_fault_waits_for_hub_to_start(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    hub = env.replica()
    async with hub:
        pass  # its port is known now, and no server listens there
    async with env.running(env.agent(hub)) as agent:
        await env.reports.until(ComponentState.DEGRADED)
        taking = asyncio.create_task(agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE))
        async with hub:
            stream, _ = await hub.welcomed()
            reported = await stream.next("fault")
            await stream.say(answer=answer(reported.id))
            assert await taking is FaultAnswer.ROUND


async def test_answer_lost_with_stream_is_requested_again(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub)) as agent:
        stream, _ = await hub.welcomed()
        taking = asyncio.create_task(agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE))
        first = await stream.next("fault")
        stream.end()
        stream, _ = await hub.welcomed()
        second = await stream.next("fault")
        assert second.id == first.id
        await stream.say(answer=answer(second.id, pb.FaultAnswer.NOTHING))
        assert await taking is FaultAnswer.NOTHING


async def test_fault_of_round_is_reported_to_next_leader_until_order(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub)) as agent:
        stream, _ = await hub.welcomed()
        taking = asyncio.create_task(agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE))
        reported = await stream.next("fault")
        await stream.say(answer=answer(reported.id))
        assert await taking is FaultAnswer.ROUND
        stream.end()
        stream, _ = await hub.welcomed()
        assert (await stream.next("fault")).id == reported.id
        await stream.say(answer=answer(reported.id))
        await stream.say(stop=builders.stop(0))
        await env.rounds.ordered()
        await stream.say(sync=pb.Sync())
        await stream.next("hello")
        await env.caught_up(stream)
        assert env.count("kubemend_hub_messages_total", direction="out", body="fault") == 2


@pytest.mark.parametrize(
    ("end", "reports"),
    [
        ({"release": pb.Release(round="team/r1", pod_uids=[builders.ref(0).uid])}, 1),
        ({"abort": pb.Abort(round="team/r1", pod_uids=[builders.ref(0).uid], reason="Cancelled")}, 1),
        ({"abort": pb.Abort(round="team/r1", pod_uids=[builders.ref(0).uid], reason="LeftOut")}, 2),
    ],
    ids=["released", "cancelled", "left out"],
)
async def test_fault_found_while_its_member_is_held_is_not_reported_to_the_leader_after_the_round(
    env: HubEnv, end: dict[str, Any], reports: int
) -> None:
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub)) as agent:
        stream, _ = await hub.welcomed()
        await stream.say(stop=builders.stop(0))
        await env.rounds.ordered()
        cause = replace(builders.cause(), happened_at=time.time())
        taking = asyncio.create_task(agent.report_fault(builders.trainer(0), cause, kind=FaultKind.DEVICE))
        await stream.say(answer=answer((await stream.next("fault")).id))
        assert await taking is FaultAnswer.ROUND
        await stream.say(**end)
        await stream.say(sync=pb.Sync())
        await stream.next("hello")
        await env.caught_up(stream)
        assert env.count("kubemend_hub_messages_total", direction="out", body="fault") == reports


@pytest.mark.parametrize(
    "pod",
    [
        builders.member(0, labels={}),
        builders.member(0, labels={"kubemend.io/gang": "None", "jobset.sigs.k8s.io/jobset-name": "train"}),
        builders.member(0, annotations={}),
        builders.member(0, annotations={"kubemend.io/restart": "Maybe"}),
        None,
    ],
    ids=["no gang", "taken out of its gang", "not opted in", "bad annotation", "unknown pod"],
)
async def test_fault_outside_gangs_is_left_to_agent_at_once(env: HubEnv, pod: object) -> None:
    if pod is not None:
        await env.pods.put(pod)  # type: ignore[arg-type]
    agent = env.agent(env.replica(port=1), answer_timeout=3600)
    assert await agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE) is FaultAnswer.ALONE


async def test_dry_run_reports_no_fault(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    agent = env.agent(env.replica(port=1), answer_timeout=3600, dry_run=True)
    assert await agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE) is FaultAnswer.ALONE


async def test_fault_with_unknown_device_has_action_ask_driver(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub, answer_timeout=0.1)) as agent:
        stream, _ = await hub.welcomed()
        await agent.report_fault(builders.trainer(0), builders.cause(devices_known=False), kind=FaultKind.HANG)
        assert (await stream.next("fault")).action_class == "AskDriver"


async def test_lost_device_is_reported_and_awaited_until_hub_starts(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    hub = env.replica()
    async with hub:
        pass  # its port is known now, and no server listens there
    async with env.running(env.agent(hub, answer_timeout=0.05)) as agent:
        await env.reports.until(ComponentState.DEGRADED)
        cause = builders.cause(code="Xid79", action=ActionClass.REBOOT_NODE)
        telling = asyncio.create_task(agent.device_lost(builders.trainer(0), cause))
        async with hub:
            stream, _ = await hub.welcomed()
            reported = await stream.next("fault")
            await stream.say(answer=answer(reported.id))
            assert await telling is FaultAnswer.ROUND
    assert (reported.kind, reported.code, reported.device, reported.action_class) == (
        pb.Fault.DEVICE,
        "Xid79",
        "GPU-0",
        "RebootNode",
    )


@pytest.mark.parametrize(
    "pod",
    [
        builders.member(0, annotations={}),
        builders.member(0, labels={}),
        builders.member(0, deleting=True),
        builders.member(0, containers=(ContainerSpec("trainer", ContainerRole.SIDECAR),)),
    ],
    ids=["not opted in", "no gang", "being deleted", "a sidecar"],
)
async def test_lost_device_outside_gangs_is_not_reported(env: HubEnv, pod: PodView) -> None:
    await env.pods.put(pod)
    async with env.replica() as hub, env.running(env.agent(hub)) as agent:
        await hub.welcomed()
        assert await agent.device_lost(builders.trainer(0), builders.cause(code="Xid79")) is FaultAnswer.ALONE
    assert env.count("kubemend_hub_messages_total", direction="out", body="fault") == 0


async def test_dry_run_reports_no_lost_device(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    agent = env.agent(env.replica(port=1), dry_run=True)
    assert await agent.device_lost(builders.trainer(0), builders.cause(code="Xid79")) is FaultAnswer.ALONE


class TestOpenFaults:
    """The store of open faults alone."""

    async def test_fault_is_reported_once_and_again_after_hello(self) -> None:
        book = OpenFaults(now=lambda: 103.0)
        book.add(fault())
        said = book.next()
        assert said is not None
        assert said.age >= 3.0
        assert book.next() is None
        book.report_again()
        assert book.next() is not None

    async def test_same_fault_is_kept_once(self) -> None:
        book = OpenFaults(now=lambda: 100.0)
        assert book.add(fault()) is book.add(fault())
        assert book.next() is not None
        assert book.next() is None

    async def test_answer_counts_once(self) -> None:
        book = OpenFaults(now=lambda: 100.0)
        answered = book.add(fault())
        assert book.answered("f", FaultAnswer.ROUND) == fault()
        assert book.answered("f", FaultAnswer.NOTHING) is None
        assert await answered is FaultAnswer.ROUND

    @pytest.mark.parametrize("order_first", [True, False])
    async def test_order_and_answer_settle_fault_in_either_sequence(self, order_first: bool) -> None:
        book = OpenFaults(now=lambda: 100.0)
        book.add(fault())
        if order_first:
            book.ordered({builders.ref(0).uid})
        book.answered("f", FaultAnswer.ROUND)
        if not order_first:
            book.report_again()
            assert book.next() is not None
            book.ordered({builders.ref(0).uid})
        book.report_again()
        assert book.next() is None

    @pytest.mark.parametrize(
        ("age", "action", "is_open"),
        [
            (5.0, ActionClass.RESTART_APP, False),
            (5.0, ActionClass.RESET_DEVICE, True),
            (0.0, ActionClass.RESTART_APP, True),
        ],
        ids=["of-the-old-container", "of-its-device", "of-the-new-container"],
    )
    async def test_fault_found_after_the_order_that_stopped_its_container_is_settled_by_the_answer(
        self, age: float, action: ActionClass, is_open: bool
    ) -> None:
        """The next hub, which does not know the round, restarted the gang for it once more."""
        book = OpenFaults(now=lambda: 100.0)
        book.ordered({builders.ref(0).uid})
        book.add(replace(fault(), happened_at=100.0 - age, action=action))
        assert book.next() is not None
        book.answered("f", FaultAnswer.ROUND)
        assert book.is_open("f") is is_open
        book.ordered({builders.ref(0).uid})
        assert not book.is_open("f")

    @pytest.mark.parametrize(
        ("action", "by_release", "answer_first", "is_open"),
        [
            (ActionClass.RESTART_APP, True, True, False),
            (ActionClass.RESTART_APP, True, False, False),
            (ActionClass.RESTART_APP, False, True, False),
            (ActionClass.RESTART_APP, False, False, True),  # a decision of its own, as there is no round
            (ActionClass.RESET_DEVICE, True, True, True),
            (ActionClass.RESET_DEVICE, False, True, True),
        ],
    )
    async def test_fault_of_a_held_member_is_settled_by_its_release_or_cancellation(
        self, action: ActionClass, by_release: bool, answer_first: bool, is_open: bool
    ) -> None:
        """It came after the only order, so it stayed open, and the next leader restarted the gang for it once more."""
        book = OpenFaults(now=lambda: 100.0)
        book.ordered({builders.ref(0).uid})
        book.add(replace(fault(kind=FaultKind.DEVICE), action=action))
        assert book.next() is not None
        if answer_first:
            book.answered("f", FaultAnswer.ROUND)
        settled = book.freed({builders.ref(0).uid}, by_release=by_release)
        if not answer_first:
            book.answered("f", FaultAnswer.ROUND)
        assert book.is_open("f") is is_open
        assert settled == (["f"] if answer_first and not is_open else [])

    @pytest.mark.parametrize("by_release", [True, False])
    async def test_repeated_release_or_cancellation_settles_no_fault_of_the_new_container(
        self, by_release: bool
    ) -> None:
        book = OpenFaults(now=lambda: 100.0)
        book.ordered({builders.ref(0).uid})
        book.freed({builders.ref(0).uid}, by_release=by_release)
        book.add(fault())
        book.answered("f", FaultAnswer.ROUND)
        assert book.freed({builders.ref(0).uid}, by_release=by_release) == []
        assert book.is_open("f")

    async def test_orders_are_kept_for_a_limited_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        book = OpenFaults(now=lambda: 100.0)
        monkeypatch.setattr(open_faults, "LONGEST", -1.0)
        for index in range(3):
            book.ordered({builders.ref(index).uid})
        assert book._ordered == {}

    async def test_exit_of_deleted_pod_is_not_reported(self) -> None:
        book = OpenFaults(now=lambda: 100.0)
        book.add(fault())
        book.add(fault(1, fault_id="g"))
        book.gone(builders.ref(0).uid)
        said = book.next()
        assert said is not None
        assert said.fault.id == "g"
        assert book.next() is None

    async def test_fault_left_alone_is_dropped_with_deleted_pod(self) -> None:
        book = OpenFaults(now=lambda: 100.0)
        book.add(fault(kind=FaultKind.DEVICE))
        book.leave_alone("f")
        book.gone(builders.ref(0).uid)
        assert book.next() is None

    async def test_fault_open_for_too_long_is_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        book = OpenFaults(now=lambda: 100.0)
        book.add(fault())
        monkeypatch.setattr(open_faults, "LONGEST", -1.0)
        assert book.next() is None

    async def test_clock_set_back_gives_no_negative_age(self) -> None:
        book = OpenFaults(now=lambda: 50.0)
        book.add(fault())
        said = book.next()
        assert said is not None
        assert 0 <= said.age < SECONDS

    async def test_oldest_fault_is_dropped_beyond_limit(self) -> None:
        book = OpenFaults(now=lambda: 100.0)
        for number in range(open_faults.MOST + 2):
            book.add(fault(fault_id=f"f{number}"))
        said = []
        while (reported := book.next()) is not None:
            said.append(reported.fault.id)
        assert len(said) == open_faults.MOST
        assert said[0] == "f2"

    async def test_faults_of_one_namespace_do_not_drop_those_of_another(self) -> None:
        book = OpenFaults(now=lambda: 100.0)
        other = fault(fault_id="other")
        other = replace(other, target=replace(other.target, pod=replace(other.target.pod, namespace="other")))
        book.add(other)
        for number in range(open_faults.MOST + 2):
            book.add(fault(fault_id=f"f{number}"))
        said = []
        while (reported := book.next()) is not None:
            said.append(reported.fault.id)
        assert said == ["other", *(f"f{number}" for number in range(3, open_faults.MOST + 2))]

    async def test_fault_of_round_is_dropped_with_deleted_pod(self) -> None:
        book = OpenFaults(now=lambda: 100.0)
        book.add(fault(kind=FaultKind.DEVICE))
        book.gone(builders.ref(0).uid)
        assert book.next() is not None  # a caller waits for the answer
        book.answered("f", FaultAnswer.ROUND)
        book.gone(builders.ref(0).uid)
        book.report_again()
        assert book.next() is None
