"""A leader from a member's fault to the last release, including interruptions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from kubemend.common import contained
from kubemend.common.gangs import GangKey
from kubemend.common.kube import timestamps
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator import fault_book, wire
from kubemend.controller.coordinator.coordinator import GangCoordinator
from kubemend.controller.coordinator.dependencies import Policy
from kubemend.controller.coordinator.round_runner import RoundRunner
from kubemend.controller.decisions import table
from kubemend.controller.model.members import NodeChange, NodeView
from kubemend.controller.model.rounds import PodGone, RoundEvent
from kubemend.controller.restarts.events import ObjectRef
from kubemend.controller.restarts.objects import Restart, RestartSpec
from kubemend.controller.restarts.pod_replacer import Outcome
from kubemend.controller.rounds import machine
from kubemend.controller.rounds.states import Limits, MemberPhase
from tests.unit.controller import builders
from tests.unit.controller.coordinator.env import WAIT, CoordinatorEnv, RestartsHere, pod

SIZE = 3
Result = pb.StepResult


async def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds: it has no event of its own."""
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def stand(coordinator: GangCoordinator, where: MemberPhase) -> int:
    """Return how many members of the gang's round are in this phase."""
    runner = coordinator._workers[builders.GANG].runner
    return runner.round.count(where) if runner is not None else 0


async def stopped(env: CoordinatorEnv, *, members: int = SIZE) -> str:
    """Wait until all agents have the order to stop; return the round."""
    stops = [await env.agent(index).received("stop") for index in range(members)]
    assert len({each.stop.round for each in stops}) == 1
    return stops[0].stop.round


async def ordered(env: CoordinatorEnv, index: int, *, until: str) -> AsyncIterator[pb.Order]:
    """Yield an agent's orders to stop or hold, up to the order for the pod of that name."""
    while True:
        for order in (await env.agent(index).received("stop")).stop.orders:
            yield order
            if order.pod.name == until:
                return


async def round_of(env: CoordinatorEnv, coordinator: object) -> str:
    """Run a round to its end, and return it."""
    round_id = await stopped(env)
    for index in range(SIZE):
        env.stands(coordinator, index, round_id, Result.STOPPED)  # type: ignore[arg-type]
    for index in range(SIZE):
        assert (await env.agent(index).received("release")).release.round == round_id
        env.stands(coordinator, index, round_id, Result.RUNNING)  # type: ignore[arg-type]
    await until(lambda: round_id in env.restarts.statuses)
    return round_id


async def test_fault_restarts_whole_gang_in_one_round() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
        answer = (await env.agent(1).received("answer")).answer
        assert (answer.fault_id, answer.answer, answer.round) == ("f", pb.FaultAnswer.ROUND, round_id)
        for index in range(SIZE - 1):
            env.stands(coordinator, index, round_id, Result.STOPPED)
        await until(lambda: stand(coordinator, MemberPhase.STOPPED) == SIZE - 1)
        assert all("release" not in env.agent(index).waiting() for index in range(SIZE))
        env.stands(coordinator, SIZE - 1, round_id, Result.STOPPED)
        for index in range(SIZE):
            await env.agent(index).received("release")
            env.stands(coordinator, index, round_id, Result.RUNNING)
        await until(lambda: round_id in env.restarts.statuses)
        assert env.restarts.statuses[round_id]["phase"] == "Done"
        assert env.restarts.statuses[round_id]["members"]["running"] == SIZE
        assert env.events.reasons == ["RoundDone"]


async def test_stop_has_attempt_cause_hold_and_pod() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        stop = (await env.agent(2).received("stop")).stop
        assert (stop.attempt, stop.cause_code) == (1, "Exit1")
        assert stop.hold_seconds == Limits().hold
        assert [(order.pod.name, order.action) for order in stop.orders] == [("train-2-0", pb.Order.RESTART)]


async def test_repeated_fault_gets_same_answer_and_no_second_round() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        first = (await env.agent(1).received("answer")).answer
        env.fails(coordinator, 1)
        assert (await env.agent(1).received("answer")).answer == first
        assert len(env.restarts.all) == 1


