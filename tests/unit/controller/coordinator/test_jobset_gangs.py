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
from kubemend.controller.jobset.plan import ObservedState, Plan
from kubemend.controller.jobset.spec.model import ChildJob, Condition, FailurePolicy, JobSet, RestartStrategy, Status
from kubemend.controller.model.members import Member, PodPhase
from kubemend.controller.restarts.objects import Restart, RestartSpec
from kubemend.controller.restarts.store import RestartChange
from tests.eventually import true as until
from tests.unit.controller import builders
from tests.unit.controller.coordinator.env import CoordinatorEnv
from tests.unit.jobset import builders as jobsets

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
        self.restarted_elsewhere = False
        self.invalid = False
        self._now = now
        self._listeners: list[Callable[[str, str], None]] = []

    async def run(self) -> None:
        raise AssertionError("gangs ask JobSets, and do not run them")

    async def wait_known(self) -> None:
        return

    def find(self, namespace: str, name: str) -> JobSet | None:
        found = self.jobset
        return found if found is not None and (found.namespace, found.name) == (namespace, name) else None

    def is_invalid(self, namespace: str, name: str) -> bool:
        return self.invalid and (namespace, name) == (GANG.namespace, GANG.name)

    def is_restarted_elsewhere(self, namespace: str, name: str) -> bool:
        return self.restarted_elsewhere and (namespace, name) == (GANG.namespace, GANG.name)

    def job(self, namespace: str, jobset: str, name: str) -> ChildJob | None:
        return next((each for each in self.jobs if each.name == name), None)

    def observe(self, jobset: JobSet) -> ObservedState:
        assert self.book is not None
        return ObservedState(
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
        decided = decide.decide(self.observe(self.jobset))
        if decided.status is not None:
            self.jobset = replace(self.jobset, status=decided.status)
        return decided


class JobSetGangEnv:
    """An environment whose gang belongs to a JobSet."""

    def __init__(
        self, *, limit: int = 3, size: int = SIZE, managed: bool = True, members: tuple[Member, ...] = ()
    ) -> None:
        everyone = members or tuple(builders.member(index, gang=GANG, slot=f"js-w-{index}/0") for index in range(size))
        self.coordinator_env = CoordinatorEnv(everyone)
        policy = FailurePolicy(max_restarts=limit, strategy=RestartStrategy.IN_PLACE)
        jobset = jobsets.jobset(jobsets.replicated(replicas=size), failure=policy)
        jobset = replace(jobset, created_at=self.coordinator_env.now() - 60.0)
        jobs = [jobsets.job(f"w-{index}", ready=1, active=1) for index in range(size)]
        self.here = JobSetsHere(self.coordinator_env.now, jobset if managed else None, *jobs)

        def make(book: RoundBook) -> Any:
            self.here.book = book
            return self.here

        self.ours = OurJobSets(make)
        self.coordinator_env.dependencies = replace(self.coordinator_env.dependencies, jobsets=self.ours)
        self.coordinator_env.restarts.subscribe(self.ours.book.restart_changed)

    async def round(self, coordinator: GangCoordinator, index: int = 0, *, fault_id: str = "f") -> str:
        """Have a member fail and the whole round succeed. Returns its id."""
        self.coordinator_env.fails(coordinator, index, fault_id=fault_id)
        round_id = await self.stopped()
        await self.released(coordinator, round_id)
        return round_id

    async def stopped(self) -> str:
        ids = {(await agent.received("stop")).stop.round for agent in self.coordinator_env.agents.values()}
        (round_id,) = ids
        return round_id

    async def released(self, coordinator: GangCoordinator, round_id: str) -> None:
        """Have all members stop and run again."""
        for phase, order in ((Result.STOPPED, "release"), (Result.RUNNING, "")):
            for index in range(len(self.coordinator_env.agents)):
                self.coordinator_env.stands(coordinator, index, round_id, phase)
            for agent in self.coordinator_env.agents.values():
                if order:
                    await agent.received(order)
        restart_id = round_id.partition(".")[0]  # that of a request has the beginning of its UID
        await until(lambda: self.coordinator_env.restarts.all[restart_id].is_finished)

    async def answer(self, index: int = 0) -> pb.FaultAnswer:
        return (await self.coordinator_env.agent(index).received("answer")).answer

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


async def test_jobset_is_read_once_for_all_faults_that_are_decided_about_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All members of a gang may fail while it waits out its backoff."""
    env = JobSetGangEnv(limit=9, size=40)
    reads: list[JobSet] = []
    observe = env.here.observe

    def read(jobset: JobSet) -> ObservedState:
        reads.append(jobset)
        return observe(jobset)

    monkeypatch.setattr(env.here, "observe", read)
    async with env.coordinator_env.leading() as coordinator:
        for number in range(3):
            await env.round(coordinator, fault_id=f"f{number}")
        reads.clear()
        for index in range(40):
            env.coordinator_env.fails(coordinator, index, fault_id="one more")
        answers = [await env.answer(index) for index in range(1, 40)]
        assert {(each.answer, each.reason) for each in answers} == {(pb.FaultAnswer.ROUND, "NoProgress")}
        assert len(reads) == 1


async def test_max_restarts_counts_rounds_caused_by_faults() -> None:
    env = JobSetGangEnv(limit=2)
    async with env.coordinator_env.leading() as coordinator:
        for number in range(2):
            await env.round(coordinator, fault_id=f"f{number}")
        env.here.reconcile()
        assert env.status.restarts_counted == 2
        assert (env.status.previous_in_place, env.status.current_in_place) == (1, 2)
        env.coordinator_env.fails(coordinator, 0, fault_id="one more")
        answer = await env.answer()
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "ReachedMaxRestarts")
        assert len(env.coordinator_env.restarts.all) == 2
        env.here.reconcile()
        failed = env.condition("Failed")
        assert failed is not None
        assert failed.status
        assert failed.reason == "ReachedMaxRestarts"


async def test_gang_that_upstreams_controller_restarts_in_place_is_left_to_it() -> None:
    """Its pods need not have their sidecars' annotation yet."""
    env = JobSetGangEnv(managed=False)
    env.here.restarted_elsewhere = True
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 0)
        answer = await env.answer()
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "JobSetRestartsInPlace")
        assert env.coordinator_env.restarts.all == {}


