"""One gang's worker: it loses no fault that it has answered, and holds nothing longer than it reported."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator import round_report
from kubemend.controller.coordinator.coordinator import GangCoordinator
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.coordinator.gang_worker import GangWorker
from kubemend.controller.decisions import cases, table
from kubemend.controller.decisions.facts import Decision, Facts, Kind, Reason, Roster
from kubemend.controller.model.faults import Fault
from kubemend.controller.model.members import PodPhase
from kubemend.controller.restarts.objects import RestartSpec
from kubemend.controller.restarts.pod_replacer import Outcome
from kubemend.controller.rounds.states import MemberPhase, Round
from kubemend.controller.watches.members import MemberChangeKind
from tests import eventually
from tests.unit.controller import builders
from tests.unit.controller.coordinator.env import CoordinatorEnv
from tests.unit.controller.coordinator.test_coordinator import request, stopped

Result = pb.StepResult


def one_pending() -> CoordinatorEnv:
    """Return two members that run, and a third that has not started."""
    return CoordinatorEnv([*builders.gang(2), builders.member(2, phase=PodPhase.PENDING)])


async def released(env: CoordinatorEnv, coordinator: GangCoordinator, *, members: int, fault_id: str = "f") -> str:
    """Restart the gang up to the release, which the first member has answered; return the round."""
    env.fails(coordinator, 0, fault_id=fault_id)
    round_id = await stopped(env, members=members)
    for index in range(members):
        env.stands(coordinator, index, round_id, pb.StepResult.STOPPED)
    for index in range(members):
        await env.agent(index).received("release")
    env.stands(coordinator, 0, round_id, Result.RUNNING)
    return round_id


async def answer(env: CoordinatorEnv, index: int, fault_id: str) -> pb.FaultAnswer:
    """Return the next answer to this fault."""
    while True:
        found = (await env.agent(index).received("answer")).answer
        if found.fault_id == fault_id:
            return found


def worker(coordinator: GangCoordinator) -> GangWorker:
    return coordinator._workers[builders.GANG]


async def test_decision_reads_the_objects_of_its_own_gang_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand gangs may fail at once: reading all objects for each kept the leader from renewing its Lease."""
    env = CoordinatorEnv(builders.gang(2))
    monkeypatch.setattr(env.restarts, "restarts", lambda: pytest.fail("the objects of all gangs are read"))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        await stopped(env, members=2)


async def test_round_that_is_given_up_while_it_is_written_does_not_look_under_way() -> None:
    env = CoordinatorEnv(builders.gang(2))
    env.restarts.may_create.clear()
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        await env.restarts.creating.wait()
        worker(coordinator).give_up()  # as after an internal error
        assert (await env.agent(0).received("answer")).answer.reason == "Internal"
        env.restarts.may_create.set()
        await worker(coordinator).wait_idle()
        (restart,) = env.restarts.all.values()
        assert restart.status["phase"] == "Failed"
        env.restarts.creating.clear()
        env.fails(coordinator, 1, fault_id="later")
        assert await stopped(env, members=2) == "team/train-2"


async def test_pods_of_a_round_that_is_over_are_deleted_no_more() -> None:
    """The API server may have been away, and thousands of deletions take their time."""
    env = CoordinatorEnv(builders.gang(3))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0, device="GPU-1", action_class="Replace")
        assert (await env.agent(1).received("stop")).stop.round == "team/train-1"
        await eventually.true(lambda: [each.pod for each in env.replaced.wanted] == [builders.member(0).pod])
        assert env.replaced.forgotten == []
        env.restarts.deleted("team/train-1")  # a user cancels the round
        await env.agent(1).received("abort")
        assert env.replaced.forgotten == [builders.member(0).pod.uid]