async def test_fault_id_that_another_pod_reported_first_still_begins_a_round() -> None:
    other = replace(builders.member(9), gang=GangKey("evil", "Job", "other"))
    env = CoordinatorEnv([*builders.gang(SIZE), other])
    stolen = pb.Fault(id="exit:victim", pod=pod(other), gang=str(other.gang), kind=pb.Fault.EXIT, code="Exit0")
    async with env.leading() as coordinator:
        coordinator.received(env.agent(9), pb.AgentMessage(fault=stolen))
        assert (await env.agent(9).received("answer")).answer.answer == pb.FaultAnswer.NOTHING
        env.fails(coordinator, 0, fault_id="exit:victim")
        round_id = await stopped(env)
        assert (await env.agent(0).received("answer")).answer.round == round_id


async def test_faults_during_write_of_round_join_it() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    env.restarts.may_create.clear()
    async with env.leading() as coordinator:
        env.fails(coordinator, 0, fault_id="first")
        await env.restarts.creating.wait()
        env.fails(coordinator, 1, fault_id="second")
        assert env.agent(1).waiting() == []
        env.restarts.may_create.set()
        answers = [(await env.agent(index).received("answer")).answer for index in (0, 1)]
        assert [each.fault_id for each in answers] == ["first", "second"]
        assert len({each.round for each in answers}) == len(env.restarts.all) == 1


async def test_late_fault_from_before_release_begins_no_round() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        round_id = await round_of(env, coordinator)
        env.fails(coordinator, 1, fault_id="late", age=60.0)
        assert (await env.agent(1).received("answer")).answer.round == round_id
        assert len(env.restarts.all) == 1


async def test_fault_after_round_begins_next_round() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        first = await round_of(env, coordinator)
        env.fails(coordinator, 2, fault_id="later")
        second = await stopped(env)
        assert (first, second) == ("team/train-1", "team/train-2")


async def test_partly_opted_in_gang_is_left_to_agents() -> None:
    gang = builders.gang(SIZE)
    env = CoordinatorEnv((builders.member(0, annotations={}), *gang[1:]))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        answer = (await env.agent(1).received("answer")).answer
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.ALONE, "NotOptedIn")
        assert env.restarts.all == {}


async def test_dry_run_begins_no_round() -> None:
    env = CoordinatorEnv(builders.gang(SIZE), policy=Policy(dry_run=True))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        assert (await env.agent(1).received("answer")).answer.answer == pb.FaultAnswer.ALONE
        assert env.restarts.all == {}


async def test_fatal_exit_code_is_not_restarted_and_recorded() -> None:
    annotations = {**builders.OPTED_IN, "kubemend.io/fatal-exit-codes": "42"}
    env = CoordinatorEnv([builders.member(index, annotations=annotations) for index in range(SIZE)])
    async with env.leading() as coordinator:
        env.fails(coordinator, 1, exit_code=42)
        answer = (await env.agent(1).received("answer")).answer
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "FatalExitCode")
        assert env.events.reasons == ["FatalExitCode"]


async def test_event_about_a_fault_is_about_the_pod_that_the_api_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent is believed the UIDs of its node's pods: it could have Events written about any pod of any namespace."""
    env = CoordinatorEnv([builders.member(0, annotations={**builders.OPTED_IN, "kubemend.io/fatal-exit-codes": "42"})])
    about: list[ObjectRef] = []
    monkeypatch.setattr(env.events, "record", lambda ref, **_: about.append(ref))
    named = pb.Pod(namespace="kube-system", name="etcd-0", uid=builders.member(0).pod.uid)
    fault = pb.Fault(id="f", pod=named, gang="kube-system/Job/train", kind=pb.Fault.EXIT, code="Exit42", exit_code=42)
    async with env.leading() as coordinator:
        coordinator.received(env.agent(0), pb.AgentMessage(fault=fault))
        await env.agent(0).received("answer")
    assert [(each.namespace, each.name) for each in about] == [("team", "train-0-0")]


async def test_pod_outside_gangs_is_left_to_its_agent() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    env.members.all.clear()
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        assert (await env.agent(1).received("answer")).answer.answer == pb.FaultAnswer.ALONE


