"""Report members that fail by themselves to the hub, once, however and whenever it was noticed."""

import asyncio
import time
from typing import Any

import pytest

from kubemend.agent.clients.cri import errors
from kubemend.agent.hub import exits
from kubemend.agent.hub import members as members_module
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerState
from kubemend.agent.restart.reasons import Reason
from kubemend.common.components import ComponentState
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from tests.fakes.hub import SECONDS, FakeStream
from tests.unit.hub import builders
from tests.unit.hub.env import HubEnv

C = ContainerId("c")


OTHER = ContainerId("other")


async def next_fault_is_of_the_other(env: HubEnv, stream: FakeStream) -> None:
    """Have another member fail: its exit is handled after all earlier ones, and reported first."""
    await env.pods.put(builders.member(1))
    env.events.run(builders.trainer(1), name=OTHER)
    env.events.exit(OTHER, code=1)
    assert (await stream.next("fault")).id == "exit:other"


async def test_member_that_dies_is_fault(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    env.holders.hold(builders.trainer(0))
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=137, reason="OOMKilled")
        reported = await stream.next("fault")
    assert (reported.id, reported.kind, reported.code, reported.exit_code) == ("exit:c", pb.Fault.EXIT, "Exit137", 137)
    assert reported.message == "container trainer ended with exit code 137 (OOMKilled)"
    assert (reported.pod, reported.container, reported.action_class) == (builders.pod_of(0), "trainer", "None")


async def test_member_that_completes_is_not_reported(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=0)
        await next_fault_is_of_the_other(env, stream)


async def test_exit_code_missing_from_event_is_queried(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    env.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=3)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=None)
        assert (await stream.next("fault")).exit_code == 3


async def test_exit_code_is_queried_until_the_runtime_has_it(env: HubEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event of an end may come before the status, and the runtime may be away again."""
    monkeypatch.setattr(members_module, "_ASK_AGAIN", 0.01)
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    env.runtime.failures = [errors.RuntimeUnavailable("connection refused", where="/run/cri.sock") for _ in range(3)]
    env.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=3)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=None)
        assert (await stream.next("fault")).exit_code == 3
    assert env.runtime.failures == []


async def test_unknown_exit_is_not_reported(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=None)
        await next_fault_is_of_the_other(env, stream)


@pytest.mark.parametrize("whose", ["restart", "round", "held pod"])
async def test_exit_caused_by_agent_is_no_fault(env: HubEnv, whose: str) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    if whose == "restart":
        env.runtime.ended.add(C)
    elif whose == "round":
        env.rounds.expected.add(C)
    else:
        env.rounds.pods_busy.add(builders.ref(0).uid)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=137)
        await next_fault_is_of_the_other(env, stream)


async def test_death_without_running_agent_is_reported_after_hello(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c", state=ContainerState.EXITED)
    env.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=1)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        assert (await stream.next("fault")).id == "exit:c"


def missed(env: HubEnv, *, exit_code: int = 1, reason: str = "Error", ago: float = 5.0, **successor: Any) -> None:
    """Have kubelet's container run in the place of one that has ended while no agent ran."""
    env.events.run(builders.trainer(0), name="c", state=ContainerState.EXITED)
    env.events.run(builders.trainer(0), name="kubelets", **{"created_at": 2, "attempt": 1} | successor)
    env.runtime.infos[C] = builders.info(
        C, of=builders.trainer(0), exit_code=exit_code, reason=reason, finished_at=time.time_ns() - int(ago * 1e9)
    )


@pytest.mark.parametrize(("exit_code", "reason"), [(1, "Error"), (139, "Error"), (137, "OOMKilled")])
async def test_member_that_kubelet_restarted_without_running_agent_is_reported(
    env: HubEnv, exit_code: int, reason: str
) -> None:
    await env.pods.put(builders.member(0))
    missed(env, exit_code=exit_code, reason=reason)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        reported = await stream.next("fault")
    assert (reported.id, reported.exit_code) == ("exit:c", exit_code)


@pytest.mark.parametrize(
    "differently",
    [
        {"exit_code": 0},
        {"exit_code": 143},
        {"exit_code": 137},
        {"ago": exits.MISSED_WITHIN + 1.0},
        {"ago": -3600.0},
        {"restart_id": "r1"},
    ],
    ids=["completed", "SIGTERM", "SIGKILL", "long ago", "before the clock was set back", "restarted by an agent"],
)
async def test_member_that_may_not_have_failed_without_running_agent_is_not_reported(
    env: HubEnv, differently: dict[str, Any]
) -> None:
    await env.pods.put(builders.member(0))
    missed(env, **differently)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        await next_fault_is_of_the_other(env, stream)


@pytest.mark.parametrize("said", [pb.FaultAnswer.NOTHING, pb.FaultAnswer.ALONE])
async def test_answered_exit_is_not_reported_by_next_agent(
    env: HubEnv, said: "pb.FaultAnswer.Answer.ValueType"
) -> None:
    await env.pods.put(builders.member(0))
    missed(env)
    async with env.replica() as hub:
        async with env.running(env.agent(hub)):
            stream, _ = await hub.welcomed()
            reported = await stream.next("fault")
            await stream.say(answer=pb.FaultAnswer(fault_id=reported.id, answer=said))
            assert await env.handled.next() == {C}
        async with env.running(env.agent(hub)):
            stream, _ = await hub.welcomed()
            await next_fault_is_of_the_other(env, stream)


async def test_unanswered_exit_is_reported_by_next_agent(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    missed(env)
    async with env.replica() as hub:
        for _ in range(2):
            async with env.running(env.agent(hub)):
                stream, _hello = await hub.welcomed()
                assert (await stream.next("fault")).id == "exit:c"


async def test_exits_of_removed_containers_are_forgotten(env: HubEnv) -> None:
    env.handled.ids = frozenset(map(ContainerId, map(str, range(100))))
    await env.pods.put(builders.member(0))
    missed(env)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        reported = await stream.next("fault")
        await stream.say(answer=pb.FaultAnswer(fault_id=reported.id, answer=pb.FaultAnswer.NOTHING))
        assert await env.handled.next() == {C}


async def test_member_of_pod_that_is_over_is_not_reported(env: HubEnv) -> None:
    await env.pods.put(builders.member(0, phase="Failed"))
    env.events.run(builders.trainer(0), name="c", state=ContainerState.EXITED)
    env.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=1)
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=1)  # the event may come after the listing
        await next_fault_is_of_the_other(env, stream)