async def test_failed_pod_whose_index_its_job_has_given_up_is_neither_deleted_nor_awaited() -> None:
    lost = builders.member(2, phase=PodPhase.FAILED)
    env = CoordinatorEnv([*builders.gang(2), lost])
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        for index in (0, 1):
            round_id = (await env.agent(index).received("stop")).stop.round
            env.stands(coordinator, index, round_id, pb.StepResult.STOPPED)
        assert [each.pod for each in env.replaced.wanted] == [lost.pod]
        coordinator.replaced(lost.pod, Outcome.GIVEN_UP, "its Job runs its index no more")
        for index in (0, 1):
            await env.agent(index).received("release")
            env.stands(coordinator, index, round_id, pb.StepResult.RUNNING)
        await eventually.true(lambda: env.restarts.all[round_id].is_finished)
        assert env.restarts.statuses[round_id]["phase"] == "Done"


def a_job(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": builders.OWNER.name, "uid": builders.OWNER.uid}, "spec": spec}


@pytest.mark.parametrize(
    "job",
    [a_job(completions=2), a_job(completions=3, parallelism=2), a_job(suspend=True), None],
    ids=["smaller", "narrower", "suspended", "deleted"],
)
async def test_member_that_its_job_replaces_no_more_is_not_awaited(job: dict[str, Any] | None) -> None:
    """The others were held for a minute, and the round ended as degraded five minutes later."""
    env = CoordinatorEnv(builders.gang(3))
    if job is not None:
        env.replaced.jobs["train"] = job
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        round_id = await stopped(env, members=3)
        for index in (0, 1):
            env.stands(coordinator, index, round_id, pb.StepResult.STOPPED)
        env.members.gone(builders.member(2).pod.uid)
        for index in (0, 1):
            await env.agent(index).received("release")
            env.stands(coordinator, index, round_id, pb.StepResult.RUNNING)
        await eventually.true(lambda: env.restarts.all[round_id].is_finished)
        assert env.restarts.statuses[round_id]["phase"] == "Done"
        assert env.restarts.statuses[round_id]["members"]["total"] == 2


async def test_members_that_are_gone_together_are_asked_about_once() -> None:
    env = CoordinatorEnv(builders.gang(4))
    env.replaced.jobs["train"] = a_job(completions=4)
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        await stopped(env, members=4)
        for index in (1, 2, 3):
            env.members.gone(builders.member(index).pod.uid)
        runner = coordinator._workers[builders.GANG].runner
        assert runner is not None
        await eventually.true(lambda: len(runner.round.awaited) == 3)
        await eventually.true(lambda: not coordinator._workers[builders.GANG]._asked)
        assert env.replaced.read == ["train"]


# ---- faults during a round ----


async def test_pending_member_that_fails_after_release_gets_next_round() -> None:
    env = one_pending()
    async with env.leading() as coordinator:
        first = await released(env, coordinator, members=2)
        env.members.appears(builders.member(2))
        env.fails(coordinator, 2, fault_id="late")
        assert (await answer(env, 2, "late")).round == first
        env.stands(coordinator, 1, first, Result.RUNNING)
        assert await stopped(env) == "team/train-2"
        assert env.restarts.statuses[first]["phase"] == "Done"
        trigger = env.restarts.all["team/train-2"].status["trigger"]
        assert (trigger["kind"], trigger["member"]) == ("Exit", builders.member(2).pod.name)


async def test_new_member_that_fails_after_release_gets_next_round() -> None:
    env = CoordinatorEnv(builders.gang(3))
    newcomer = builders.member(2)
    del env.members.all[newcomer.pod.uid]
    async with env.leading() as coordinator:
        first = await released(env, coordinator, members=2)
        env.members.appears(newcomer)
        env.fails(coordinator, 2, fault_id="late")
        env.stands(coordinator, 1, first, Result.RUNNING)
        assert await stopped(env) == "team/train-2"


async def test_fault_of_unknown_member_may_arrive_after_round() -> None:
    env = one_pending()
    async with env.leading() as coordinator:
        first = await released(env, coordinator, members=2)
        runner = worker(coordinator).runner
        assert runner is not None
        started_at = runner.round.started_at
        env.stands(coordinator, 1, first, Result.RUNNING)
        await eventually.true(lambda: worker(coordinator).is_idle)
        env.members.appears(builders.member(2))
        env.fails(coordinator, 2, fault_id="late", age=env.now() - started_at)
        assert (await answer(env, 2, "late")).round == "team/train-2"


async def test_fault_decided_after_round_is_the_reported_one() -> None:
    annotations = {**builders.OPTED_IN, "kubemend.io/fatal-exit-codes": "42"}
    env = CoordinatorEnv([builders.member(index, annotations=annotations) for index in range(2)])
    async with env.leading() as coordinator:
        first = await released(env, coordinator, members=2)
        env.fails(coordinator, 0, fault_id="fatal", exit_code=42)
        assert (await answer(env, 0, "fatal")).round == first
        env.stands(coordinator, 1, first, Result.RUNNING)
        found = await answer(env, 0, "fatal")
        assert (found.answer, found.reason) == (pb.FaultAnswer.NOTHING, "FatalExitCode")
        assert [*env.restarts.all] == [first]


async def test_refusal_after_round_does_not_refuse_the_others() -> None:
    annotations = {**builders.OPTED_IN, "kubemend.io/fatal-exit-codes": "42"}
    env = CoordinatorEnv([builders.member(index, annotations=annotations) for index in range(2)])
    async with env.leading() as coordinator:
        first = await released(env, coordinator, members=2)
        env.fails(coordinator, 0, fault_id="fatal", exit_code=42)
        env.stands(coordinator, 1, first, Result.RUNNING)
        env.fails(coordinator, 1, fault_id="mendable")
        assert await stopped(env, members=2) == "team/train-2"
        assert env.restarts.all["team/train-2"].status["trigger"]["member"] == builders.member(1).pod.name


async def test_all_faults_after_release_join_next_round() -> None:
    env = CoordinatorEnv(builders.gang(2))
    async with env.leading() as coordinator:
        first = await released(env, coordinator, members=2)
        env.fails(coordinator, 0, fault_id="first")
        env.stands(coordinator, 1, first, Result.RUNNING)
        env.fails(coordinator, 1, fault_id="second", action_class="Replace")
        assert (await env.agent(0).received("stop")).stop.round == "team/train-2"
        await eventually.true(lambda: [each.pod for each in env.replaced.wanted] == [builders.member(1).pod])
        assert len(env.restarts.all) == 2


@pytest.mark.parametrize("moment", ["before", "during", "after"])
async def test_fault_of_a_container_that_a_request_does_not_name_gets_a_round_of_its_own(moment: str) -> None:
    """Else the member's program, which has ended, would wait for others that do not know of that."""
    env = CoordinatorEnv([replace(each, targets=frozenset({"trainer"})) for each in builders.gang(2)])
    async with env.leading() as coordinator:
        if moment == "before":  # it waits: its gang has died young three times
            for number in range(3):
                first = await released(env, coordinator, members=2, fault_id=f"young {number}")
                env.stands(coordinator, 1, first, Result.RUNNING)
                await eventually.true(lambda: worker(coordinator).is_idle)
            env.fails(coordinator, 0, fault_id="trainer")
            assert (await answer(env, 0, "trainer")).reason
        env.restarts.asked(request(RestartSpec(gang=builders.GANG, containers=("shipper",))))
        asked = await stopped(env, members=2)
        if moment == "during":
            env.fails(coordinator, 0, fault_id="trainer")
            assert (await answer(env, 0, "trainer")).round == "team/please"
            env.fails(coordinator, 1, fault_id="shipper", container="shipper")
        runner = worker(coordinator).runner
        assert runner is not None
        began = runner.round.started_at
        for index in range(2):
            env.stands(coordinator, index, asked, Result.STOPPED)
        for index in range(2):
            await env.agent(index).received("release")
            env.stands(coordinator, index, asked, Result.RUNNING)
        if moment == "after":
            await eventually.true(lambda: worker(coordinator).is_idle)
            env.fails(coordinator, 0, fault_id="trainer", age=env.now() - began)
        if moment == "before":
            await eventually.true(lambda: bool(worker(coordinator)._queue) and worker(coordinator).runner is None)
            (held,) = worker(coordinator)._queue._waiting
            assert isinstance(held.cause, Fault)
            assert held.cause.id == "trainer"
        else:
            assert await stopped(env, members=2) == "team/train-2"
            trigger = env.restarts.all["team/train-2"].status["trigger"]
            assert (trigger["kind"], trigger["member"]) == ("Exit", builders.member(0).pod.name)


async def test_queued_request_runs_though_fault_after_round_is_gone() -> None:
    env = CoordinatorEnv(builders.gang(3))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        first = await stopped(env)
        env.restarts.asked(request(RestartSpec(gang=builders.GANG)))
        await eventually.true(lambda: not worker(coordinator)._deciding)
        env.stands(coordinator, 0, first, Result.SELF_RELEASED)
        env.members.gone(builders.member(0).pod.uid)
        assert (await env.agent(1).received("stop")).stop.round == "team/please.uid-plea"


async def test_queued_request_runs_though_end_of_round_was_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    env = CoordinatorEnv(builders.gang(2))
    as_usual = round_report.report_end

    def broken(ended: Round, *, dependencies: Dependencies) -> None:
        if ended.ref.name == "train-1":
            raise OverflowError
        as_usual(ended, dependencies=dependencies)

    monkeypatch.setattr(round_report, "report_end", broken)
    async with env.leading() as coordinator:
        first = await released(env, coordinator, members=2)
        env.restarts.asked(request(RestartSpec(gang=builders.GANG)))
        env.stands(coordinator, 1, first, Result.RUNNING)
        assert await stopped(env, members=2) == "team/please.uid-plea"


async def test_gang_restarts_without_member_that_left_during_round() -> None:
    env = CoordinatorEnv(builders.gang(3))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        first = await stopped(env)
        env.members.gone(builders.member(2).pod.uid, kind=MemberChangeKind.LEFT)
        assert (await env.agent(2).received("abort")).abort.round == first
        assert await stopped(env, members=2) == "team/train-2"
        assert env.restarts.statuses[first]["phase"] == "Failed"
        assert env.replaced.wanted == []


async def test_fault_during_a_requested_round_that_ends_because_a_member_left_is_decided_on() -> None:
    env = CoordinatorEnv(builders.gang(3))
    async with env.leading() as coordinator:
        env.restarts.asked(request(RestartSpec(gang=builders.GANG)))
        asked = await stopped(env)
        env.fails(coordinator, 0, fault_id="trainer")
        assert (await answer(env, 0, "trainer")).round == "team/please"
        env.members.gone(builders.member(2).pod.uid, kind=MemberChangeKind.LEFT)
        assert (await env.agent(1).received("abort")).abort.round == asked
        assert await stopped(env, members=2) == "team/train-2"


async def test_fault_of_a_device_recreates_its_member_again_after_another_left() -> None:
    env = CoordinatorEnv(builders.gang(4))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0, device="GPU-1", action_class="Replace")
        assert (await env.agent(1).received("stop")).stop.round == "team/train-1"
        env.members.gone(builders.member(3).pod.uid, kind=MemberChangeKind.LEFT)
        assert (await env.agent(1).received("stop")).stop.round == "team/train-2"
        first, second = (env.restarts.all[f"team/train-{attempt}"].status for attempt in (1, 2))
        assert first["phase"] == "Failed"
        assert second["decision"]["kind"] == first["decision"]["kind"] == "InPlaceAndRecreate"
        assert second["trigger"]["time"] == first["trigger"]["time"]
        assert {each.pod for each in env.replaced.wanted} == {builders.member(0).pod}