async def test_answered_faults_that_are_kept_are_limited_and_all_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent of a fault that was dropped without an answer restarts the member alone."""
    monkeypatch.setattr(fault_book, "ANSWERED_KEPT", 4)
    env = CoordinatorEnv(builders.gang(SIZE))
    env.restarts.may_create.clear()
    async with env.leading() as coordinator:
        for number in range(10):
            env.fails(coordinator, 1, fault_id=f"open-{number}")
        for number in range(10):
            env.fails(coordinator, 0, fault_id=str(number), generation=9)  # a pod that is in no gang
        assert [key.id for key in coordinator._faults._answered] == ["6", "7", "8", "9"]
        env.restarts.may_create.set()
        answers = [(await env.agent(1).received("answer")).answer for _ in range(10)]
        assert {(each.fault_id, each.answer) for each in answers} == {
            (f"open-{number}", pb.FaultAnswer.ROUND) for number in range(10)
        }
        assert len(coordinator._faults._answered) == 4


async def test_faults_of_a_pod_beyond_the_bound_wait_for_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_book, "OPEN_OF_A_POD", 4)
    env = CoordinatorEnv(builders.gang(SIZE))
    env.restarts.may_create.clear()
    async with env.leading() as coordinator:
        for number in range(6):
            env.fails(coordinator, 1, fault_id=str(number))
        env.fails(coordinator, 2, fault_id="of another pod")
        refused = [(await env.agent(1).received("answer")).answer for _ in range(2)]
        assert [(each.fault_id, each.answer, each.reason) for each in refused] == [
            (number, pb.FaultAnswer.NOTHING, "TooManyFaults") for number in ("4", "5")
        ]
        env.restarts.may_create.set()
        answers = [(await env.agent(1).received("answer")).answer for _ in range(4)]
        assert {(each.fault_id, each.answer) for each in answers} == {
            (str(number), pb.FaultAnswer.ROUND) for number in range(4)
        }
        assert (await env.agent(2).received("answer")).answer.answer == pb.FaultAnswer.ROUND
        assert not coordinator._faults._open_of


async def test_member_held_for_round_that_is_over_is_released() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await round_of(env, coordinator)
        env.stands(coordinator, 0, round_id, Result.STOPPED)
        abort = (await env.agent(0).received("abort")).abort
        assert (abort.round, list(abort.pod_uids)) == (round_id, [builders.member(0).pod.uid])
    async with env.leading(epoch=2) as coordinator:
        env.stands(coordinator, 0, round_id, Result.STOPPED)
        assert (await env.agent(0).received("abort")).abort.round == round_id


async def test_round_number_known_only_to_agents_is_not_reused() -> None:
    """The round's object was never written: the API server was unavailable for the whole term of its leader."""
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        pod = builders.member(0).pod
        known = Result(round="team/lost", phase=Result.RUNNING, attempt=7)
        known.pod.CopyFrom(pb.Pod(namespace=pod.namespace, name=pod.name, uid=pod.uid))
        coordinator.hello(env.agent(0), pb.Hello(results=[known]))
        env.fails(coordinator, 1)
        assert (await env.agent(0).received("stop")).stop.attempt == 8


async def test_new_leader_resumes_round_from_object_and_hellos() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
        env.stands(coordinator, 0, round_id, Result.STOPPED)
    async with env.leading(epoch=2) as coordinator:
        assert env.restarts.all[round_id].epoch == 2
        for index in range(SIZE):
            result = Result(round=round_id, phase=Result.STOPPED)
            member = builders.member(index)
            result.pod.CopyFrom(pb.Pod(namespace="team", name=member.pod.name, uid=member.pod.uid))
            coordinator.connected(env.agent(index))
            coordinator.hello(env.agent(index), pb.Hello(results=[result]))
        for index in range(SIZE):
            assert (await env.agent(index).received("release")).release.round == round_id
            env.stands(coordinator, index, round_id, Result.RUNNING)
        await until(lambda: round_id in env.restarts.statuses)
        assert env.restarts.statuses[round_id]["phase"] == "Done"


def held(index: int, round_id: str) -> pb.Hello:
    """Return the Hello of an agent that holds its member for a round."""
    return pb.Hello(results=[Result(round=round_id, phase=Result.STOPPED, attempt=1, pod=pod(builders.member(index)))])


async def test_members_held_for_a_round_whose_object_was_never_written_are_restarted_as_one() -> None:
    """The API server was away when it began, until its leader's term ended."""
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading(epoch=2) as coordinator:
        for index in range(2):
            coordinator.hello(env.agent(index), held(index, "team/train-1-8f2e"))
        assert all("abort" not in env.agent(index).waiting() for index in range(SIZE))
        round_id = await stopped(env)
        coordinator.hello(env.agent(2), held(2, "team/train-1-8f2e"))
        assert "abort" not in env.agent(2).waiting()
        for index in range(SIZE):
            env.stands(coordinator, index, round_id, Result.STOPPED)
        for index in range(SIZE):
            assert (await env.agent(index).received("release")).release.round == round_id


