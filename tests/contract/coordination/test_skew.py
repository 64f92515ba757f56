"""Agents and hubs of different releases accept each other's messages; a too old side gets one line about it."""

import pytest

from kubemend.agent.hub import wire as agents_wire
from kubemend.common.components import ComponentState
from kubemend.common.coordination import OrderKind, StepPhase
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import messages
from kubemend.controller.hub.messages import Limits
from kubemend.controller.hub.refusals import Reason, RefusedError
from tests.contract.coordination import recording
from tests.contract.coordination.recording import Recording
from tests.contract.coordination.test_agent_and_hub import agent_of, env, serving
from tests.unit.hub import builders
from tests.unit.hub.env import HubEnv

__all__ = ["env"]

EVERY = recording.recordings()
OF_AGENTS = [each for each in EVERY if not each.of_hub and each.kept]
REMOVED = [each for each in EVERY if not each.of_hub and not each.kept]
OF_HUBS = [each for each in EVERY if each.of_hub]
UNKNOWN_FIELD = b"\xc2\x3e\x03new"  # field 1000, a string: a future release may add it to any message
UNKNOWN_BODY = pb.HubMessage(epoch=8).SerializeToString() + b"\x9a\x06\x02\x08\x01"  # field 99, a message


def test_every_field_of_today_is_in_a_recording() -> None:
    known = {field for each in EVERY for field in recording.said(each.parsed)}
    today = {*recording.fields(pb.AgentMessage.DESCRIPTOR), *recording.fields(pb.HubMessage.DESCRIPTOR)}
    assert today - known == set(), "record a release: python -m tests.contract.coordination.recording RELEASE"


@pytest.mark.parametrize("each", EVERY, ids=str)
def test_recorded_bytes_keep_their_meaning(each: Recording) -> None:
    assert recording.words(each.parsed) == each.kept


@pytest.mark.parametrize("each", OF_AGENTS, ids=str)
@pytest.mark.parametrize("more", [b"", UNKNOWN_FIELD], ids=["as recorded", "with something new"])
def test_hub_accepts_recorded_agents(each: Recording, more: bytes) -> None:
    taken = messages.parse(each.data + more, limits=Limits())
    assert recording.words(taken) == each.kept
    if each.name == "hello":
        assert messages.hello_of(taken, node="node-1").epoch == 7


@pytest.mark.parametrize("each", REMOVED, ids=str)
def test_hub_ignores_recorded_message_that_was_removed(each: Recording) -> None:
    with pytest.raises(RefusedError) as refused:
        messages.parse(each.data, limits=Limits())
    assert refused.value.reason is Reason.UNKNOWN_MESSAGE
    assert not refused.value.ends_stream


@pytest.mark.parametrize("release", sorted({each.release for each in OF_HUBS}))
@pytest.mark.parametrize("more", [b"", UNKNOWN_FIELD], ids=["as recorded", "with something new"])
async def test_agent_obeys_recorded_hubs(env: HubEnv, release: str, more: bytes) -> None:
    said = {each.name: each.data + more for each in OF_HUBS if each.release == release}
    await env.pods.put(builders.member(0))
    async with env.replica(epoch=8) as hub, env.running(env.agent(hub)):
        stream = await hub.stream()
        await stream.next("hello")
        await stream.raw(said["welcome"])
        await env.reports.until(ComponentState.READY, saying="leader hub-0")
        await stream.raw(UNKNOWN_BODY)
        await stream.raw(said["stop"])
        order, _ = await env.rounds.ordered()
        assert (order.round, order.pod, order.kind, order.attempt) == ("team/r1", "uid-0", OrderKind.HOLD, 2)
        assert (order.strategy, order.hold_seconds, order.grace_seconds) == ("rerun", 30.0, 1.5)
        env.rounds.report(builders.step_result(0, phase=StepPhase.STOPPED))
        assert (await stream.next("result")).phase == pb.StepResult.STOPPED
        await stream.raw(said["release"])
        assert await env.rounds.word() == ("release", "team/r1", frozenset({"uid-0"}), "")
        await stream.raw(said["abort"])
        assert await env.rounds.word() == ("abort", "team/r1", frozenset({"uid-0"}), "Cancelled")
        await stream.raw(said["answer"])
        await stream.raw(said["sync"])
        assert (await stream.next("hello")).epoch == 8
    assert env.count("kubemend_hub_ignored_total", reason="unknown") == 1
    assert env.count("kubemend_hub_ignored_total", reason="malformed") == 0


async def test_hub_without_a_version_has_protocol_one(env: HubEnv) -> None:
    async with env.replica() as hub, env.running(env.agent(hub)):
        await hub.welcomed()
        await env.reports.until(ComponentState.READY, saying="leader replica-0")


async def test_too_old_hub_is_reported_and_left(env: HubEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_wire, "OLDEST", 2)
    async with env.replica() as hub, env.running(env.agent(hub)):
        await hub.welcomed()
        status = await env.reports.until(ComponentState.DEGRADED, saying="speaks protocol 1, this agent supports 2 to")
        assert status.hint == "Upgrade the controller."


async def test_too_old_agent_is_refused_and_works_alone(env: HubEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "OLDEST", 2)
    async with serving() as hub, env.running(agent_of(env, hub)):
        status = await env.reports.until(ComponentState.DEGRADED, saying="Upgrade the agent")
        assert status.message.endswith("the agent works alone")
    assert set(hub.counted()) == {"OtherVersion"}
