"""Restarts in progress share the memory for configs: one that does not fit waits, or uses no copy of a config."""

import asyncio
from typing import Any

import pytest

from kubemend.agent.clients.cri import convert
from kubemend.agent.restart import intents
from kubemend.agent.restarts import config_shares, planning, replay, restart_plan, runtime_state
from kubemend.agent.restarts.config_shares import ConfigShare, NoRoomError
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.slots import Slots
from kubemend.agent.restarts.verifier import Timeouts
from tests import eventually
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET


def test_one_heavy_config_always_has_room_next_to_those_of_another_namespace() -> None:
    room = Slots(config_shares.MOST)
    assert room.try_acquire("a", room.of_one)
    assert room.try_acquire("b", convert.HEAVIEST)


def test_namespace_that_keeps_none_has_room_beside_the_heaviest_of_several_others() -> None:
    room = config_shares.room()
    assert room.try_acquire("a", room.of_one)
    assert room.try_acquire("b", convert.HEAVIEST)
    with ConfigShare(room, "c", waits=True) as share:
        assert share.admit(config_shares.ORDINARY) == ""
        with pytest.raises(NoRoomError):
            share.admit(1)
    with pytest.raises(NoRoomError):
        ConfigShare(room, "d", waits=True).admit(config_shares.ORDINARY + 1)


def test_share_counts_all_configs_of_a_restart_and_gives_them_back() -> None:
    room = Slots(100)
    room.try_acquire("a", 6)
    with ConfigShare(room, "a", waits=True) as share:
        assert [share.admit(40), share.admit(40)] == ["", ""]
        with pytest.raises(NoRoomError) as refused:
            share.admit(5)
        assert refused.value.needed == 85
        assert room.is_full("a", 8)
    assert not room.is_full("a", 82)


@pytest.mark.parametrize(("waits", "weight"), [(False, 20), (True, 89)], ids=["of a round", "more than there is"])
def test_share_refuses_what_would_never_fit_or_may_not_wait(*, waits: bool, weight: int) -> None:
    room = Slots(100)
    room.try_acquire("a", 70)
    assert ConfigShare(room, "a", waits=waits).admit(weight).startswith("ConfigTooLarge: ")
    assert not room.is_full("a", 18)


async def test_wait_holds_what_the_next_reading_needs() -> None:
    room = Slots(100)
    room.try_acquire("a", 80)
    share = ConfigShare(room, "a", waits=True)
    waiting = asyncio.create_task(share.wait(30))
    await asyncio.sleep(0)
    assert not waiting.done()
    room.release("a", 80)
    await waiting
    room.try_acquire("a", 58)
    with share:
        assert share.admit(30) == ""


async def test_slots_given_back_serve_all_that_fit_in_turn() -> None:
    room, served = Slots(100), []

    async def take(name: str, namespace: str, count: int) -> None:
        await room.acquire(namespace, goes_on=False, count=count)
        served.append(name)

    room.try_acquire("a", 60)
    room.try_acquire("b", 40)
    wanted = [("a heavy", "a", 80), ("a light", "a", 5), ("b light", "b", 10), ("c light", "c", 10)]
    tasks = [asyncio.create_task(take(*each)) for each in wanted]
    await asyncio.sleep(0)
    room.release("b", 40)
    await asyncio.sleep(0)
    assert served == ["b light", "c light"]
    tasks[0].cancel()
    await asyncio.wait(tasks)
    assert served == ["b light", "c light", "a light"], "it waited behind the heavy one of its namespace"


async def test_restart_without_room_waits_and_holds_neither_pod_nor_slot(env: RestartEnv) -> None:
    room = env.restarts._configs
    room.try_acquire(POD.namespace, room.of_one)
    restart = asyncio.create_task(env.ask())
    await eventually.true(lambda: bool(room._queues))
    assert not env.restarts._locks.is_locked(POD.uid)
    assert not env.restarts._slots._held
    assert "StopContainer" not in env.pod.cri_env.server.called()
    room.release(POD.namespace, room.of_one)
    condition = await restart
    assert condition.message.endswith("; verified")
    assert not room._held


async def test_restart_holds_its_share_to_its_end(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, seen = env.pod.cri_env.cri.stop_container, []

    async def stopping(container_id: Any, *, grace: float) -> None:
        seen.append(env.restarts._configs._held[POD.namespace])
        await stop(container_id, grace=grace)

    monkeypatch.setattr(env.pod.cri_env.cri, "stop_container", stopping)
    await env.ask()
    info = await env.pod.cri_env.cri.container_status(env.pod.cri_env.old)
    assert seen[0] > info.weight > 0
    assert not env.restarts._configs._held


async def test_status_of_member_without_room_has_no_config(env: RestartEnv) -> None:
    with ConfigShare(Slots(100), "a", waits=False) as share:
        for _ in range(2):  # the first answer is not cached
            found = await runtime_state.find(env.dependencies.runtime, TARGET, admit=share.admit)
            assert found is not None
            assert found.info.config is None
            assert "ConfigTooLarge" in str(found.facts(now=NOW).not_cloneable)
    found = await runtime_state.find(env.dependencies.runtime, TARGET)
    assert found is not None
    assert found.info.config is not None


async def test_resumed_member_without_room_copies_nothing(env: RestartEnv) -> None:
    intent = env.pod.cri_env.intent(created_at=NOW)
    with ConfigShare(Slots(100), "a", waits=False) as share:
        plan = await planning.resume(env.dependencies, intent, admit=share.admit)
    assert plan == planning.bare(intent)


async def test_recovery_replays_what_does_not_fit_one_after_another(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: set[str] = set()
    at_once: list[int] = []
    resume, conclude = planning.resume, Recovery._conclude

    async def resuming(
        dependencies: Dependencies, intent: intents.AnyIntent, **options: Any
    ) -> restart_plan.RestartPlan:
        plan = await resume(dependencies, intent, **options)
        kept.add(intent.id)
        at_once.append(len(kept))
        return plan

    async def concluding(recovery: Recovery, resumed: replay.Resumed) -> None:
        await conclude(recovery, resumed)
        kept.remove(resumed.intent.id)

    weights = []
    for name in ("trainer", "logger", "shipper"):
        target = TARGET.__class__(pod=POD, name=name)
        await env.store.begin(env.pod.cri_env.intent(created_at=NOW, id=name, target=target, old=env.pod.old[name]))
        await env.pod.cri_env.cri.stop_container(env.pod.old[name], grace=0)
        with ConfigShare(Slots(2**30), "", waits=True) as share:
            await planning.resume(
                env.dependencies, env.pod.cri_env.intent(target=target, old=env.pod.old[name]), admit=share.admit
            )
            weights.append(share._held)
    timeouts = Timeouts(kubelet=0.01, pod=0.01)
    recovery = Recovery(dependencies=env.dependencies, store=env.store, now=lambda: NOW, timeouts=timeouts)
    recovery._configs = Slots(int(max(weights) * 1.5))
    monkeypatch.setattr(planning, "resume", resuming)
    monkeypatch.setattr(Recovery, "_conclude", concluding)
    assert await recovery.run() == 3
    assert at_once == [1, 1, 1]
    assert await env.store.unfinished() == ()
    assert {name for name, found in (await env.pod.running()).items() if found} >= {"trainer", "logger", "shipper"}