async def test_members_held_for_a_request_that_was_never_taken_over_are_restarted_as_one() -> None:
    """The API server was away when its round began. The request still waits, and its round has the same id."""
    env = CoordinatorEnv(builders.gang(SIZE))
    env.restarts.may_create.clear()
    env.restarts.all["team/please"] = request(RestartSpec(gang=builders.GANG))
    async with env.leading(epoch=2) as coordinator:
        for index in range(SIZE):
            coordinator.hello(env.agent(index), held(index, "team/please.uid-plea"))
        assert all("abort" not in env.agent(index).waiting() for index in range(SIZE))
        env.restarts.may_create.set()
        assert await stopped(env) == "team/please.uid-plea"


async def carried_out_before(env: CoordinatorEnv, coordinator: GangCoordinator, *, members: int) -> None:
    """Have so many agents connect that restarted their members for a previous leader, which could not record it."""
    await until(lambda: coordinator._workers[builders.GANG].runner is not None)
    for index in range(members):
        env.connected.add(env.agent(index).node)
        runs = Result(round="team/please.uid-plea", phase=Result.RUNNING, attempt=1, pod=pod(builders.member(index)))
        coordinator.hello(env.agent(index), pb.Hello(results=[runs]))


@pytest.mark.parametrize("at_a_time", [None, 1], ids=["together", "rolling"])
async def test_request_that_was_carried_out_and_never_recorded_is_not_carried_out_again(at_a_time: int | None) -> None:
    """The API server was away from its round's begin until after its end, which took its leader's Lease."""
    env = CoordinatorEnv(builders.gang(SIZE))
    env.restarts.all["team/please"] = request(RestartSpec(gang=builders.GANG, max_unavailable=at_a_time))
    env.connected.clear()
    async with env.leading(epoch=2) as coordinator:
        await carried_out_before(env, coordinator, members=SIZE)
        await until(lambda: env.restarts.all["team/please"].is_finished)
        assert env.restarts.statuses["team/please"]["phase"] == "Done"
        assert list(env.restarts.all) == ["team/please"]
        assert all("stop" not in env.agent(index).waiting() for index in range(SIZE))


@pytest.mark.parametrize("is_over", [False, True], ids=["during", "after"])
@pytest.mark.parametrize("at_a_time", [None, 1], ids=["together", "rolling"])
async def test_fault_since_a_request_was_carried_out_and_never_recorded_begins_a_round(
    at_a_time: int | None, *, is_over: bool
) -> None:
    """Its container is not restarted by the request's round, which begins again later."""
    env = CoordinatorEnv(builders.gang(SIZE))
    env.restarts.all["team/please"] = request(RestartSpec(gang=builders.GANG, max_unavailable=at_a_time))
    env.connected.clear()
    async with env.leading(epoch=2) as coordinator:
        await carried_out_before(env, coordinator, members=SIZE if is_over else 2)
        if is_over:
            await until(lambda: coordinator._workers[builders.GANG].runner is None)
        env.fails(coordinator, 1, age=5.0)
        if not is_over:
            await carried_out_before(env, coordinator, members=SIZE)
        await until(lambda: len(env.restarts.all) == 2)


async def test_members_held_for_a_request_that_is_deleted_by_now_are_released() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading(epoch=2) as coordinator:
        coordinator.hello(env.agent(0), held(0, "team/please.uid-plea"))
        assert (await env.agent(0).received("abort")).abort.round == "team/please.uid-plea"


async def test_round_of_a_leader_whose_term_ends_is_no_longer_under_way_there() -> None:
    """A former leader counted it until its process ended, which raised the alert KubemendRoundStuck."""
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        await stopped(env)
        assert env.registry.get_sample_value("kubemend_rounds_active") == 1
    assert env.registry.get_sample_value("kubemend_rounds_active") == 0
    async with env.leading(epoch=2):
        await stopped(env)
        assert env.registry.get_sample_value("kubemend_rounds_active") == 1


async def test_pods_that_jobs_would_not_count_are_restored_at_start_and_later() -> None:
    left_out = builders.member(0, left_out=True)
    others = builders.member(1, left_out=True, annotations={}), builders.member(2)
    env = CoordinatorEnv([left_out, *others])
    async with env.leading():
        assert env.replaced.restored == [left_out.pod.name]
        env.members.appears(builders.member(2, left_out=True))
        assert env.replaced.restored == [left_out.pod.name, others[1].pod.name]