async def test_round_takes_a_limited_number_of_faults_of_one_pod() -> None:
    env = CoordinatorEnv(builders.gang(2))
    async with env.leading() as coordinator:
        first = await released(env, coordinator, members=2)
        for number in range(200):
            env.fails(coordinator, 0, fault_id=f"fault {number}", age=number / 10)
            assert (await answer(env, 0, f"fault {number}")).round == first
        assert len(worker(coordinator)._joined) == 64
        env.fails(coordinator, 1, fault_id="of the other")
        assert len(worker(coordinator)._joined) == 65


async def test_member_that_ends_after_the_release_is_restarted_however_many_faults_its_device_had_before() -> None:
    env = CoordinatorEnv(builders.gang(2))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        first = await stopped(env, members=2)
        for number in range(100):
            env.fails(coordinator, 1, fault_id=f"Xid {number}")
            assert (await answer(env, 1, f"Xid {number}")).round == first
        for index in range(2):
            env.stands(coordinator, index, first, Result.STOPPED)
        for index in range(2):
            await env.agent(index).received("release")
        env.fails(coordinator, 1, fault_id="after the release")
        for index in range(2):
            env.stands(coordinator, index, first, Result.RUNNING)
        assert await stopped(env, members=2) == "team/train-2"


# ---- holds ----


