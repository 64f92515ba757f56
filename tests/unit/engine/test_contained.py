"""What fails about one pod or device ends that one's work: the others' restarts still happen."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agent.actuator.swap import _SwapRun
from agent.engine import preparing
from agent.engine.hangs import Hangs
from agent.engine.members import INTERNAL
from agent.engine.publishing import Publisher
from agent.engine.recovery import Recovery
from agent.engine.restarts import Request
from agent.history.store import Store
from agent.model import conditions
from agent.model.conditions import Condition, ConditionStatus
from agent.model.hangs import Hang
from agent.model.rounds import Phase
from agent.model.workloads import ContainerId, ContainerRef, PodRef, RestartPolicy
from common import contained
from common.contained import Part
from tests import eventually
from tests.fakes import outside
from tests.unit.actuator.conftest import POD, rig
from tests.unit.engine import test_engine, test_recovery, test_restarts, test_rounds
from tests.unit.engine.test_engine import MONITOR, TRAINER, stopped_world, xid
from tests.unit.engine.test_engine import world as findings

__all__ = ["findings", "restarting", "rig", "rounds", "stopped_world"]

restarting = test_restarts.world
rounds = test_rounds.world

SECOND = ContainerRef(replace(POD, name="trainer-1", uid="uid-of-the-second"), "trainer")  # type: ignore[arg-type]


def broken(*_: object, **__: object) -> Any:
    raise IndexError("a defect")


# ---- findings ----


async def test_a_finding_that_cannot_be_taken_in_leaves_the_others(
    findings: test_engine.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = findings.faults.named_container
    before = contained.count([Part.FINDING])

    def named_container(finding: Any, facts: Any) -> Any:
        return broken() if finding.pid == 666 else named(finding, facts)

    monkeypatch.setattr(findings.faults, "named_container", named_container)
    findings.engine.submit(xid(pid=666))
    findings.engine.submit(xid(pid=4242))
    assert (await findings.restarted(within=60)).target == TRAINER
    assert contained.count([Part.FINDING]) == before + 1
    await eventually.true(lambda: findings.engine.idle)


async def test_a_fault_that_cannot_be_mended_leaves_the_others_and_has_an_end(
    findings: test_engine.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attribute = findings.faults._attribute

    async def attributed(noted: Any) -> Any:
        return broken() if noted.finding.code == "13" else await attribute(noted)

    monkeypatch.setattr(findings.faults, "_attribute", attributed)
    old = findings.events.run(TRAINER, name="trainer-0", created_at=1)
    findings.holders.hold(TRAINER)
    findings.engine.submit(xid(13, pid=4242))
    findings.engine.submit(xid(31, pid=4242))
    request = await findings.restarted(within=60)
    assert (request.target, request.cause().code) == (TRAINER, "Xid31")
    findings.events.stop(old)
    await findings.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)
    await eventually.true(lambda: findings.engine.idle)


async def test_of_two_that_a_fault_hit_the_second_is_restarted_though_the_first_cannot_be(
    findings: test_engine.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = findings.restarts.handle

    async def handled(request: Request) -> None:
        if request.target == TRAINER and not asked:
            asked.append(request)
            broken()
        await handle(request)

    asked: list[Request] = []
    monkeypatch.setattr(findings.restarts, "handle", handled)
    findings.engine.submit(xid(31, pid=4242))
    findings.engine.submit(xid(13, pid=4242))
    assert (await findings.restarted(within=60)).target == TRAINER
    assert len(asked) == 1


async def test_a_pod_that_cannot_be_told_of_leaves_the_others(findings: test_engine.World) -> None:
    class Reporter(outside.Conditions):
        def set(self, pod: PodRef, condition: Condition) -> None:
            if pod == MONITOR.pod:
                broken()
            super().set(pod, condition)

    said = Reporter()
    findings.holders.hold(MONITOR, TRAINER)
    publisher = Publisher(
        ledger=findings.ledger,
        pods=findings.pods,
        devices=findings.devices,
        holders=findings.holders,
        reporter=said,
    )
    publisher.publish(findings.holders.allocations)
    assert (TRAINER.pod, conditions.DEVICES_HEALTHY) in said.said


async def test_a_hang_that_cannot_be_mended_leaves_the_others(
    findings: test_engine.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = findings.restarts.handle

    async def handled(request: Request) -> None:
        if request.target == MONITOR:
            broken()
        await handle(request)

    monkeypatch.setattr(findings.restarts, "handle", handled)
    hangs = Hangs(
        ledger=findings.ledger,
        devices=findings.devices,
        holders=findings.holders,
        reporter=findings.said,
        metrics=findings.metrics,
    )

    async def still(_: ContainerId) -> str:
        return ""

    running = asyncio.create_task(hangs.run(restarts=findings.restarts, still_hung=still))  # type: ignore[arg-type]
    for ref in (MONITOR, TRAINER):
        hangs.hung(
            Hang(
                target=ref,
                container_id=ContainerId(ref.name),
                file="/beat",
                silent=10.0,
                timeout=5.0,
                threads=(),
                doing="",
                observed_at=1.0,
            )
        )
    assert (await findings.restarted(within=60)).target == TRAINER
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# ---- restarts ----


async def test_a_restart_that_fails_half_way_is_closed_told_and_gives_back_what_it_had(
    restarting: test_restarts.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contained.count([Part.RESTART])
    with monkeypatch.context() as patched:
        patched.setattr(_SwapRun, "make", broken)
        condition = await restarting.ask()
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "Failed")
    assert "a defect of ours (IndexError in engine/test_contained.py:" in condition.message
    assert contained.count([Part.RESTART]) == before + 1
    assert await restarting.store.unfinished() == ()
    assert restarting.restarts.quiet.is_set()
    assert not restarting.restarts._locks.is_taken(POD.uid)
    assert not restarting.restarts._slots._held


async def test_what_stood_still_for_its_successor_goes_on_when_that_cannot_be_made(
    restarting: test_restarts.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order create, stop, start: the old one is frozen before the successor is made, and runs on in the end."""
    pod = restarting.pod.pods.pods()[POD.uid]
    await restarting.pod.pods.put(replace(pod, restart_policy=RestartPolicy.NEVER))
    made = []

    async def make(run: _SwapRun, *_: object, **__: object) -> None:
        await run._freeze_old()
        made.append(run)
        broken()

    with monkeypatch.context() as patched:
        patched.setattr(_SwapRun, "make", make)
        condition = await restarting.ask(containers="trainer")
    assert condition.reason == "Failed", condition
    assert made, "it was begun"
    assert restarting.pod.rig.standbys is not None
    assert restarting.pod.rig.standbys.story[:1] == ["frozen"]
    assert restarting.pod.rig.standbys.story[-1] == "thawed"
    assert (await restarting.pod.running())["trainer"] == [restarting.pod.old["trainer"]]
    assert await restarting.store.unfinished() == ()