async def test_invalid_round_fails_and_leader_continues() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
    broken = env.restarts.all[round_id]
    object.__setattr__(broken, "status", {"phase": "Stopping", "resume": {}})
    async with env.leading(epoch=2) as coordinator:
        assert env.restarts.statuses[round_id]["phase"] == "Failed"
        assert "resume" not in env.restarts.statuses[round_id]
        env.fails(coordinator, 0, fault_id="later")
        await stopped(env)


@pytest.mark.parametrize("begun", [-3 * Limits().whole, 3600.0], ids=["long ago", "in the future"])
async def test_round_of_an_impossible_time_is_not_resumed(begun: float) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
    at = env.now() + begun
    found = env.restarts.all[round_id]
    status = {**found.status, "startTime": timestamps.rfc3339(at)}
    env.restarts.all[round_id] = replace(found, created_at=min(at, found.created_at), status=status)
    async with env.leading(epoch=2):
        assert env.restarts.statuses[round_id]["phase"] == "Failed"
        assert env.restarts.statuses[round_id]["failures"][0]["reason"] == "NotResumed"
        assert all("stop" not in env.agent(index).waiting() for index in range(SIZE))


@pytest.mark.parametrize(
    ("timeout", "age", "resumes"),
    [(7200, 7200.0, True), (7200, 3 * 7200.0, False), (1, Limits().whole, True)],
    ids=["long", "longer than its timeout", "short"],
)
async def test_round_with_a_timeout_of_its_own_is_resumed_by_that(timeout: int, age: float, resumes: bool) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading():
        env.restarts.asked(request(RestartSpec(gang=builders.GANG, timeout_seconds=timeout)))
        await stopped(env)
    found = env.restarts.all["team/please"]
    status = {**found.status, "startTime": timestamps.rfc3339(env.now() - age)}
    env.restarts.all["team/please"] = replace(found, status=status)
    async with env.leading(epoch=2):
        assert ("team/please" not in env.restarts.statuses) is resumes


def taken_back(restarts: RestartsHere, restart: Restart) -> None:
    restarts.deleted(restart.id)


def being_taken_back(restarts: RestartsHere, restart: Restart) -> None:
    restarts.changed(replace(restart, deleting=True))


def made_anew(restarts: RestartsHere, restart: Restart) -> None:
    restarts.deleted(restart.id)
    restarts.asked(replace(restart, uid="another"))


def ended(restarts: RestartsHere, restart: Restart) -> None:
    restarts.changed(replace(restart, status={**restart.status, "phase": "Failed"}))


@pytest.mark.parametrize("what", [taken_back, being_taken_back, made_anew, ended])
async def test_round_that_ended_during_takeover_is_not_run(
    what: Callable[[RestartsHere, Restart], None],
) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
    env.restarts.on_takeover = lambda restart: what(env.restarts, restart)
    async with env.leading(epoch=2) as coordinator:
        assert builders.GANG not in coordinator._workers
        env.stands(coordinator, 0, round_id, Result.STOPPED)
        assert (await env.agent(0).received("abort")).abort.round == round_id


async def test_rounds_of_all_gangs_are_taken_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, with a write each, a thousand rounds took longer than agents hold their members."""
    other = GangKey("team", "Job", "other")
    of_other = (builders.member(index, gang=other, slot=f"other/{index}") for index in (SIZE, SIZE + 1))
    env = CoordinatorEnv((*builders.gang(SIZE), *of_other))
    async with env.leading() as coordinator:
        for index in (0, SIZE):
            env.fails(coordinator, index)
            assert (await env.agent(index).received("stop")).stop.attempt == 1
    waiting, all_wait = 0, asyncio.Event()
    resume = env.restarts.resume

    async def together(restart: Restart, *, epoch: int) -> bool:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            all_wait.set()
        async with asyncio.timeout(60.0):
            await all_wait.wait()
        return await resume(restart, epoch=epoch)

    monkeypatch.setattr(env.restarts, "resume", together)
    async with env.leading(epoch=2) as coordinator:
        runners = [worker.runner for worker in coordinator._workers.values()]
        assert {each.round.ref.gang for each in runners if each is not None} == {builders.GANG, other}


async def test_deleted_previous_round_does_not_stop_the_others() -> None:
    other = GangKey("team", "Job", "other")
    env = CoordinatorEnv((*builders.gang(SIZE), builders.member(SIZE, gang=other, slot="other/0")))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
    lost = replace(env.restarts.all[round_id], name="other-1", uid="uid-other-1", gang=other)
    env.restarts.all = {lost.id: lost, **env.restarts.all}
    env.restarts.on_takeover = lambda restart: taken_back(env.restarts, restart) if restart == lost else None
    async with env.leading(epoch=2) as coordinator:
        assert [*coordinator._workers] == [builders.GANG]
        runner = coordinator._workers[builders.GANG].runner
        assert runner is not None
        assert runner.id == round_id


async def test_round_is_not_resumed_while_the_next_one_of_its_gang_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gang had two rounds at a time: each took the members over from the other, again and again."""
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        before = await stopped(env)
    members, env.members.all = env.members.all, {}  # they are being replaced when the next leader begins
    env.restarts.may_create.clear()
    env.restarts.creating.clear()
    resume, resumed = env.restarts.resume, asyncio.Event()

    async def at_last(restart: Restart, *, epoch: int) -> bool:
        await env.restarts.creating.wait()
        resumed.set()
        return await resume(restart, epoch=epoch)

    monkeypatch.setattr(env.restarts, "resume", at_last)
    async with env.leading(epoch=2) as coordinator:
        env.members.all = members
        env.fails(coordinator, 0, fault_id="next")
        await resumed.wait()
        await until(lambda: env.restarts.statuses.get(before, {}).get("phase") == "Failed")
        env.restarts.may_create.set()
        assert await stopped(env) != before


