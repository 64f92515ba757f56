"""Rounds of a gang whose JobSet kubemend manages: what the JobSet allows, and what it is notified of."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kubemend.common.gangs import GangKey
from kubemend.common.kube.changes import ChangeKind
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator.coordinator import GangCoordinator
from kubemend.controller.coordinator.jobset_rounds import OurJobSets, RoundBook
from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import Plan, World
from kubemend.controller.jobset.spec.model import ChildJob, Condition, FailurePolicy, JobSet, RestartStrategy, Status
from kubemend.controller.model.members import Member, PodPhase
from kubemend.controller.restarts.objects import Restart, RestartSpec
from kubemend.controller.restarts.store import RestartChange
from tests.eventually import true as until
from tests.unit.controller import builders
from tests.unit.controller.coordinator.stage import Stage
from tests.unit.jobset import worlds

SIZE = 2
GANG = GangKey("team", "JobSet", "js")
Result = pb.StepResult


class JobSetsHere:
    """Managed JobSets, as the test sets them."""

    def __init__(self, now: Callable[[], float], jobset: JobSet | None, *jobs: ChildJob) -> None:
        self.jobset = jobset
        self.jobs = jobs
        self.book: RoundBook | None = None
        self.left_nodes: list[str] = []
        self._now = now
        self._listeners: list[Callable[[str, str], None]] = []

    async def run(self) -> None:
        raise AssertionError("gangs ask JobSets, and do not run them")

    async def wait_known(self) -> None:
        return

    def find(self, namespace: str, name: str) -> JobSet | None:
        found = self.jobset
        return found if found is not None and (found.namespace, found.name) == (namespace, name) else None

    def job(self, namespace: str, jobset: str, name: str) -> ChildJob | None:
        return next((each for each in self.jobs if each.name == name), None)

    def world(self, jobset: JobSet) -> World:
        assert self.book is not None
        return World(
            jobset,
            self.jobs,
            now=self._now(),
            has_service=True,
            rounds=self.book.rounds(jobset),
            refusal=self.book.refusal(jobset),
        )

    def news(self, namespace: str, name: str) -> None:
        return

    def left(self, node: str, *, code: str, pod: str) -> None:
        self.left_nodes.append(node)

    def subscribe(self, listener: Callable[[str, str], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def put(self, jobset: JobSet | None) -> None:
        """Change the JobSet."""
        self.jobset = jobset
        for listener in self._listeners:
            listener(GANG.namespace, GANG.name)

    def reconcile(self) -> Plan:
        """Reconcile the JobSet, write its status, and return the plan."""
        assert self.jobset is not None
        decided = decide.decide(self.world(self.jobset))
        if decided.status is not None:
            self.jobset = replace(self.jobset, status=decided.status)
        return decided


class Theatre:
    """An environment whose gang belongs to a JobSet."""

    def __init__(
        self, *, limit: int = 3, size: int = SIZE, managed: bool = True, members: tuple[Member, ...] = ()
    ) -> None:
        everyone = members or tuple(builders.member(index, gang=GANG, slot=f"js-w-{index}/0") for index in range(size))
        self.stage = Stage(everyone)
        policy = FailurePolicy(max_restarts=limit, strategy=RestartStrategy.IN_PLACE)
        jobset = worlds.jobset(worlds.replicated(replicas=size), failure=policy)
        jobset = replace(jobset, created_at=self.stage.now() - 60.0)
        jobs = [worlds.job(f"w-{index}", ready=1, active=1) for index in range(size)]
        self.here = JobSetsHere(self.stage.now, jobset if managed else None, *jobs)

        def make(book: RoundBook) -> Any:
            self.here.book = book
            return self.here

        self.ours = OurJobSets(make)
        self.stage.dependencies = replace(self.stage.dependencies, jobsets=self.ours)
        self.stage.restarts.subscribe(self.ours.book.restart_changed)

    async def round(self, coordinator: GangCoordinator, index: int = 0, *, fault_id: str = "f") -> str:
        """Have a member fail and the whole round succeed. Returns its id."""
        self.stage.fails(coordinator, index, fault_id=fault_id)
        round_id = await self.stopped()
        await self.released(coordinator, round_id)
        return round_id

    async def stopped(self) -> str:
        ids = {(await agent.received("stop")).stop.round for agent in self.stage.agents.values()}
        (round_id,) = ids
        return round_id

    async def released(self, coordinator: GangCoordinator, round_id: str) -> None:
        """Have all members stop and run again."""
        for phase, order in ((Result.STOPPED, "release"), (Result.RUNNING, "")):
            for index in range(len(self.stage.agents)):
                self.stage.stands(coordinator, index, round_id, phase)
            for agent in self.stage.agents.values():
                if order:
                    await agent.received(order)
        await until(lambda: self.stage.restarts.all[round_id].is_finished)

    async def answer(self, index: int = 0) -> pb.FaultAnswer:
        return (await self.stage.agent(index).received("answer")).answer

    def condition(self, kind: str) -> Condition | None:
        assert self.here.jobset is not None
        return self.here.jobset.status.condition(kind)

    @property
    def status(self) -> Status:
        assert self.here.jobset is not None
        return self.here.jobset.status


def suspended(jobset: JobSet | None) -> JobSet:
    assert jobset is not None
    return replace(jobset, spec=replace(jobset.spec, suspend=True))


async def test_max_restarts_counts_rounds_caused_by_faults() -> None:
    theatre = Theatre(limit=2)
    async with theatre.stage.leading() as coordinator:
        for number in range(2):
            await theatre.round(coordinator, fault_id=f"f{number}")
        theatre.here.reconcile()
        assert theatre.status.restarts_counted == 2
        assert (theatre.status.previous_in_place, theatre.status.current_in_place) == (1, 2)
        theatre.stage.fails(coordinator, 0, fault_id="one more")
        answer = await theatre.answer()
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "ReachedMaxRestarts")
        assert len(theatre.stage.restarts.all) == 2
        theatre.here.reconcile()
        failed = theatre.condition("Failed")
        assert failed is not None
        assert failed.status
        assert failed.reason == "ReachedMaxRestarts"


async def test_round_counts_from_its_begin() -> None:
    theatre = Theatre(limit=1)
    async with theatre.stage.leading() as coordinator:
        theatre.stage.fails(coordinator, 0)
        await theatre.stopped()
        policy = theatre.ours.policy(GANG)
        assert policy is not None
        assert (policy.limit, policy.used) == (1, 1)
        theatre.here.reconcile()
        restarting = theatre.condition("kubemend.io/InPlaceRestart")
        assert restarting is not None
        assert (restarting.status, restarting.reason) == (True, "Restarting")
        assert theatre.status.restarts_counted == 0


async def test_first_fault_without_restarts_left_fails_jobset() -> None:
    theatre = Theatre(limit=0)
    async with theatre.stage.leading() as coordinator:
        theatre.stage.fails(coordinator, 1)
        assert (await theatre.answer(1)).reason == "ReachedMaxRestarts"
        assert theatre.stage.restarts.all == {}
        assert theatre.here.reconcile().counts == ("failed",)


async def test_dry_run_fails_no_jobset() -> None:
    theatre = Theatre(limit=0)
    theatre.stage.dependencies = replace(
        theatre.stage.dependencies, policy=replace(theatre.stage.dependencies.policy, dry_run=True)
    )
    async with theatre.stage.leading() as coordinator:
        theatre.stage.fails(coordinator, 1)
        await theatre.answer(1)
        assert theatre.here.reconcile().counts == ()


async def test_requested_round_costs_nothing() -> None:
    theatre = Theatre(limit=1)
    async with theatre.stage.leading() as coordinator:
        for number in range(3):
            theatre.stage.restarts.asked(request(f"please-{number}"))
            round_id = await theatre.stopped()
            await theatre.released(coordinator, round_id)
        theatre.here.reconcile()
        assert (theatre.status.restarts_counted, theatre.status.current_in_place) == (0, 3)
        await theatre.round(coordinator)
        theatre.here.reconcile()
        assert theatre.status.restarts_counted == 1


async def test_suspended_jobset_begins_no_round() -> None:
    theatre = Theatre()
    theatre.here.put(suspended(theatre.here.jobset))
    async with theatre.stage.leading() as coordinator:
        theatre.stage.fails(coordinator, 0)
        answer = await theatre.answer()
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "Suspended")
        theatre.stage.restarts.asked(request("please"))
        await until(lambda: "team/please" in theatre.stage.restarts.statuses)
        assert theatre.stage.restarts.statuses["team/please"]["phase"] == "Refused"


@pytest.mark.parametrize("reason", ["suspended", "gone", "completed", "recreating"])
async def test_round_is_cancelled_when_jobset_takes_no_restarts(reason: str) -> None:
    theatre = Theatre()
    async with theatre.stage.leading() as coordinator:
        theatre.stage.fails(coordinator, 0)
        round_id = await theatre.stopped()
        jobset = theatre.here.jobset
        assert jobset is not None
        done = Condition("Completed", status=True, reason="AllJobsCompleted", message="", since=theatre.stage.now())
        theatre.here.put(
            {
                "suspended": suspended(jobset),
                "gone": None,
                "completed": replace(jobset, status=Status(conditions=(done,))),
                "recreating": replace(jobset, status=Status(restarts=1)),
            }[reason]
        )
        for index in range(SIZE):
            assert (await theatre.stage.agent(index).received("abort")).abort.round == round_id
        status = theatre.stage.restarts.statuses[round_id]
        assert status["phase"] == "Failed"
        (cancelled,) = [each for each in status["conditions"] if each["type"] == "Cancelled"]
        assert cancelled["message"] == f"its JobSet is {reason}"


async def test_cancelled_round_costs_nothing() -> None:
    theatre = Theatre(limit=1)
    jobset = theatre.here.jobset
    async with theatre.stage.leading() as coordinator:
        theatre.stage.fails(coordinator, 0, fault_id="first")
        round_id = await theatre.stopped()
        theatre.here.put(suspended(jobset))
        await until(lambda: theatre.stage.restarts.all[round_id].is_finished)
        theatre.here.put(jobset)
        await theatre.round(coordinator, fault_id="second")
        theatre.here.reconcile()
        assert theatre.status.restarts_counted == 1


@pytest.mark.parametrize("is_resumed", [False, True], ids=["begun", "resumed"])
async def test_round_of_a_replaced_jobset_costs_its_successor_nothing(is_resumed: bool) -> None:
    theatre = Theatre(limit=1)
    stage, former = theatre.stage, theatre.here.jobset
    assert former is not None
    async with contextlib.AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(stage.leading())
        stage.fails(coordinator, 0)
        round_id = await theatre.stopped()
        if is_resumed:
            await stack.aclose()
            theatre.ours.book.new_term()
            restart = replace(stage.restarts.all[round_id], owner_uid=former.uid)
            theatre.ours.book.restart_changed(RestartChange(ChangeKind.APPEARED, restart))
            coordinator = await stack.enter_async_context(stage.leading(epoch=2))
        for index in range(SIZE):
            stage.stands(coordinator, index, round_id, Result.STOPPED)
        for index in range(SIZE):
            await stage.agent(index).received("release")
        theatre.here.put(None)
        theatre.here.put(replace(former, uid="uid-another", created_at=stage.now()))
        for member in [*stage.members.of_gang(GANG).values()]:
            stage.members.gone(member.pod.uid)
        await until(lambda: stage.restarts.all[round_id].is_finished)
        theatre.here.reconcile()
        assert (theatre.status.restarts_counted, theatre.status.current_in_place) == (0, None)


async def test_new_leader_counts_rounds_of_previous_leader() -> None:
    theatre = Theatre(limit=1)
    async with theatre.stage.leading() as coordinator:
        await theatre.round(coordinator)
    theatre.ours.book.new_term()
    for restart in theatre.stage.restarts.all.values():
        theatre.ours.book.restart_changed(RestartChange(ChangeKind.APPEARED, restart))
    async with theatre.stage.leading(epoch=2) as coordinator:
        theatre.stage.fails(coordinator, 1, fault_id="anew")
        assert (await theatre.answer(1)).reason == "ReachedMaxRestarts"


async def test_round_numbers_continue_from_status_without_records() -> None:
    theatre = Theatre()
    jobset = theatre.here.jobset
    assert jobset is not None
    theatre.here.put(replace(jobset, status=Status(previous_in_place=6, current_in_place=7)))
    async with theatre.stage.leading() as coordinator:
        round_id = await theatre.round(coordinator)
        restart = theatre.stage.restarts.all[round_id]
        assert restart.attempt == 8
        theatre.here.reconcile()
        assert (theatre.status.previous_in_place, theatre.status.current_in_place) == (7, 8)


async def test_single_member_gang_is_counted() -> None:
    theatre = Theatre(limit=1, size=1)
    async with theatre.stage.leading() as coordinator:
        await theatre.round(coordinator)
        theatre.stage.fails(coordinator, 0, fault_id="anew")
        assert (await theatre.answer()).reason == "ReachedMaxRestarts"


async def test_given_up_member_is_neither_awaited_nor_replaced() -> None:
    lost = builders.member(1, gang=GANG, slot="js-w-0/1", phase=PodPhase.FAILED)
    alive = [builders.member(index, gang=GANG, slot=f"js-w-0/{index}") for index in (0, 2)]
    theatre = Theatre(members=(alive[0], lost, alive[1]))
    theatre.here.jobs = (worlds.job("w-0", failed_indexes="1"),)
    async with theatre.stage.leading() as coordinator:
        theatre.stage.fails(coordinator, 0)
        for index in (0, 2):
            round_id = (await theatre.stage.agent(index).received("stop")).stop.round
            theatre.stage.stands(coordinator, index, round_id, Result.STOPPED)
        for index in (0, 2):
            await theatre.stage.agent(index).received("release")
            theatre.stage.stands(coordinator, index, round_id, Result.RUNNING)
        await until(lambda: theatre.stage.restarts.all[round_id].is_finished)
        assert theatre.stage.restarts.statuses[round_id]["phase"] == "Done"
        assert theatre.stage.replaced.wanted == []


async def test_device_replacement_reports_the_node() -> None:
    theatre = Theatre()
    async with theatre.stage.leading() as coordinator:
        theatre.stage.fails(coordinator, 1, action_class="Replace", device="GPU-1")
        await until(lambda: theatre.here.left_nodes == ["node-1"])


async def test_other_gangs_use_operators_limits() -> None:
    theatre = Theatre(managed=False)
    async with theatre.stage.leading() as coordinator:
        await theatre.round(coordinator)
        assert theatre.ours.policy(GANG) is None


async def test_gang_whose_jobset_is_no_longer_managed_gets_rounds() -> None:
    theatre = Theatre()
    async with theatre.stage.leading() as coordinator:
        await theatre.round(coordinator)
        theatre.here.put(None)
        former = [*theatre.stage.members.of_gang(GANG).values()]
        theatre.stage.fails(coordinator, 0, fault_id="late")
        assert (await theatre.answer()).reason == "JobSetClosed"
        for member in former:
            theatre.stage.members.gone(member.pod.uid)
        for member in former:
            theatre.stage.members.appears(member)
        await theatre.round(coordinator, fault_id="anew")


def request(name: str) -> Restart:
    return Restart(
        namespace="team",
        name=name,
        uid=f"uid-{name}",
        version="1",
        generation=1,
        created_at=builders.NOW,
        spec=RestartSpec(gang=GANG),
        gang=GANG,
    )