async def test_a_restart_that_cannot_be_decided_is_told_and_the_next_one_of_the_pod_works(
    restarting: test_restarts.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(restarting.outside.owners, "facts", broken)
        condition = await restarting.ask()
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, INTERNAL)
    assert (await restarting.ask()).status is ConditionStatus.TRUE


async def test_a_restart_whose_cause_cannot_be_told_ends_alone(restarting: test_restarts.World) -> None:
    for _ in range(20):  # more than there are slots
        await restarting.restarts.handle(Request(target=SECOND, cause=broken, devices=frozenset()))
    assert restarting.said.said[SECOND.pod, conditions.IN_PLACE_RESTART].reason == INTERNAL
    assert (await restarting.ask()).status is ConditionStatus.TRUE


async def test_a_restart_that_cannot_be_verified_is_closed(
    restarting: test_restarts.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarting.restarts._performer._aftermath, "settle", broken)
    await restarting.ask()
    assert await restarting.store.unfinished() == ()
    (running,) = (await restarting.pod.running())["trainer"]
    assert running != restarting.pod.old["trainer"]


# ---- the journal's replay ----


async def test_an_intent_whose_replay_fails_is_taken_back_and_the_others_are_replayed(
    restarting: test_restarts.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await test_recovery.killed_after_the_stop(restarting)
    bad = restarting.pod.rig.intent(created_at=test_restarts.NOW, id="bad", target=SECOND)
    await restarting.store.begin(bad)
    resume = preparing.resume

    async def resumed(everything: Any, intent: Any) -> Any:
        return broken() if intent.id == "bad" else await resume(everything, intent)

    monkeypatch.setattr(preparing, "resume", resumed)
    assert await test_recovery.recovery(restarting, patience=0.0).run() == 2
    assert await restarting.store.unfinished() == ()
    (running,) = await restarting.pod.rig.running()
    assert running.restart_id == "r1"
    assert restarting.said.said[SECOND.pod, conditions.IN_PLACE_RESTART].reason == INTERNAL


async def failing_replay(world: test_restarts.World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither can the second pod's intent be replayed nor taken back."""
    resume, carry_out = preparing.resume, world.outside.actuators.swap.carry_out

    async def resumed(everything: Any, intent: Any) -> Any:
        return broken() if intent.target == SECOND else await resume(everything, intent)

    async def carried_out(intent: Any, **more: Any) -> Any:
        return broken() if intent.target == SECOND else await carry_out(intent, **more)

    monkeypatch.setattr(preparing, "resume", resumed)
    monkeypatch.setattr(world.outside.actuators.swap, "carry_out", carried_out)
    await world.store.begin(world.pod.rig.intent(created_at=test_restarts.NOW, id="bad", target=SECOND))


def replay(world: test_restarts.World) -> Recovery:
    return test_recovery.recovery(world, patience=0.0)


async def test_an_intent_whose_replay_has_failed_twice_is_quarantined_told_and_left_alone(
    restarting: test_restarts.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failing_replay(restarting, monkeypatch)
    await replay(restarting).run()
    assert [intent.id for intent in await restarting.store.unfinished()] == ["bad"], "once is not enough"
    await test_recovery.killed_after_the_stop(restarting)
    await replay(restarting).run()
    assert await restarting.store.unfinished() == ()
    assert await restarting.store.quarantined() == {"bad"}
    told = restarting.said.said[SECOND.pod, conditions.IN_PLACE_RESTART]
    assert (told.status, told.reason) == (ConditionStatus.FALSE, INTERNAL)
    assert "quarantined in the journal" in told.message
    (running,) = await restarting.pod.rig.running()
    assert running.restart_id == "r1", "the other one was replayed"
    before = contained.count([Part.REPLAY])
    assert await replay(restarting).run() == 0
    assert contained.count([Part.REPLAY]) == before


async def test_a_death_between_the_count_and_the_replay_costs_no_intent_its_replay(
    restarting: test_restarts.World,
) -> None:
    await test_recovery.killed_after_the_stop(restarting)
    for _ in range(2):  # two agents die right there
        assert await restarting.store.replay_begins("r1")
    assert await replay(restarting).run() == 1
    assert await restarting.store.unfinished() == ()
    assert await restarting.store.quarantined() == frozenset()


async def test_an_intent_at_which_agents_die_again_and_again_is_quarantined_untried(
    restarting: test_restarts.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await test_recovery.killed_after_the_stop(restarting)
    for _ in range(5):
        assert await restarting.store.replay_begins("r1")
    tried = []
    monkeypatch.setattr(preparing, "resume", lambda *_: tried.append(True))
    before = contained.count([Part.REPLAY])
    await replay(restarting).run()
    assert await restarting.store.quarantined() == {"r1"}
    assert tried == []
    assert contained.count([Part.REPLAY]) == before + 1


async def test_a_runtime_that_is_away_counts_against_no_intent(restarting: test_restarts.World, tmp_path: Any) -> None:
    store = await Store.open(tmp_path / "another.db")
    intent = restarting.pod.rig.intent(created_at=test_restarts.NOW)
    await store.begin(intent)
    for _ in range(20):
        assert await store.replay_begins(intent.id)
        assert not await store.replay_ended(intent.id, failed=False)
    await store.close()


# ---- rounds ----


async def test_a_member_that_cannot_be_restarted_is_told_so_and_let_go(
    rounds: test_rounds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(rounds.rounds._orders, "selection", broken)
        told = rounds.order()
        failed = await told.next()
    assert (failed.phase, failed.reason) == (Phase.FAILED, INTERNAL)
    rounds.rounds.abort("default/gang-1", [POD.uid], reason="it has failed")
    await eventually.true(lambda: not rounds.rounds.busy(POD.uid))
    again = rounds.order(round="default/gang-2")
    assert (await again.next()).phase is Phase.STOPPED
    rounds.rounds.release("default/gang-2", [])
    assert (await again.next()).phase is Phase.RUNNING


async def test_a_member_whose_restart_fails_half_way_is_told_so_and_nothing_stays_frozen(
    rounds: test_rounds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(_SwapRun, "make", broken)
        told = rounds.order()
        failed = await told.next()
    assert failed.phase is Phase.FAILED
    rounds.rounds.abort("default/gang-1", [POD.uid], reason="it has failed")
    await eventually.true(lambda: not rounds.rounds.busy(POD.uid))
    assert rounds.freezer.still() == set()

    async def closed() -> bool:
        return await rounds.store.unfinished() == ()

    await eventually.true(closed)


async def test_an_order_that_cannot_even_be_taken_on_is_answered(
    rounds: test_rounds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(rounds.rounds, "_pod", broken)
        told = rounds.order()
        failed = await told.next()
    assert (failed.phase, failed.reason) == (Phase.FAILED, INTERNAL)
    assert "IndexError" in failed.detail


async def test_of_what_is_held_the_others_are_let_go_though_one_cannot_be(
    rounds: test_rounds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = rounds.order()
    assert (await told.next()).phase is Phase.STOPPED
    newest, thaw = await rounds.newest(), rounds.freezer.thaw
    with monkeypatch.context() as patched:
        patched.setattr(rounds.freezer, "thaw", lambda each: broken() if each == newest["trainer"] else thaw(each))
        rounds.rounds.release("default/gang-1", [POD.uid])
        await eventually.true(lambda: rounds.freezer.still() == {newest["trainer"]})
    thaw(newest["trainer"])


async def test_a_record_that_cannot_be_taken_up_keeps_the_next_agent_from_nothing(
    rounds: test_rounds.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = rounds.order()
    assert (await told.next()).phase is Phase.STOPPED
    await rounds.die()
    monkeypatch.setattr(type(rounds.rounds), "_take_up", broken)
    await rounds.start()
    assert rounds.freezer.still() == set(), "what nobody takes up is let go"
