"""Process the hub's messages once, from the highest leader only, and only count invalid ones."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.hub import wire
from kubemend.agent.model.rounds import Order
from kubemend.agent.model.workloads import PodRef
from kubemend.common.components import ComponentState
from kubemend.common.coordination import OrderKind, StepPhase
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from tests.fakes.hub import FakeStream
from tests.unit.hub import builders
from tests.unit.hub.env import HubEnv


@pytest.fixture
async def stream(env: HubEnv) -> AsyncIterator[FakeStream]:
    """A stream to a leader of epoch 5, which has welcomed the agent."""
    await env.pods.put(builders.member(0))
    async with env.replica(epoch=5) as hub, env.running(env.agent(hub)):
        made, _ = await hub.welcomed()
        yield made


async def heard_out(stream: FakeStream) -> None:
    """Return when the agent has processed all messages."""
    await stream.say(sync=pb.Sync())
    await stream.next("hello")


async def test_order_is_carried_out_and_results_are_reported(env: HubEnv, stream: FakeStream) -> None:
    await stream.say(stop=builders.stop(0, 1, grace_seconds=0.0, strategy="rerun"))
    order, pod = await env.rounds.ordered()
    other, _ = await env.rounds.ordered()
    assert order == Order(
        round="team/r1",
        attempt=1,
        pod=builders.ref(0).uid,
        kind=OrderKind.RESTART,
        cause_code="Exit1",
        cause_message="died",
        hold_seconds=30.0,
        strategy="rerun",
        grace_seconds=0.0,
    )
    assert (other.pod, pod) == (builders.ref(1).uid, builders.ref(0))
    env.rounds.report(builders.step_result(0, phase=StepPhase.STOPPED))
    result = await stream.next("result")
    assert (result.round, result.pod, result.phase) == ("team/r1", builders.pod_of(0), pb.StepResult.STOPPED)


async def test_newest_result_of_member_is_reported(env: HubEnv, stream: FakeStream) -> None:
    await stream.say(stop=builders.stop(0))
    await env.rounds.ordered()
    env.rounds.report(builders.step_result(0, phase=StepPhase.STOPPED))
    env.rounds.report(builders.step_result(0, phase=StepPhase.RUNNING))
    assert (await stream.next("result")).phase == pb.StepResult.RUNNING
    await heard_out(stream)
    assert env.count("kubemend_hub_messages_total", direction="out", body="result") == 1


async def test_result_of_previous_agent_is_reported(env: HubEnv, stream: FakeStream) -> None:
    env.rounds.report(builders.step_result(0, phase=StepPhase.SELF_RELEASED))
    assert (await stream.next("result")).phase == pb.StepResult.SELF_RELEASED


async def test_repeated_order_is_passed_on_twice(env: HubEnv, stream: FakeStream) -> None:
    for _ in range(2):
        await stream.say(stop=builders.stop(0))
    first, _ = await env.rounds.ordered()
    again, _ = await env.rounds.ordered()
    assert first == again


async def test_release_and_abort_are_passed_on(env: HubEnv, stream: FakeStream) -> None:
    await stream.say(release=pb.Release(round="team/r1", pod_uids=["uid-0"]))
    await stream.say(abort=pb.Abort(round="team/r2", pod_uids=["uid-0", "uid-1"], reason="Cancelled"))
    uids = [builders.ref(number).uid for number in range(2)]
    assert await env.rounds.word() == ("release", "team/r1", frozenset(uids[:1]), "")
    assert await env.rounds.word() == ("abort", "team/r2", frozenset(uids), "Cancelled")


async def test_lower_epoch_is_rejected(env: HubEnv, stream: FakeStream) -> None:
    await stream.say(epoch=4, stop=builders.stop(0))
    await stream.say(epoch=6, release=pb.Release(round="team/r1", pod_uids=["uid-0"]))
    await stream.say(epoch=5, abort=pb.Abort(round="team/r1", pod_uids=["uid-0"], reason="x"))
    await stream.say(epoch=6, sync=pb.Sync())
    assert (await stream.next("hello")).epoch == 6
    assert (await env.rounds.word())[0] == "release"
    assert env.rounds.words.empty()
    assert env.rounds.orders.empty()
    assert env.count("kubemend_hub_ignored_total", reason="old-epoch") == 2
    assert await env.store.obeyed_epoch() == 6


async def test_implausible_epoch_is_rejected_and_not_stored(env: HubEnv, stream: FakeStream) -> None:
    await stream.say(epoch=10**18, stop=builders.stop(0))
    await stream.say(epoch=6, release=pb.Release(round="team/r1", pod_uids=["uid-0"]))
    assert (await env.rounds.word())[0] == "release"
    assert env.rounds.orders.empty()
    assert env.count("kubemend_hub_ignored_total", reason="no-such-epoch") == 1
    assert await env.store.obeyed_epoch() == 6


async def test_previous_leader_is_left_for_current_one(env: HubEnv) -> None:
    await env.store.obey(9)
    async with env.replica(epoch=8) as old, env.replica(epoch=9) as new, env.running(env.agent(old, new)):
        await old.welcomed()
        await new.welcomed()
        await env.reports.until(ComponentState.READY)
        assert env.count("kubemend_hub_ignored_total", reason="old-epoch") == 1


async def test_previous_leader_alone_counts_as_no_hub(env: HubEnv) -> None:
    await env.store.obey(9)
    async with env.replica(epoch=8) as old, env.running(env.agent(old)):
        await old.welcomed()
        await env.reports.until(ComponentState.DEGRADED, saying="no longer leads")


MALFORMED: list[dict[str, Any]] = [
    {"stop": builders.stop(0, round_name="")},
    {"stop": builders.stop()},
    {"stop": builders.stop(0, hold_seconds=0.0)},
    {"stop": builders.stop(0, hold_seconds=-1.0)},
    {"stop": builders.stop(0, hold_seconds=math.nan)},
    {"stop": builders.stop(0, hold_seconds=math.inf)},
    {"stop": builders.stop(0, grace_seconds=math.nan)},
    {"stop": builders.stop(0, grace_seconds=-1.0)},
    {"stop": builders.stop(0, grace_seconds=3601.0)},
    {"stop": pb.Stop(round="team/r1", hold_seconds=30, orders=[pb.Order()])},
    {"stop": pb.Stop(round="team/r1", hold_seconds=30, orders=[pb.Order(pod=builders.pod_of(0), action=7)])},  # type: ignore[arg-type]
    {"release": pb.Release(round="team/r1")},
    {"abort": pb.Abort(pod_uids=["uid-0"])},
    {"answer": pb.FaultAnswer(fault_id="f")},
    {"answer": pb.FaultAnswer(answer=pb.FaultAnswer.ALONE)},
    {"answer": pb.FaultAnswer(fault_id="f", answer=9)},  # type: ignore[arg-type]
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: str(body).replace("\n", " "))
async def test_invalid_message_is_counted_and_ignored(env: HubEnv, stream: FakeStream, body: dict[str, Any]) -> None:
    await stream.say(**body)
    await heard_out(stream)
    assert env.count("kubemend_hub_ignored_total", reason="malformed") == 1
    assert env.rounds.orders.empty()
    assert env.rounds.words.empty()


async def test_unknown_message_is_ignored(env: HubEnv, stream: FakeStream) -> None:
    await stream.raw(b"\xfa\x3e\x00")  # field 1007, of a hub newer than this agent
    await stream.say(epoch=5)
    await heard_out(stream)
    assert env.count("kubemend_hub_ignored_total", reason="unknown") == 2


async def test_bytes_that_are_no_message_do_not_end_stream(env: HubEnv, stream: FakeStream) -> None:
    await stream.raw(b"\xff\xff\xff")
    await heard_out(stream)
    assert env.count("kubemend_hub_ignored_total", reason="malformed") == 1


@given(data=st.binary(max_size=200))
def test_deserialized_any_bytes_give_message_or_none(data: bytes) -> None:
    message = wire.deserialized(data)
    if message is None:
        return
    for body, read in (("stop", wire.orders), ("answer", wire.answer)):
        try:
            read(getattr(message, body))
        except wire.MalformedError:
            continue


async def test_epoch_is_kept_for_next_agent(env: HubEnv) -> None:
    async with env.replica(epoch=5) as hub:
        async with env.running(env.agent(hub)):
            await hub.welcomed()
            await env.reports.until(ComponentState.READY)
        async with env.running(env.agent(hub)):
            _, hello = await hub.welcomed()
            assert hello.epoch == 5


async def test_order_continues_when_stream_breaks(env: HubEnv) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle_order(order: Order, *, pod: PodRef) -> None:
        begun.set()
        await go_on.wait()
        env.rounds.report(builders.step_result(0, phase=StepPhase.RUNNING))

    env.rounds.handle_order = handle_order  # type: ignore[method-assign]
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        await stream.say(stop=builders.stop(0))
        await begun.wait()
        stream.end()
        stream, _ = await hub.welcomed()
        go_on.set()
        assert (await stream.next("result")).phase == pb.StepResult.RUNNING


async def test_internal_error_in_order_leaves_stream_and_next_order(
    env: HubEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = wire.orders

    def read(stop: pb.Stop) -> Any:
        if stop.round == "bad":
            raise IndexError
        return orders(stop)

    monkeypatch.setattr(wire, "orders", read)
    await env.pods.put(builders.member(0))
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        for name in ("bad", "good"):
            order = pb.Order(pod=builders.pod_of(0), action=pb.Order.RESTART)
            await stream.say(stop=pb.Stop(round=name, attempt=1, hold_seconds=10.0, orders=[order]))
        taken, _ = await env.rounds.ordered()
        assert taken.round == "good"