async def test_round_counts_from_its_begin() -> None:
    env = JobSetGangEnv(limit=1)
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 0)
        await env.stopped()
        policy = env.ours.policy(GANG)
        assert policy is not None
        assert (policy.limit, policy.used) == (1, 1)
        env.here.reconcile()
        restarting = env.condition("kubemend.io/InPlaceRestart")
        assert restarting is not None
        assert (restarting.status, restarting.reason) == (True, "Restarting")
        assert env.status.restarts_counted == 0


async def test_first_fault_without_restarts_left_fails_jobset() -> None:
    env = JobSetGangEnv(limit=0)
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 1)
        assert (await env.answer(1)).reason == "ReachedMaxRestarts"
        assert env.coordinator_env.restarts.all == {}
        assert env.here.reconcile().counts == ("failed",)


async def test_dry_run_fails_no_jobset() -> None:
    env = JobSetGangEnv(limit=0)
    env.coordinator_env.dependencies = replace(
        env.coordinator_env.dependencies, policy=replace(env.coordinator_env.dependencies.policy, dry_run=True)
    )
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 1)
        await env.answer(1)
        assert env.here.reconcile().counts == ()


async def test_requested_round_costs_nothing() -> None:
    env = JobSetGangEnv(limit=1)
    async with env.coordinator_env.leading() as coordinator:
        for number in range(3):
            env.coordinator_env.restarts.asked(request(f"please-{number}"))
            round_id = await env.stopped()
            await env.released(coordinator, round_id)
        env.here.reconcile()
        assert (env.status.restarts_counted, env.status.current_in_place) == (0, 3)
        await env.round(coordinator)
        env.here.reconcile()
        assert env.status.restarts_counted == 1