async def test_replaced_pod_is_reported_to_its_own_round_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the loss of many nodes each of a thousand rounds was advanced for each pod of all others."""
    other = GangKey("team", "Job", "other")
    of_other = builders.member(SIZE, gang=other, slot=f"other/{SIZE}")
    env = CoordinatorEnv((*builders.gang(SIZE), of_other))
    reported: list[tuple[str, RoundEvent]] = []
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        env.restarts.asked(request(RestartSpec(gang=other)))
        mine = await stopped(env)
        await env.agent(SIZE).received("stop")
        monkeypatch.setattr(RoundRunner, "submit", lambda self, *events: reported.extend((self.id, e) for e in events))
        coordinator.replaced(builders.member(1).pod, Outcome.GONE, "")
    assert reported == [(mine, PodGone(builders.member(1).pod.uid))]


async def test_internal_error_in_decision_does_not_end_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    before = contained.count([contained.Part.GANG])

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with env.leading() as coordinator:
        with monkeypatch.context() as patched:
            patched.setattr(table, "decide", broken)
            env.fails(coordinator, 1)
            answer = (await env.agent(1).received("answer")).answer
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "Internal")
        assert contained.count([contained.Part.GANG]) == before + 1
        env.fails(coordinator, 0, fault_id="later")
        await stopped(env)


async def test_round_that_cannot_begin_fails_and_answers_its_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with env.leading() as coordinator:
        with monkeypatch.context() as patched:
            patched.setattr(machine, "begin", broken)
            env.fails(coordinator, 1)
            answer = (await env.agent(1).received("answer")).answer
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "Internal")
        assert [status["phase"] for status in env.restarts.statuses.values()] == ["Failed"]
        env.fails(coordinator, 0, fault_id="later")
        await stopped(env)


async def test_internal_error_in_round_fails_only_that_round(monkeypatch: pytest.MonkeyPatch) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
        with monkeypatch.context() as patched:
            patched.setattr(machine, "advance", broken)
            env.stands(coordinator, 0, round_id, Result.STOPPED)
            await until(lambda: round_id in env.restarts.statuses)
        status = env.restarts.statuses[round_id]
        assert (status["phase"], status["failures"][0]["reason"]) == ("Failed", "Internal")
        assert status["trigger"]["code"] == "Exit1"
        env.fails(coordinator, 0, fault_id="later")
        assert await stopped(env) != round_id


async def test_internal_error_in_round_has_agents_release_their_members(monkeypatch: pytest.MonkeyPatch) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
        monkeypatch.setattr(machine, "advance", broken)
        env.stands(coordinator, 0, round_id, Result.STOPPED)
        for index in range(SIZE):
            abort = (await env.agent(index).received("abort")).abort
            member = builders.member(index).pod.uid
            assert (abort.round, list(abort.pod_uids), abort.reason) == (round_id, [member], "Internal")


async def test_request_deleted_while_queued_begins_no_round() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    spec = RestartSpec(gang=builders.GANG)
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        first = await stopped(env)
        env.restarts.asked(request(spec))
        env.restarts.deleted("team/please")
        for index in range(SIZE):
            env.stands(coordinator, index, first, Result.STOPPED)
        for index in range(SIZE):
            await env.agent(index).received("release")
            env.stands(coordinator, index, first, Result.RUNNING)
        await until(lambda: first in env.restarts.statuses and coordinator._workers[builders.GANG].is_idle)
        assert all("stop" not in env.agent(index).waiting() for index in range(SIZE))


async def test_disconnected_agent_gets_orders_on_connecting() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    away = env.agent(2)
    env.connected.discard(away.node)
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        round_id = (await env.agent(0).received("stop")).stop.round
        assert away.waiting() == []
        env.connected.add(away.node)
        coordinator.connected(away)
        coordinator.hello(away, pb.Hello())
        assert (await away.received("stop")).stop.round == round_id


async def test_agent_that_comes_back_on_a_node_that_is_not_ready_keeps_its_member() -> None:
    """Its pod was deleted at once, for example when the agent's token had expired while kubelet was upgraded."""
    env = CoordinatorEnv(builders.gang(2))
    back = env.agent(1)
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        round_id = await stopped(env, members=2)
        env.nodes.all[back.node] = NodeView(back.node, ready=None)
        env.connected.discard(back.node)
        coordinator.disconnected(back)
        env.connected.add(back.node)
        coordinator.connected(back)
        coordinator.hello(back, pb.Hello())
        assert (await back.received("stop")).stop.round == round_id
        for index in range(2):
            env.stands(coordinator, index, round_id, Result.STOPPED)
        await back.received("release")
        assert env.replaced.wanted == []