async def test_timed_hold_ends_despite_an_untimed_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    env, may_begin = CoordinatorEnv(builders.gang(3)), False
    as_usual = table.decide

    def decide(facts: Facts, *, now: float) -> Decision:
        assert isinstance(facts.cause, Fault)
        if facts.cause.id == "held" and not may_begin:
            return Decision(Kind.POSTPONE, Reason.BACKOFF, retry_at=now + 0.05)
        return as_usual(facts, now=now)

    monkeypatch.setattr(table, "decide", decide)
    async with env.leading() as coordinator:
        env.fails(coordinator, 0, fault_id="held")
        assert (await answer(env, 0, "held")).reason == "Backoff"
        env.fails(coordinator, 1, fault_id="ask", action_class="AskDriver")
        assert (await answer(env, 1, "ask")).reason == "DeviceNotProven"
        may_begin = True
        assert await stopped(env) == "team/train-1"


async def test_fault_behind_held_ones_is_decided_at_once() -> None:
    env = CoordinatorEnv(builders.gang(3))
    async with env.leading() as coordinator:
        for index in (0, 1):
            env.fails(coordinator, index, fault_id=f"ask {index}", action_class="AskDriver")
            assert (await answer(env, index, f"ask {index}")).reason == "DeviceNotProven"
        env.fails(coordinator, 2, fault_id="mendable")
        round_id = await stopped(env)
        for index in (0, 1):
            assert (await answer(env, index, f"ask {index}")).round == round_id


