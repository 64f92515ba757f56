"""One gang's desk: no fault that it has answered is forgotten, and what it holds is held no longer than it says."""

import pytest

from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.app.conductor import Conductor
from controller.app.desk import Desk
from controller.decisions import table
from controller.decisions.facts import Decision, Facts, Kind, Reason
from controller.model.faults import Fault
from controller.model.members import PodPhase
from controller.restarts.objects import RestartSpec
from controller.watches.members import MemberChangeKind
from tests import eventually
from tests.unit.controller import builders
from tests.unit.controller.app.stage import Stage
from tests.unit.controller.app.test_conductor import request, stopped

Result = pb.StepResult


def one_pending() -> Stage:
    """Two that run, and a third that waits for its start."""
    return Stage([*builders.gang(2), builders.member(2, phase=PodPhase.PENDING)])


async def released(stage: Stage, conductor: Conductor, *, members: int) -> str:
    """The gang is restarted as far as to the release, to which the first has answered; return the round."""
    stage.fails(conductor, 0)
    round_id = await stopped(stage, members=members)
    for index in range(members):
        stage.stands(conductor, index, round_id, Result.STOPPED)
    for index in range(members):
        await stage.agent(index).told("release")
    stage.stands(conductor, 0, round_id, Result.RUNNING)
    return round_id


async def answer(stage: Stage, index: int, fault_id: str) -> pb.FaultAnswer:
    """Return what an agent is told of this fault next."""
    while True:
        found = (await stage.agent(index).told("answer")).answer
        if found.fault_id == fault_id:
            return found


def desk(conductor: Conductor) -> Desk:
    return conductor._desks[builders.GANG]


# ---- faults while a round is on ----


async def test_one_that_starts_and_fails_after_the_release_is_restarted_by_the_next_round() -> None:
    stage = one_pending()
    async with stage.leading() as conductor:
        first = await released(stage, conductor, members=2)
        stage.members.appears(builders.member(2))
        stage.fails(conductor, 2, fault_id="late")
        assert (await answer(stage, 2, "late")).round == first
        stage.stands(conductor, 1, first, Result.RUNNING)
        assert await stopped(stage) == "team/train-2"
        assert stage.restarts.statuses[first]["phase"] == "Done"
        told = stage.restarts.all["team/train-2"].status["trigger"]
        assert (told["kind"], told["member"]) == ("Exit", builders.member(2).pod.name)


async def test_one_that_comes_to_the_gang_and_fails_after_the_release_is_restarted_by_the_next_round() -> None:
    stage = Stage(builders.gang(3))
    newcomer = builders.member(2)
    del stage.members.all[newcomer.pod.uid]
    async with stage.leading() as conductor:
        first = await released(stage, conductor, members=2)
        stage.members.appears(newcomer)
        stage.fails(conductor, 2, fault_id="late")
        stage.stands(conductor, 1, first, Result.RUNNING)
        assert await stopped(stage) == "team/train-2"


async def test_one_that_the_round_did_not_know_may_be_told_of_after_its_end() -> None:
    stage = one_pending()
    async with stage.leading() as conductor:
        first = await released(stage, conductor, members=2)
        conducting = desk(conductor).conducting
        assert conducting is not None
        started_at = conducting.round.started_at
        stage.stands(conductor, 1, first, Result.RUNNING)
        await eventually.true(lambda: desk(conductor).is_idle)
        stage.members.appears(builders.member(2))
        stage.fails(conductor, 2, fault_id="late", age=stage.now() - started_at)
        assert (await answer(stage, 2, "late")).round == "team/train-2"


async def test_a_fault_that_is_decided_on_after_the_round_is_the_one_that_was_told() -> None:
    wishes = {**builders.OPTED_IN, "kubemend.io/fatal-exit-codes": "42"}
    stage = Stage([builders.member(index, annotations=wishes) for index in range(2)])
    async with stage.leading() as conductor:
        first = await released(stage, conductor, members=2)
        stage.fails(conductor, 0, fault_id="fatal", exit_code=42)
        assert (await answer(stage, 0, "fatal")).round == first
        stage.stands(conductor, 1, first, Result.RUNNING)
        told = await answer(stage, 0, "fatal")
        assert (told.answer, told.reason) == (pb.FaultAnswer.NOTHING, "FatalExitCode")
        assert [*stage.restarts.all] == [first]


async def test_one_that_is_turned_down_after_the_round_does_not_take_the_others_with_it() -> None:
    wishes = {**builders.OPTED_IN, "kubemend.io/fatal-exit-codes": "42"}
    stage = Stage([builders.member(index, annotations=wishes) for index in range(2)])
    async with stage.leading() as conductor:
        first = await released(stage, conductor, members=2)
        stage.fails(conductor, 0, fault_id="fatal", exit_code=42)
        stage.stands(conductor, 1, first, Result.RUNNING)
        stage.fails(conductor, 1, fault_id="mendable")
        assert await stopped(stage, members=2) == "team/train-2"
        assert stage.restarts.all["team/train-2"].status["trigger"]["member"] == builders.member(1).pod.name


