"""Run manual restarts on the stand-in runtime: their progress, and their interplay with faults."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubemend.agent.actuator.progress import Begun, Decided, Event, Joined, Queued, Reported, StepTaken
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.restart import admission
from kubemend.agent.restart.admission import Verb
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.overrides import RestartOverrides
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restart.steps import StepKind
from kubemend.agent.restarts import requests
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import RestartScheduler
from tests.environments import node, pod_env
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET

SECONDS = 60.0


@dataclass
class Person:
    """Requests a restart of the trainer, and records the progress."""

    env: RestartEnv
    events: list[Event] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    async def ask(self, **asked: Any) -> None:
        cause = admission.Cause(code="Requested", message="request of uid 0", happened_at=NOW)
        wanted = RestartOverrides(**asked)
        await self.env.restarts.submit(
            Request(target=TARGET, cause=lambda: cause, devices=frozenset(), asked=wanted, followed=self)
        )

    async def until(self, kind: type[Event]) -> None:
        async with asyncio.timeout(SECONDS):
            while not any(isinstance(event, kind) for event in self.events):
                self.changed.clear()
                await self.changed.wait()

    def reported(self) -> list[type[Event]]:
        return [type(event) for event in self.events]

    def steps(self) -> list[tuple[StepKind, str, int | None]]:
        return [(e.step.kind, e.container, e.attempt) for e in self.events if isinstance(e, StepTaken)]

    @property
    def verified(self) -> bool:
        return isinstance(self.events[-1], Reported) and self.events[-1].verified


def fault(happened_at: float = NOW) -> Request:
    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=happened_at)
    return Request(target=TARGET, cause=lambda: cause, devices=frozenset())


async def opt_in(env: RestartEnv) -> None:
    annotations = {"kubemend.io/restart": "InPlace"}
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], annotations=annotations))


async def opt_out(env: RestartEnv) -> None:
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], annotations={}))


async def spend_the_budget(env: RestartEnv) -> None:
    for number in range(20):
        await env.store.begin(env.pod.cri_env.intent(id=f"old-{number}", created_at=NOW - 30 + number))


async def test_progress_reports_each_step_to_verified_end(env: RestartEnv) -> None:
    await opt_out(env)
    person = Person(env)
    async with env.kubelet():
        await person.ask()
    assert person.reported() == [Decided, Begun, StepTaken, StepTaken, StepTaken, Reported, Reported]
    assert person.steps() == [
        (StepKind.STOP, "trainer", 0),
        (StepKind.CREATE, "trainer", 1),
        (StepKind.START, "trainer", 1),
    ]
    assert person.verified


async def test_progress_of_rerun_reports_steps_of_every_container(env: RestartEnv) -> None:
    person = Person(env)
    async with env.kubelet():
        await person.ask(strategy=Strategy.RERUN)
    taken = person.steps()
    assert {(StepKind.REMOVE, name, 0) for name in pod_env.ROLES} <= set(taken)
    for name in pod_env.LASTING:  # kubelet may have started the init container, which comes first
        assert {(StepKind.CREATE, name, 1), (StepKind.START, name, 1)} <= set(taken)
    assert person.verified


async def test_progress_reports_failed_step_with_error(env: RestartEnv) -> None:
    import grpc

    env.pod.cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL, details="no space left", times=2)
    person = Person(env)
    async with env.kubelet():
        await person.ask()
    (failed,) = [e for e in person.events if isinstance(e, StepTaken) and e.error]
    assert (failed.step.kind, failed.container, failed.attempt) == (StepKind.CREATE, "trainer", None)
    assert "no space left" in failed.error
    assert person.verified


async def test_progress_of_refused_request_is_only_the_refusal(env: RestartEnv) -> None:
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], deleting=True))
    person = Person(env)
    await person.ask()
    (event,) = person.events
    assert isinstance(event, Decided)
    assert (event.decision.verb, event.decision.reason) == (Verb.REFUSE, Reason.POD_DELETING)


async def test_second_manual_request_follows_the_first(env: RestartEnv) -> None:
    first, second = Person(env), Person(env)
    async with env.kubelet():
        asking = asyncio.create_task(first.ask(strategy=Strategy.RESET))
        await first.until(Begun)
        await second.ask(strategy=Strategy.SWAP)
        await asking
    assert second.reported()[:3] == [Joined, Decided, Begun]
    assert second.events[-1] == first.events[-1]
    assert first.verified
    assert {event.strategy for event in second.events if isinstance(event, Begun)} == {Strategy.RESET}
    assert len(await env.store.begun_since(0)) == 1


async def test_manual_request_follows_restart_started_by_fault(env: RestartEnv) -> None:
    await opt_in(env)
    watcher, person = Person(env), Person(env)
    async with env.kubelet():
        mending = asyncio.create_task(env.restarts.submit(replace(fault(), followed=watcher)))
        await watcher.until(Begun)
        await person.ask()
        await mending
    (joined,) = [event for event in person.events if isinstance(event, Joined)]
    assert joined.cause.code == "Xid31"
    assert person.verified
    assert len(await env.store.begun_since(0)) == 1


async def test_fault_on_hold_does_not_block_manual_request(env: RestartEnv) -> None:
    await opt_in(env)
    await spend_the_budget(env)
    watcher, person = Person(env), Person(env)
    async with env.kubelet():
        held = asyncio.create_task(env.restarts.submit(replace(fault(), followed=watcher)))
        await watcher.until(Decided)
        await person.ask()
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
    (decided,) = {e.decision.reason for e in watcher.events if isinstance(e, Decided)}
    assert decided is Reason.BUDGET_SPENT
    assert person.verified


async def test_manual_restart_counts_against_budget(env: RestartEnv) -> None:
    before = len(await env.store.begun_since(0))
    async with env.kubelet():
        await Person(env).ask()
    assert len(await env.store.begun_since(0)) == before + 1


async def test_request_waiting_for_another_restart_reports_queued(env: RestartEnv) -> None:
    first, second = Person(env), Person(env)
    cause = admission.Cause(code="Requested", message="request of uid 0", happened_at=NOW)
    other = Request(
        target=replace(TARGET, name="logger"),
        cause=lambda: cause,
        devices=frozenset(),
        asked=RestartOverrides(),
        followed=second,
    )
    async with env.kubelet():
        asking = asyncio.create_task(first.ask())
        await first.until(Begun)
        await env.restarts.submit(other)
        await asking
    assert second.reported()[:2] == [Queued, Decided]
    assert second.verified


async def test_restart_with_unknown_device_is_never_verified(env: RestartEnv) -> None:
    person = Person(env)
    cause = admission.Cause(code="Requested", message="request of uid 0", happened_at=NOW)
    async with env.kubelet():
        await env.restarts.submit(
            Request(target=TARGET, cause=lambda: cause, devices=None, asked=RestartOverrides(), followed=person)
        )
    assert not person.verified
    report = person.events[-1]
    assert isinstance(report, Reported)
    assert report.outcome.result.restarted


async def test_fault_before_restart_is_settled_by_it(env: RestartEnv) -> None:
    await opt_in(env)
    watcher = Person(env)
    async with env.kubelet():
        mending = asyncio.create_task(env.restarts.submit(replace(fault(), followed=watcher)))
        await watcher.until(Begun)
        await asyncio.gather(mending, *(env.restarts.submit(fault(NOW - number)) for number in range(3)))
    assert len(await env.store.begun_since(0)) == 1


async def test_fault_of_successor_during_restart_is_not_lost(env: RestartEnv) -> None:
    await opt_in(env)
    watcher = Person(env)
    async with env.kubelet():
        mending = asyncio.create_task(env.restarts.submit(replace(fault(), followed=watcher)))
        await watcher.until(Begun)
        await asyncio.gather(mending, env.restarts.submit(fault(NOW + 1)))
    assert len(await env.store.begun_since(0)) == 2


async def test_fault_after_one_that_kubelet_answered_is_not_lost(env: RestartEnv) -> None:
    await opt_in(env)
    watcher, proven = Person(env), asyncio.Event()

    def cause() -> admission.Cause:
        return admission.Cause(code="Xid31", message="Xid 31", happened_at=0.0, devices_known=proven.is_set())

    async with env.kubelet():
        early = asyncio.create_task(
            env.restarts.submit(Request(target=TARGET, cause=cause, devices=frozenset(), followed=watcher))
        )
        await watcher.until(Decided)  # on hold
        late = asyncio.create_task(env.restarts.submit(fault()))
        proven.set()
        await asyncio.gather(early, late)
    last = [event.decision.reason for event in watcher.events if isinstance(event, Decided)][-1]
    assert last is Reason.ALREADY_REPLACED
    assert len(await env.store.begun_since(0)) == 1


async def _joined_a_hang_that_ends(env: RestartEnv, *, lapsed: str = "") -> Condition:
    """Spend the budget; have an Xid join a hang on hold, which beats again; return the last report.

    The budget is free again when the Xid is decided.
    """
    await opt_in(env)
    clock, beats = [NOW], asyncio.Event()
    await spend_the_budget(env)
    scheduler = RestartScheduler(
        dependencies=env.dependencies, store=env.store, metrics=node.metrics(), now=lambda: clock[0]
    )

    async def withdrawn() -> str:
        return "it beats again" if beats.is_set() else ""

    async def has_lapsed() -> str:
        return lapsed

    hang = admission.Cause(code="HeartbeatTimeout", message="no heartbeat", happened_at=NOW)
    first = asyncio.create_task(
        scheduler.submit(Request(target=TARGET, cause=lambda: hang, devices=None, withdrawn=withdrawn))
    )
    async with asyncio.timeout(SECONDS):
        await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, Reason.BUDGET_SPENT.value)
    xid = Person(env)
    second = asyncio.create_task(scheduler.submit(replace(fault(), lapsed=has_lapsed, followed=xid)))
    await xid.until(Joined)
    beats.set()
    clock[0] += 7200.0
    async with env.kubelet():
        await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], labels={"changed": "yes"}))
        await asyncio.gather(first, second)
    return env.said.said[POD, conditions.IN_PLACE_RESTART]


async def test_fault_that_joined_a_request_whose_cause_ends_is_decided_on_its_own(env: RestartEnv) -> None:
    condition = await _joined_a_hang_that_ends(env)
    assert condition.message.startswith("trainer restart")
    assert (await env.pod.running())["trainer"] != [env.pod.old["trainer"]]


async def test_fault_that_joined_a_request_on_hold_restarts_nothing_once_its_process_has_ended(env: RestartEnv) -> None:
    condition = await _joined_a_hang_that_ends(env, lapsed="process 4711, which the fault hit, has ended")
    assert (condition.reason, "4711" in condition.message) == (Reason.CAUSE_GONE.value, True)
    assert (await env.pod.running())["trainer"] == [env.pod.old["trainer"]]


async def test_fault_older_than_container_is_refused_visibly(env: RestartEnv) -> None:
    """The kernel log's clock may be hours late: the refusal must be visible."""
    await opt_in(env)
    await env.restarts.submit(fault(0.0))
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "AlreadyReplaced")
    assert " s after the fault" in condition.message