async def test_suspended_jobset_begins_no_round() -> None:
    env = JobSetGangEnv()
    env.here.put(suspended(env.here.jobset))
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 0)
        answer = await env.answer()
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "Suspended")
        env.coordinator_env.restarts.asked(request("please"))
        await until(lambda: "team/please" in env.coordinator_env.restarts.statuses)
        assert env.coordinator_env.restarts.statuses["team/please"]["phase"] == "Refused"


async def test_jobset_that_a_new_leader_cannot_read_begins_no_round() -> None:
    """It may have used up its maxRestarts, or be suspended."""
    env = JobSetGangEnv(managed=False)
    env.here.invalid = True
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 0)
        answer = await env.answer()
        assert (answer.answer, answer.reason) == (pb.FaultAnswer.NOTHING, "JobSetClosed")
        assert answer.detail == "the JobSet of gang team/JobSet/js is invalid"


@pytest.mark.parametrize("reason", ["suspended", "gone", "completed", "recreating"])
async def test_round_is_cancelled_when_jobset_takes_no_restarts(reason: str) -> None:
    env = JobSetGangEnv()
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 0)
        round_id = await env.stopped()
        jobset = env.here.jobset
        assert jobset is not None
        done = Condition(
            "Completed", status=True, reason="AllJobsCompleted", message="", since=env.coordinator_env.now()
        )
        env.here.put(
            {
                "suspended": suspended(jobset),
                "gone": None,
                "completed": replace(jobset, status=Status(conditions=(done,))),
                "recreating": replace(jobset, status=Status(restarts=1)),
            }[reason]
        )
        for index in range(SIZE):
            assert (await env.coordinator_env.agent(index).received("abort")).abort.round == round_id
        status = env.coordinator_env.restarts.statuses[round_id]
        assert status["phase"] == "Failed"
        (cancelled,) = [each for each in status["conditions"] if each["type"] == "Cancelled"]
        assert cancelled["message"] == f"its JobSet is {reason}"


async def test_cancelled_round_costs_nothing() -> None:
    env = JobSetGangEnv(limit=1)
    jobset = env.here.jobset
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 0, fault_id="first")
        round_id = await env.stopped()
        env.here.put(suspended(jobset))
        await until(lambda: env.coordinator_env.restarts.all[round_id].is_finished)
        env.here.put(jobset)
        await env.round(coordinator, fault_id="second")
        env.here.reconcile()
        assert env.status.restarts_counted == 1


@pytest.mark.parametrize("is_resumed", [False, True], ids=["begun", "resumed"])
async def test_round_of_a_replaced_jobset_costs_its_successor_nothing(is_resumed: bool) -> None:
    env = JobSetGangEnv(limit=1)
    inner, former = env.coordinator_env, env.here.jobset
    assert former is not None
    async with contextlib.AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(inner.leading())
        inner.fails(coordinator, 0)
        round_id = await env.stopped()
        if is_resumed:
            await stack.aclose()
            env.ours.book.new_term()
            restart = replace(inner.restarts.all[round_id], owner_uid=former.uid)
            env.ours.book.restart_changed(RestartChange(ChangeKind.APPEARED, restart))
            coordinator = await stack.enter_async_context(inner.leading(epoch=2))
        for index in range(SIZE):
            inner.stands(coordinator, index, round_id, Result.STOPPED)
        for index in range(SIZE):
            await inner.agent(index).received("release")
        env.here.put(None)
        env.here.put(replace(former, uid="uid-another", created_at=inner.now()))
        for member in [*inner.members.of_gang(GANG).values()]:
            inner.members.gone(member.pod.uid)
        await until(lambda: inner.restarts.all[round_id].is_finished)
        env.here.reconcile()
        assert (env.status.restarts_counted, env.status.current_in_place) == (0, None)