@pytest.mark.parametrize("kind", [MemberChangeKind.GONE, MemberChangeKind.LEFT])
@pytest.mark.parametrize("gone", [[0], [0, 1, 2]], ids=["the member", "the gang"])
async def test_hold_for_deleted_member_ends(gone: list[int], kind: MemberChangeKind) -> None:
    env = CoordinatorEnv(builders.gang(3))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0, fault_id="ask", action_class="AskDriver")
        assert (await answer(env, 0, "ask")).reason == "DeviceNotProven"
        assert not worker(coordinator).is_idle
        for index in gone:
            env.members.gone(builders.member(index).pod.uid, kind=kind)
        assert (await answer(env, 0, "ask")).answer in (pb.FaultAnswer.NOTHING, pb.FaultAnswer.ALONE)
        await eventually.true(lambda: worker(coordinator).is_idle)
        assert env.restarts.all == {}


async def test_deletion_of_other_member_keeps_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    env, decided = CoordinatorEnv(builders.gang(3)), []
    as_usual = table.decide

    def decide(facts: Facts, *, now: float) -> Decision:
        assert isinstance(facts.cause, Fault)
        decided.append(facts.cause.id)
        return as_usual(facts, now=now)

    monkeypatch.setattr(table, "decide", decide)
    async with env.leading() as coordinator:
        env.fails(coordinator, 0, fault_id="ask", action_class="AskDriver")
        await answer(env, 0, "ask")
        env.members.gone(builders.member(2).pod.uid)
        env.fails(coordinator, 1, fault_id="mendable")
        await stopped(env, members=2)
        assert decided == ["ask", "mendable"]