async def test_node_that_is_not_ready_any_more_and_has_no_agent_is_lost() -> None:
    env = CoordinatorEnv(builders.gang(2))
    lost = env.agent(1)
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        await stopped(env, members=2)
        env.connected.discard(lost.node)
        coordinator.disconnected(lost)
        env.nodes.all[lost.node] = NodeView(lost.node, ready=None)
        coordinator._node_changed(NodeChange(lost.node, env.nodes.all[lost.node]))
        await until(lambda: [each.pod for each in env.replaced.wanted] == [builders.member(1).pod])


async def test_request_restarts_gang_with_options_of_its_object() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    spec = RestartSpec(
        gang=builders.GANG, grace_seconds=7, strategy="rerun", containers=("trainer",), reason="new data"
    )
    async with env.leading() as coordinator:
        env.restarts.asked(request(spec))
        stop = (await env.agent(0).received("stop")).stop
        runner = coordinator._workers[builders.GANG].runner
        assert runner is not None
        assert runner.round.limits.grace == 7, "its members have so long to stop"
        assert (stop.round, stop.strategy, stop.grace_seconds) == ("team/please.uid-plea", "rerun", 7)
        assert list(stop.orders[0].containers) == ["trainer"]
        assert "new data" in stop.cause_message


@pytest.mark.parametrize("earlier", [Result.RUNNING, Result.FAILED, Result.SELF_RELEASED])
async def test_results_in_an_earlier_round_of_the_same_name_do_not_count(
    earlier: "pb.StepResult.Phase.ValueType",
) -> None:
    """Its request was deleted, and created again under the same name."""
    env = CoordinatorEnv(builders.gang(SIZE))
    spec = RestartSpec(gang=builders.GANG)
    async with env.leading() as coordinator:
        env.restarts.asked(request(spec))
        first = await stopped(env)
        env.restarts.deleted("team/please")
        for index in range(SIZE):
            assert (await env.agent(index).received("abort")).abort.round == first
        env.restarts.asked(replace(request(spec), uid="another-uid"))
        second = await stopped(env)
        for index in range(SIZE):
            env.stands(coordinator, index, first, earlier)
            env.stands(coordinator, index, second, Result.STOPPED)
        for index in range(SIZE):
            assert (await env.agent(index).received("release")).release.round == second
        assert env.replaced.wanted == []


async def test_request_for_unknown_gang_is_refused() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    env.members.all.clear()
    async with env.leading():
        env.restarts.asked(request(RestartSpec(gang=builders.GANG)))
        await until(lambda: "team/please" in env.restarts.statuses)
        status = env.restarts.statuses["team/please"]
        assert (status["phase"], status["decision"]["reason"]) == ("Refused", "NotAGang")


async def test_deleting_restart_object_ends_round() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 0)
        round_id = await stopped(env)
        env.restarts.deleted(round_id)
        for index in range(SIZE):
            assert (await env.agent(index).received("abort")).abort.round == round_id