async def test_new_leader_counts_rounds_of_previous_leader() -> None:
    env = JobSetGangEnv(limit=1)
    async with env.coordinator_env.leading() as coordinator:
        await env.round(coordinator)
    env.ours.book.new_term()
    for restart in env.coordinator_env.restarts.all.values():
        env.ours.book.restart_changed(RestartChange(ChangeKind.APPEARED, restart))
    async with env.coordinator_env.leading(epoch=2) as coordinator:
        env.coordinator_env.fails(coordinator, 1, fault_id="later")
        assert (await env.answer(1)).reason == "ReachedMaxRestarts"


async def test_round_numbers_continue_from_status_without_records() -> None:
    env = JobSetGangEnv()
    jobset = env.here.jobset
    assert jobset is not None
    env.here.put(replace(jobset, status=Status(previous_in_place=6, current_in_place=7)))
    async with env.coordinator_env.leading() as coordinator:
        round_id = await env.round(coordinator)
        restart = env.coordinator_env.restarts.all[round_id]
        assert restart.attempt == 8
        env.here.reconcile()
        assert (env.status.previous_in_place, env.status.current_in_place) == (7, 8)


async def test_single_member_gang_is_counted() -> None:
    env = JobSetGangEnv(limit=1, size=1)
    async with env.coordinator_env.leading() as coordinator:
        await env.round(coordinator)
        env.coordinator_env.fails(coordinator, 0, fault_id="later")
        assert (await env.answer()).reason == "ReachedMaxRestarts"


async def test_given_up_member_is_neither_awaited_nor_replaced() -> None:
    lost = builders.member(1, gang=GANG, slot="js-w-0/1", phase=PodPhase.FAILED)
    alive = [builders.member(index, gang=GANG, slot=f"js-w-0/{index}") for index in (0, 2)]
    env = JobSetGangEnv(members=(alive[0], lost, alive[1]))
    env.here.jobs = (jobsets.job("w-0", failed_indexes="1"),)
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 0)
        for index in (0, 2):
            round_id = (await env.coordinator_env.agent(index).received("stop")).stop.round
            env.coordinator_env.stands(coordinator, index, round_id, Result.STOPPED)
        for index in (0, 2):
            await env.coordinator_env.agent(index).received("release")
            env.coordinator_env.stands(coordinator, index, round_id, Result.RUNNING)
        await until(lambda: env.coordinator_env.restarts.all[round_id].is_finished)
        assert env.coordinator_env.restarts.statuses[round_id]["phase"] == "Done"
        assert env.coordinator_env.replaced.wanted == []


async def test_device_replacement_reports_the_node() -> None:
    env = JobSetGangEnv()
    async with env.coordinator_env.leading() as coordinator:
        env.coordinator_env.fails(coordinator, 1, action_class="Replace", device="GPU-1")
        await until(lambda: env.here.left_nodes == ["node-1"])


async def test_new_leader_reports_the_node_of_a_pod_that_is_being_deleted_for_a_device() -> None:
    """The previous one may have ended before it had tainted the node."""
    ending = builders.member(0, gang=GANG, slot="js-w-0/0", deleting=True, device_failure="Xid79")
    env = JobSetGangEnv(members=(ending, builders.member(1, gang=GANG, slot="js-w-1/0", deleting=True)))
    async with env.coordinator_env.leading():
        assert env.here.left_nodes == [ending.node]


async def test_other_gangs_use_operators_limits() -> None:
    env = JobSetGangEnv(managed=False)
    async with env.coordinator_env.leading() as coordinator:
        await env.round(coordinator)
        assert env.ours.policy(GANG) is None


async def test_gang_whose_jobset_is_no_longer_managed_gets_rounds() -> None:
    env = JobSetGangEnv()
    async with env.coordinator_env.leading() as coordinator:
        await env.round(coordinator)
        env.here.put(None)
        former = [*env.coordinator_env.members.of_gang(GANG).values()]
        env.coordinator_env.fails(coordinator, 0, fault_id="late")
        assert (await env.answer()).reason == "JobSetClosed"
        for member in former:
            env.coordinator_env.members.gone(member.pod.uid)
        for member in former:
            env.coordinator_env.members.appears(member)
        await env.round(coordinator, fault_id="later")


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