async def test_death_before_pod_is_listed_is_reported_then(env: HubEnv) -> None:
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.run(builders.trainer(0), name="c")
        env.events.exit(C, code=1)
        env.runtime.infos[C] = builders.info(C, of=builders.trainer(0), exit_code=1)
        await env.pods.put(builders.member(0))
        assert (await stream.next("fault")).id == "exit:c"


async def test_pod_without_gang_is_not_reported(env: HubEnv) -> None:
    await env.pods.put(builders.member(0, labels={}))
    env.events.run(builders.trainer(0), name="c")
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=1)
        await next_fault_is_of_the_other(env, stream)


async def test_fault_with_unknown_devices_is_reported_at_once(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")  # kubelet does not report the holders
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=1)
        assert (await stream.next("fault")).action_class == "None"  # no device has an active fault


@pytest.mark.parametrize("said", [pb.FaultAnswer.ALONE, pb.FaultAnswer.NOTHING])
async def test_kubelets_container_is_held_until_hub_answers(
    env: HubEnv, said: "pb.FaultAnswer.Answer.ValueType"
) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        await env.reports.until(ComponentState.READY)
        env.events.exit(C, code=1)
        reported = await stream.next("fault")
        assert [each.id for each in env.rounds.guards] == [C]
        assert not env.rounds.guards_over.is_set()
        await stream.say(answer=pb.FaultAnswer(fault_id=reported.id, answer=said))
        async with asyncio.timeout(SECONDS):
            await env.rounds.guards_over.wait()


async def test_kubelets_container_is_held_until_order_of_round(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        await env.reports.until(ComponentState.READY)
        env.events.exit(C, code=1)
        reported = await stream.next("fault")
        await stream.say(answer=pb.FaultAnswer(fault_id=reported.id, answer=pb.FaultAnswer.ROUND, round="team/r1"))
        await stream.say(sync=pb.Sync())
        await stream.next("hello")  # the answer has been received
        assert not env.rounds.guards_over.is_set()
        env.rounds.guards_taken.set()
        async with asyncio.timeout(SECONDS):
            await env.rounds.guards_over.wait()


async def test_kubelets_container_is_held_until_timeout(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    async with env.replica() as hub, env.running(env.agent(hub, answer_timeout=0.1)):
        stream, _ = await hub.welcomed()
        await env.reports.until(ComponentState.READY)
        env.events.exit(C, code=1)
        reported = await stream.next("fault")
        async with asyncio.timeout(SECONDS):
            await env.rounds.guards_over.wait()
        await stream.say(answer=pb.FaultAnswer(fault_id=reported.id, answer=pb.FaultAnswer.ROUND, round="team/r1"))
        await stream.say(sync=pb.Sync())
        await stream.next("hello")
        assert env.count("kubemend_hub_fault_answers_total", kind="Exit", answer="Round") == 1, (
            "the fault is reported nevertheless"
        )


async def test_kubelets_container_is_not_held_without_hub(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    hub = env.replica()
    async with hub:
        pass  # its port is known now, and no server listens there
    async with env.running(env.agent(hub)):
        await env.reports.until(ComponentState.DEGRADED)
        env.events.exit(C, code=1)
        async with hub:
            stream, _ = await hub.welcomed()
            assert (await stream.next("fault")).id == "exit:c"
    assert env.rounds.guards == []


async def test_force_deleted_pod_is_gone_after_its_last_container(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    env.events.run(builders.trainer(0), name="c")
    env.events.run(ContainerRef(builders.ref(0), "proxy"), name="proxy")
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        env.events.exit(C, code=1)
        await stream.next("fault")
        env.pods.drop(builders.ref(0).uid)
        await stream.say(sync=pb.Sync())
        assert (await stream.next("fault")).id == "exit:c", "a container of the pod still runs"
        env.events.exit(ContainerId("proxy"), code=0)
        await next_fault_is_of_the_other(env, stream)
        await stream.say(sync=pb.Sync())
        assert (await stream.next("fault")).id == "exit:other", "the pod is gone, and its fault with it"


async def test_internal_error_of_one_member_does_not_affect_others(
    env: HubEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_fault_reason = exits.no_fault_reason

    def asked(ended: exits.Exit, **more: Any) -> exits.NoFault | Reason | None:
        if ended.pod.ref == builders.ref(0):
            raise IndexError
        return no_fault_reason(ended, **more)

    monkeypatch.setattr(exits, "no_fault_reason", asked)
    for number in range(3):
        await env.pods.put(builders.member(number))
        env.events.run(builders.trainer(number), name=f"c{number}")
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        for number in range(3):
            env.events.exit(ContainerId(f"c{number}"), code=1)
        reported = [await stream.next("fault") for _ in range(2)]
    assert {each.id for each in reported} == {"exit:c1", "exit:c2"}