async def test_member_with_lost_device_is_replaced_while_others_are_held() -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1, action_class="Replace", device="GPU-1")
        round_id = (await env.agent(0).received("stop")).stop.round
        await until(lambda: [each.pod.name for each in env.replaced.wanted] == ["train-1-0"])
        for index in (0, 2):
            env.stands(coordinator, index, round_id, Result.STOPPED)
        await until(lambda: stand(coordinator, MemberPhase.STOPPED) == SIZE - 1)
        assert all("release" not in env.agent(index).waiting() for index in range(SIZE))
        env.members.gone(builders.member(1).pod.uid)
        env.members.appears(builders.member(1, generation=1))
        orders = [order async for order in ordered(env, 1, until="train-1-1")]
        assert orders[-1].action == pb.Order.HOLD
        env.stands(coordinator, 1, round_id, Result.STOPPED, generation=1)
        for index in (0, 2):
            assert (await env.agent(index).received("release")).release.round == round_id


async def test_gang_that_repeatedly_dies_young_must_wait() -> None:
    rounds = 3
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading() as coordinator:
        for number in range(rounds):
            env.fails(coordinator, 0, fault_id=f"f{number}")
            await round_of(env, coordinator)
        env.fails(coordinator, 0, fault_id="one more")
        answer = (await env.agent(0).received("answer")).answer
        assert (answer.answer, answer.round) == (pb.FaultAnswer.ROUND, "")
        assert answer.reason in ("Backoff", "NoProgress")
        assert len(env.restarts.all) == rounds


@pytest.mark.parametrize("leaders", [1, 2])
async def test_new_owner_of_gang_name_does_not_inherit_backoff(leaders: int) -> None:
    env = CoordinatorEnv([replace(each, gang_uid="uid-first") for each in builders.gang(SIZE)])
    async with env.leading() as coordinator:
        for number in range(3):
            env.fails(coordinator, 0, fault_id=f"f{number}")
            await round_of(env, coordinator)
        if leaders == 1:
            await _another_of_that_name_runs(env, coordinator)
    if leaders == 2:
        async with env.leading(epoch=2) as coordinator:
            await _another_of_that_name_runs(env, coordinator)


async def _another_of_that_name_runs(env: CoordinatorEnv, coordinator: GangCoordinator) -> None:
    for uid in list(env.members.all):
        env.members.gone(uid)
    for index in range(SIZE):
        env.members.appears(builders.member(index, generation=1, gang_uid="uid-second"))
    env.fails(coordinator, 0, fault_id="of the second", generation=1)
    answer = (await env.agent(0).received("answer")).answer
    while answer.fault_id != "of the second":
        answer = (await env.agent(0).received("answer")).answer
    assert answer.round, answer.reason


def request(spec: RestartSpec) -> Restart:
    """Return a request."""
    return Restart(
        namespace="team",
        name="please",
        uid="uid-please",
        version="1",
        generation=1,
        created_at=builders.NOW,
        spec=spec,
        gang=spec.gang,
    )


async def test_internal_error_in_event_ends_only_that_gangs_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)
        with monkeypatch.context() as patched:
            patched.setattr(coordinator._workers[builders.GANG], "member_changed", broken)
            env.members.appears(replace(builders.member(0), restart_policy="Never"))
            await until(lambda: round_id in env.restarts.statuses)
        assert env.restarts.statuses[round_id]["phase"] == "Failed"
        env.fails(coordinator, 0, fault_id="later")
        assert await stopped(env) != round_id


async def test_unreadable_fault_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with env.leading() as coordinator:
        with monkeypatch.context() as patched:
            patched.setattr(wire, "fault", broken)
            env.fails(coordinator, 1)
            answer = (await env.agent(1).received("answer")).answer
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "Internal")
        env.fails(coordinator, 0, fault_id="later")
        await stopped(env)


async def test_internal_error_in_resuming_one_round_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = CoordinatorEnv(builders.gang(SIZE))
    async with env.leading(epoch=1) as coordinator:
        env.fails(coordinator, 1)
        round_id = await stopped(env)

    def broken(*_: object, **__: object) -> None:
        raise IndexError

    monkeypatch.setattr(env.restarts, "resume", broken)
    async with env.leading(epoch=2) as coordinator:
        await until(lambda: round_id in env.restarts.statuses)
        assert env.restarts.statuses[round_id]["phase"] == "Failed"
        env.fails(coordinator, 0, fault_id="later")
        assert await stopped(env) != round_id