async def test_late_fault_right_after_a_restart_is_refused_visibly(env: RestartEnv) -> None:
    """It may be the successor's, by a clock that is late."""
    assert (await env.ask()).status is ConditionStatus.TRUE
    await env.restarts.submit(fault(0.0))
    condition = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "AlreadyReplaced")


async def test_fault_known_before_the_restart_does_not_hide_its_success(env: RestartEnv) -> None:
    watcher, proven = Person(env), asyncio.Event()

    def cause() -> admission.Cause:
        return admission.Cause(code="Xid31", message="Xid 31", happened_at=0.0, devices_known=proven.is_set())

    await opt_in(env)
    request = Request(target=TARGET, cause=cause, devices=frozenset(), followed=watcher)
    env.restarts._now = lambda: NOW - 1.0
    early = asyncio.create_task(env.restarts.submit(request))
    await watcher.until(Decided)  # on hold
    env.restarts._now = lambda: NOW
    async with env.kubelet():
        await Person(env).ask()
    done = env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert done.status is ConditionStatus.TRUE
    proven.set()
    await early
    assert [event.decision.reason for event in watcher.events if isinstance(event, Decided)][-1] is (
        Reason.ALREADY_REPLACED
    )
    assert env.said.said[POD, conditions.IN_PLACE_RESTART] == done


@pytest.mark.parametrize("reason", ["fault", "person"])
async def test_scheduler_has_no_running_request_at_end(env: RestartEnv, reason: str) -> None:
    async with env.kubelet():
        await (env.restarts.submit(fault()) if reason == "fault" else Person(env).ask())
    assert (env.restarts._for_faults, env.restarts._for_people) == ({}, {})


async def test_faults_that_wait_for_a_spent_budget_are_limited(env: RestartEnv) -> None:
    await opt_in(env)
    await spend_the_budget(env)
    async with asyncio.TaskGroup() as tasks:
        first = Person(env)
        waiting = [tasks.create_task(env.restarts.submit(replace(fault(), followed=first)))]
        await first.until(Decided)
        joined = [Person(env) for _ in range(requests.MOST_FOLLOWERS)]
        waiting += [tasks.create_task(env.restarts.submit(replace(fault(), followed=each))) for each in joined]
        for each in joined:
            await each.until(Joined)
        async with asyncio.timeout(SECONDS):
            await env.restarts.submit(fault())
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