async def test_members_that_die_young_after_long_rounds_are_slowed_down() -> None:
    env, now = CoordinatorEnv(builders.gang(2)), builders.NOW
    env.dependencies = replace(env.dependencies, now=lambda: now)
    async with env.leading() as coordinator:
        for number in range(3):
            env.fails(coordinator, 0, fault_id=f"fault {number}")
            round_id = await stopped(env, members=2)
            now += 90.0
            for index in range(2):
                env.stands(coordinator, index, round_id, pb.StepResult.STOPPED)
            for index in range(2):
                await env.agent(index).received("release")
            for index in range(2):
                env.stands(coordinator, index, round_id, pb.StepResult.RUNNING)
            await eventually.true(lambda: worker(coordinator).is_idle)
            now += 5.0
        env.fails(coordinator, 0, fault_id="fourth")
        assert (await answer(env, 0, "fourth")).reason == "NoProgress"


# ---- members that fail together ----


@pytest.mark.parametrize(
    ("annotations", "action_class", "reason"),
    [(builders.OPTED_IN, "AskDriver", "DeviceNotProven"), ({}, "None", "NotOptedIn")],
    ids=["postponed", "refused"],
)
async def test_faults_of_all_members_without_a_round_leave_the_event_loop_to_others(
    monkeypatch: pytest.MonkeyPatch, annotations: dict[str, str], action_class: str, reason: str
) -> None:
    size, turn = 600, 0
    env = CoordinatorEnv([*builders.gang(size - 1), builders.member(size - 1, annotations=annotations)])
    decided_in: Counter[int] = Counter()
    counted_in: Counter[int] = Counter()
    decide, roster = table.decide, cases.roster

    def counted_decide(facts: Facts, *, now: float) -> Decision:
        decided_in[turn] += 1
        return decide(facts, now=now)

    def counted_roster(*args: Any, **more: Any) -> Roster:
        counted_in[turn] += 1
        return roster(*args, **more)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(table, "decide", counted_decide)
    monkeypatch.setattr(cases, "roster", counted_roster)
    async with env.leading() as coordinator:
        turns = asyncio.create_task(count_turns())
        for index in range(size):
            env.fails(coordinator, index, action_class=action_class)
        for index in range(size):
            assert (await answer(env, index, "f")).reason == reason
        turns.cancel()
        await asyncio.gather(turns, return_exceptions=True)
    assert sum(decided_in.values()) == size
    assert max(decided_in.values()) <= 256
    assert counted_in.keys() == decided_in.keys()
    assert max(counted_in.values()) == 1


@pytest.mark.parametrize("reports", [True, False])
async def test_member_whose_report_waits_while_the_controller_is_stopped_is_not_lost(reports: bool) -> None:
    """Its pod was deleted, although its agent had reported in time. One that does not report is lost a second later."""
    env = CoordinatorEnv(builders.gang(2))
    clock, stopped_for = env.now, 0.0
    env.dependencies = replace(env.dependencies, now=lambda: clock() + stopped_for)
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        round_id = await stopped(env, members=2)
        env.stands(coordinator, 0, round_id, Result.STOPPED)
        runner = worker(coordinator).runner
        assert runner is not None
        await eventually.true(lambda: runner.round.count(MemberPhase.STOPPED) == 1)
        stopped_for = runner.round.limits.stop + 1.0
        runner.submit()  # its timer is due, and comes before all messages
        await eventually.true(lambda: runner._flush is None)
        assert env.replaced.wanted == []
        if reports:
            env.stands(coordinator, 1, round_id, Result.STOPPED)
            await env.agent(1).received("release")
            assert env.replaced.wanted == []
        else:
            await eventually.true(lambda: [each.pod for each in env.replaced.wanted] == [builders.member(1).pod])
