"""The agent's client and the controller's hub, both real: each accepts the other's messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.hub.client import Hub
from kubemend.agent.model.devices import Load
from kubemend.agent.model.workloads import ContainerId
from kubemend.common.components import ComponentState
from kubemend.common.coordination import FaultAnswer, FaultKind, StepPhase
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.model.members import NodeName
from kubemend.controller.model.members import PodUid as ControllersPodUid
from tests.unit.controller.hub import env as hubs
from tests.unit.hub import builders
from tests.unit.hub.env import HubEnv

NODE = NodeName("node-1")


@contextlib.asynccontextmanager
async def serving(*, epoch: int | None = 7) -> AsyncIterator[hubs.HubServiceEnv]:
    """A hub that knows the gang's first three pods to be on our node."""
    made = hubs.HubServiceEnv()
    made.pods |= {ControllersPodUid(f"uid-{number}"): NODE for number in range(3)}
    async with made.running(epoch=epoch):
        yield made


@pytest.fixture
async def env(tmp_path: Path) -> AsyncIterator[HubEnv]:
    """The agent's dependencies."""
    store = await Store.open(tmp_path / "state.db")
    yield HubEnv(directory=tmp_path, store=store)
    await store.close()


def agent_of(env: HubEnv, hub: hubs.HubServiceEnv, *, token: str = "token-of-node-1") -> Hub:
    """Return the agent's client, which dials that hub with a token; the hub accepts the default."""
    env.ca.write_bytes(hubs._CA.certificate_pem)
    env.token.write_text(token)
    address = env.replica(port=hub.port)
    made = env.agent(address)
    made._where = replace(made._where, name="127.0.0.1")  # the name in the hub's certificate
    return made


async def test_a_round_from_a_fault_to_its_end(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    async with serving() as hub:
        agent = agent_of(env, hub)
        async with env.running(agent):
            await hub.engine.until(lambda: bool(hub.engine.of("hello")))
            await env.reports.until(ComponentState.READY, saying="hub-0")
            session = hub.engine.sessions[NODE]

            taking = asyncio.create_task(
                agent.report_fault(builders.trainer(0), builders.cause(), kind=FaultKind.DEVICE)
            )
            await hub.engine.until(lambda: any(reported.HasField("fault") for reported in hub.engine.of("message")))
            (fault,) = [reported.fault for reported in hub.engine.of("message") if reported.HasField("fault")]
            session.send(pb.HubMessage(answer=pb.FaultAnswer(fault_id=fault.id, answer=pb.FaultAnswer.ROUND)))
            assert await taking is FaultAnswer.ROUND

            session.send(pb.HubMessage(stop=builders.stop(0)))
            order, _ = await env.rounds.ordered()
            assert order.pod == "uid-0"
            env.rounds.report(builders.step_result(0, phase=StepPhase.STOPPED))
            session.send(pb.HubMessage(release=pb.Release(round="team/r1", pod_uids=["uid-0"])))
            assert (await env.rounds.word())[0] == "release"
            env.rounds.report(builders.step_result(0, phase=StepPhase.RUNNING))
            await hub.engine.until(
                lambda: any(reported.result.phase == pb.StepResult.RUNNING for reported in hub.engine.of("message"))
            )
        assert await env.store.obeyed_epoch() == 7
    assert hub.counted() == {}


async def test_hub_accepts_any_texts_of_the_node(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    odd = "two words \udcff \x00\n" * 999
    env.holders.hold(builders.trainer(0))
    env.loads.now = {builders.GPU: Load(utilization=0.5)}
    env.rounds.stand = (
        replace(builders.step_result(0), reason=odd, detail=odd, unheld_seconds=-1.0, seconds={odd: -0.1}),
    )
    async with serving() as hub:
        agent = agent_of(env, hub)
        async with env.running(agent):
            await hub.engine.until(lambda: bool(hub.engine.of("hello")))
            cause = builders.cause(code=odd, message=odd, device=odd)
            taking = asyncio.create_task(agent.report_fault(builders.trainer(0), cause, kind=FaultKind.OTHER))
            env.events.exit(ContainerId("c"), code=139, reason=odd)
            await hub.engine.until(
                lambda: (
                    sum(reported.HasField("fault") for reported in hub.engine.of("message")) == 2
                    and any(reported.HasField("samples") for reported in hub.engine.of("message"))
                )
            )
            taking.cancel()
            await asyncio.wait({taking})
            assert len(hub.engine.of("connected")) == 1
    assert hub.counted() == {}


async def test_hub_gains_and_loses_the_leadership(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    async with serving(epoch=None) as hub, env.running(agent_of(env, hub)):
        await env.reports.until(ComponentState.DEGRADED, saying="no replica of the hub leads yet")
        hub.hub.lead(8)
        await env.reports.until(ComponentState.READY)
        hub.hub.stand_by()
        await env.reports.until(ComponentState.DEGRADED, saying="no replica of the hub leads yet")
        hub.hub.lead(9)
        await hub.engine.until(lambda: len(hub.engine.of("hello")) == 2)
        assert [hello.epoch for hello in hub.engine.of("hello")] == [0, 8]


async def test_an_agent_that_leaves_is_gone_at_once(env: HubEnv) -> None:
    async with serving() as hub, env.running(agent_of(env, hub)) as agent:
        await env.reports.until(ComponentState.READY)
        await agent.leave(timeout=3600)
        await hub.engine.until(lambda: bool(hub.engine.of("gone")))
    assert hub.counted() == {}


async def test_invalid_token_is_reported_with_its_hint(env: HubEnv) -> None:
    async with serving() as hub, env.running(agent_of(env, hub, token="of-another-account")):
        status = await env.reports.until(ComponentState.DEGRADED, saying="does not accept the agent's token")
        assert "--hub-token" in status.hint


async def test_fault_of_an_unknown_pod_is_reported_once_known(env: HubEnv) -> None:
    for number in (0, 7):
        await env.pods.put(builders.member(number))
        env.events.run(builders.trainer(number), name=f"c{number}")
    async with serving() as hub, env.running(agent_of(env, hub)):
        await hub.engine.until(lambda: bool(hub.engine.of("hello")))
        for number in (7, 0):
            env.events.exit(ContainerId(f"c{number}"), code=1)
        await hub.engine.until(lambda: bool(hub.engine.of("message")))
        hub.pods[ControllersPodUid("uid-7")] = NODE
        hub.hub.pod_bound(ControllersPodUid("uid-7"), NODE)
        await hub.engine.until(lambda: len(hub.engine.of("message")) == 2)
        assert [reported.fault.pod.uid for reported in hub.engine.of("message")] == ["uid-0", "uid-7"]