async def test_faults_that_come_after_the_release_all_become_a_part_of_the_next_round() -> None:
    stage = Stage(builders.gang(2))
    async with stage.leading() as conductor:
        first = await released(stage, conductor, members=2)
        stage.fails(conductor, 0, fault_id="first")
        stage.stands(conductor, 1, first, Result.RUNNING)
        stage.fails(conductor, 1, fault_id="second", action_class="Replace")
        assert (await stage.agent(0).told("stop")).stop.round == "team/train-2"
        await eventually.true(lambda: [each.pod for each in stage.replaced.wanted] == [builders.member(1).pod])
        assert len(stage.restarts.all) == 2


async def test_a_request_that_waits_is_heard_though_the_one_for_which_the_gang_failed_again_is_gone() -> None:
    stage = Stage(builders.gang(3))
    async with stage.leading() as conductor:
        stage.fails(conductor, 0)
        first = await stopped(stage)
        stage.restarts.asked(request(RestartSpec(gang=builders.GANG)))
        await eventually.true(lambda: not desk(conductor)._deciding)
        stage.stands(conductor, 0, first, Result.SELF_RELEASED)
        stage.members.gone(builders.member(0).pod.uid)
        assert (await stage.agent(1).told("stop")).stop.round == "team/please"


# ---- what is held ----


async def test_a_hold_that_ends_by_itself_is_not_stopped_by_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, may_begin = Stage(builders.gang(3)), False
    as_usual = table.decide

    def decide(facts: Facts, *, now: float) -> Decision:
        assert isinstance(facts.cause, Fault)
        if facts.cause.id == "held" and not may_begin:
            return Decision(Kind.HOLD, Reason.BACKOFF, retry_at=now + 0.05)
        return as_usual(facts, now=now)

    monkeypatch.setattr(table, "decide", decide)
    async with stage.leading() as conductor:
        stage.fails(conductor, 0, fault_id="held")
        assert (await answer(stage, 0, "held")).reason == "Backoff"
        stage.fails(conductor, 1, fault_id="ask", action_class="AskDriver")
        assert (await answer(stage, 1, "ask")).reason == "DeviceNotProven"
        may_begin = True
        assert await stopped(stage) == "team/train-1"


async def test_a_fault_that_comes_behind_several_that_are_held_is_decided_on_at_once() -> None:
    stage = Stage(builders.gang(3))
    async with stage.leading() as conductor:
        for index in (0, 1):
            stage.fails(conductor, index, fault_id=f"ask {index}", action_class="AskDriver")
            assert (await answer(stage, index, f"ask {index}")).reason == "DeviceNotProven"
        stage.fails(conductor, 2, fault_id="mendable")
        round_id = await stopped(stage)
        for index in (0, 1):
            assert (await answer(stage, index, f"ask {index}")).round == round_id


@pytest.mark.parametrize("kind", [MemberChangeKind.GONE, MemberChangeKind.LEFT])
@pytest.mark.parametrize("gone", [[0], [0, 1, 2]], ids=["the member", "the gang"])
async def test_nothing_is_held_any_more_for_one_that_is_gone(gone: list[int], kind: MemberChangeKind) -> None:
    stage = Stage(builders.gang(3))
    async with stage.leading() as conductor:
        stage.fails(conductor, 0, fault_id="ask", action_class="AskDriver")
        assert (await answer(stage, 0, "ask")).reason == "DeviceNotProven"
        assert not desk(conductor).is_idle
        for index in gone:
            stage.members.gone(builders.member(index).pod.uid, kind=kind)
        assert (await answer(stage, 0, "ask")).answer in (pb.FaultAnswer.NOTHING, pb.FaultAnswer.ALONE)
        await eventually.true(lambda: desk(conductor).is_idle)
        assert stage.restarts.all == {}


async def test_another_member_that_goes_leaves_a_hold_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, decided = Stage(builders.gang(3)), []
    as_usual = table.decide

    def decide(facts: Facts, *, now: float) -> Decision:
        assert isinstance(facts.cause, Fault)
        decided.append(facts.cause.id)
        return as_usual(facts, now=now)

    monkeypatch.setattr(table, "decide", decide)
    async with stage.leading() as conductor:
        stage.fails(conductor, 0, fault_id="ask", action_class="AskDriver")
        await answer(stage, 0, "ask")
        stage.members.gone(builders.member(2).pod.uid)
        stage.fails(conductor, 1, fault_id="mendable")
        await stopped(stage, members=2)
        assert decided == ["ask", "mendable"]
