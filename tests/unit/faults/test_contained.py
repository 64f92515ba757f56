"""An internal error in one pod's or device's work ends only that work: other restarts still happen."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from kubemend.agent.actuator.swap_calls import SwapCalls
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.condition_publisher import ConditionPublisher
from kubemend.agent.faults.hangs import Hangs
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.hangs import Hang
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, ContainerRef, PodRef, RestartPolicy
from kubemend.agent.restarts import planning
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.requests import Request
from kubemend.agent.rounds.session import INTERNAL, MemberSession
from kubemend.common import aio, contained
from kubemend.common.contained import Part
from kubemend.common.coordination import StepPhase
from tests import eventually
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.rounds import RoundEnv
from tests.environments.runtime import POD
from tests.fakes import outside
from tests.unit.faults import test_pipeline
from tests.unit.faults.test_pipeline import MONITOR, TRAINER, stopped_env, xid
from tests.unit.faults.test_pipeline import env as findings
from tests.unit.restarts import test_recovery

__all__ = ["findings", "stopped_env"]


SECOND = ContainerRef(replace(POD, name="trainer-1", uid="uid-of-the-second"), "trainer")  # type: ignore[arg-type]


def broken(*_: object, **__: object) -> Any:
    raise IndexError("a bug")


def away() -> Outcome:
    return Outcome(Result.UNFINISHED, detail="the runtime is away")


# ---- findings ----


async def test_finding_that_fails_leaves_others(
    findings: test_pipeline.PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = findings.faults.named_container
    before = contained.count([Part.FINDING])

    def named_container(finding: Any, facts: Any) -> Any:
        return broken() if finding.pid == 666 else named(finding, facts)

    monkeypatch.setattr(findings.faults, "named_container", named_container)
    findings.queue.submit(xid(pid=666))
    findings.queue.submit(xid(pid=4242))
    assert (await findings.restarted(within=60)).target == TRAINER
    assert contained.count([Part.FINDING]) == before + 1
    await eventually.true(findings.queue.idle)


async def test_fault_handler_error_leaves_others_and_fault_ends(
    findings: test_pipeline.PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    attribute = findings.faults._attribute

    async def attributed(recorded: Any) -> Any:
        return broken() if recorded.finding.code == "13" else await attribute(recorded)

    monkeypatch.setattr(findings.faults, "_attribute", attributed)
    old = findings.events.run(TRAINER, name="trainer-0", created_at=1)
    findings.holders.hold(TRAINER)
    findings.queue.submit(xid(13, pid=4242))
    findings.queue.submit(xid(31, pid=4242))
    request = await findings.restarted(within=60)
    assert (request.target, request.cause().code) == (TRAINER, "Xid31")
    findings.events.stop(old)
    await findings.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)
    await eventually.true(findings.queue.idle)


async def test_error_in_the_wait_for_the_end_of_a_fault_leaves_it_active(
    findings: test_pipeline.PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, before = findings.faults.handle, contained.count([Part.FAULT])

    async def over() -> None:
        broken()

    async def handled(recorded: Any) -> Any:
        await handle(recorded)
        return over

    monkeypatch.setattr(findings.faults, "handle", handled)
    findings.queue.submit(xid(31, pid=4242))
    await eventually.true(lambda: contained.count([Part.FAULT]) == before + 1)
    await eventually.true(findings.queue.idle)
    (fault,) = findings.verdict_store.active_faults(outside.GPU.uuid)
    assert fault.reason == "Xid31"


async def test_restart_error_leaves_second_container_of_fault(
    findings: test_pipeline.PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = findings.restarts.submit

    async def handled(request: Request) -> None:
        if request.target == TRAINER and not asked:
            asked.append(request)
            broken()
        await submit(request)

    asked: list[Request] = []
    monkeypatch.setattr(findings.restarts, "submit", handled)
    findings.queue.submit(xid(31, pid=4242))
    findings.queue.submit(xid(13, pid=4242))
    assert (await findings.restarted(within=60)).target == TRAINER
    assert len(asked) == 1


async def test_publishing_error_of_pod_leaves_others(findings: test_pipeline.PipelineEnv) -> None:
    class Reporter(outside.Conditions):
        def set(self, pod: PodRef, condition: Condition) -> None:
            if pod == MONITOR.pod:
                broken()
            super().set(pod, condition)

    said = Reporter()
    findings.holders.hold(MONITOR, TRAINER)
    publisher = ConditionPublisher(
        verdict_store=findings.verdict_store,
        pods=findings.pods,
        devices=findings.devices,
        holders=findings.holders,
        reporter=said,
    )
    publisher.publish(findings.holders.allocations)
    assert (TRAINER.pod, conditions.DEVICES_HEALTHY) in said.said


async def test_hang_handler_error_leaves_others(
    findings: test_pipeline.PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = findings.restarts.submit

    async def handled(request: Request) -> None:
        if request.target == MONITOR:
            broken()
        await submit(request)

    monkeypatch.setattr(findings.restarts, "submit", handled)
    hangs = Hangs(
        verdict_store=findings.verdict_store,
        devices=findings.devices,
        holders=findings.holders,
        metrics=findings.metrics,
    )

    async def still(_: ContainerId) -> str:
        return ""

    running = asyncio.create_task(hangs.run(restarts=findings.restarts, still_hung=still))
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


async def test_restart_error_midway_closes_reports_and_frees_names(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contained.count([Part.RESTART])
    with monkeypatch.context() as patched:
        patched.setattr(SwapCalls, "make", broken)
        condition = await env.ask()
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "Failed")
    assert "internal error (IndexError in faults/test_contained.py:" in condition.message
    assert contained.count([Part.RESTART]) == before + 1
    assert await env.store.unfinished() == ()
    assert env.restarts.quiet.is_set()
    assert not env.restarts._locks.is_locked(POD.uid)
    assert not env.restarts._slots._held


async def test_frozen_container_runs_again_if_successor_fails(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order create, stop, start: the old container is frozen before the successor is created, and runs again."""
    pod = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(pod, restart_policy=RestartPolicy.NEVER))
    made = []

    async def make(calls: SwapCalls, *_: object, **__: object) -> None:
        await calls._standby.freeze_old()
        made.append(calls)
        broken()

    with monkeypatch.context() as patched:
        patched.setattr(SwapCalls, "make", make)
        condition = await env.ask(containers="trainer")
    assert condition.reason == "Failed", condition
    assert made, "the swap tried to create the successor"
    assert env.pod.cri_env.standbys is not None
    assert env.pod.cri_env.standbys.story[:1] == ["frozen"]
    assert env.pod.cri_env.standbys.story[-1] == "thawed"
    assert (await env.pod.running())["trainer"] == [env.pod.old["trainer"]]
    assert await env.store.unfinished() == ()


async def test_undo_waits_for_a_runtime_that_is_away(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the old container would stay frozen until the next agent replays the journal."""
    monkeypatch.setattr(aio.Backoff, "next_wait", lambda _: 0.0)
    swapper, answers = env.dependencies.actuators.swap, [broken, away, away, away]
    carry_out = swapper.carry_out

    async def carried_out(intent: Any, **more: Any) -> Any:
        return answers.pop(0)() if answers else await carry_out(intent, **more)

    pod, standbys = env.pod.pods.pods()[POD.uid], env.pod.cri_env.standbys
    await env.pod.pods.put(replace(pod, restart_policy=RestartPolicy.NEVER))
    monkeypatch.setattr(swapper, "carry_out", carried_out)
    assert standbys is not None
    standbys.frozen = True
    condition = await env.ask(containers="trainer")
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "Failed")
    assert not standbys.frozen
    assert await env.store.unfinished() == ()


@pytest.mark.parametrize("fails", [False, True], ids=["swapped", "undone"])
async def test_verification_waits_for_a_runtime_that_is_away(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Else the intent stays open, and the next agent resumes it next to a later restart of the pod."""
    monkeypatch.setattr(aio.Backoff, "next_wait", lambda _: 0.0)
    swapper, answers = env.dependencies.actuators.swap, [away] * 5
    carry_out, done = swapper.carry_out, list[Any]()

    async def carried_out(intent: Any, **more: Any) -> Any:
        if done and answers:
            return answers.pop()()
        done.append(intent)
        return await carry_out(intent, **more)

    if fails:
        env.pod.cri_env.server.fail("CreateContainer", grpc.StatusCode.UNKNOWN, times=99)
    pod = env.pod.pods.pods()[POD.uid]
    await env.pod.pods.put(replace(pod, restart_policy=RestartPolicy.NEVER))
    monkeypatch.setattr(swapper, "carry_out", carried_out)
    condition = await env.ask(containers="trainer")
    assert (condition.status is ConditionStatus.FALSE, condition.reason) == (fails, "Failed" if fails else "Swapped")
    assert not answers
    assert await env.store.unfinished() == ()


async def test_admission_error_is_reported_and_next_restart_works(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(env.dependencies.owners, "facts", broken)
        condition = await env.ask()
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, INTERNAL)
    assert (await env.ask()).status is ConditionStatus.TRUE


async def test_unreadable_cause_ends_only_its_restart(env: RestartEnv) -> None:
    for _ in range(20):  # more than there are slots
        await env.restarts.submit(Request(target=SECOND, cause=broken, devices=frozenset()))
    assert env.said.said[SECOND.pod, conditions.IN_PLACE_RESTART].reason == INTERNAL
    assert (await env.ask()).status is ConditionStatus.TRUE


async def test_verification_error_still_closes_restart(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.restarts._executor._conclusions._verifier, "wait_for_kubelet", broken)
    await env.ask()
    assert await env.store.unfinished() == ()
    (running,) = (await env.pod.running())["trainer"]
    assert running != env.pod.old["trainer"]


# ---- the journal's replay ----


async def test_replay_error_undoes_intent_and_replays_others(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    await test_recovery.killed_after_the_stop(env)
    bad = env.pod.cri_env.intent(created_at=NOW, id="bad", target=SECOND)
    await env.store.begin(bad)
    resume = planning.resume

    async def resumed(everything: Any, intent: Any, **more: Any) -> Any:
        return broken() if intent.id == "bad" else await resume(everything, intent, **more)

    monkeypatch.setattr(planning, "resume", resumed)
    assert await test_recovery.recovery(env, timeouts=0.0).run() == 2
    assert await env.store.unfinished() == ()
    (running,) = await env.pod.cri_env.running()
    assert running.restart_id == "r1"
    assert env.said.said[SECOND.pod, conditions.IN_PLACE_RESTART].reason == INTERNAL


async def failing_replay(env: RestartEnv, monkeypatch: pytest.MonkeyPatch, *, error: Exception | None = None) -> None:
    """The second pod's intent can be neither replayed, because of the error (default: a bug), nor undone."""
    resume, carry_out = planning.resume, env.dependencies.actuators.swap.carry_out

    async def resumed(everything: Any, intent: Any, **more: Any) -> Any:
        if intent.target != SECOND:
            return await resume(everything, intent, **more)
        if error is not None:
            raise error
        return broken()

    async def carried_out(intent: Any, **more: Any) -> Any:
        return broken() if intent.target == SECOND else await carry_out(intent, **more)

    monkeypatch.setattr(planning, "resume", resumed)
    monkeypatch.setattr(env.dependencies.actuators.swap, "carry_out", carried_out)
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW, id="bad", target=SECOND))


def replay(env: RestartEnv) -> Recovery:
    return test_recovery.recovery(env, timeouts=0.0)


async def test_replay_that_fails_twice_is_quarantined_and_reported(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    await failing_replay(env, monkeypatch)
    await replay(env).run()
    assert [intent.id for intent in await env.store.unfinished()] == ["bad"], "once is not enough"
    await test_recovery.killed_after_the_stop(env)
    await replay(env).run()
    assert await env.store.unfinished() == ()
    assert await env.store.quarantined() == {"bad"}
    reported = env.said.said[SECOND.pod, conditions.IN_PLACE_RESTART]
    assert (reported.status, reported.reason) == (ConditionStatus.FALSE, INTERNAL)
    assert "quarantined in the journal" in reported.message
    (running,) = await env.pod.cri_env.running()
    assert running.restart_id == "r1", "the other one was replayed"
    before = contained.count([Part.REPLAY])
    assert await replay(env).run() == 0
    assert contained.count([Part.REPLAY]) == before


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The replay waits for nothing; the list has how long it would have waited."""
    waited: list[float] = []

    async def wait(backoff: aio.Backoff) -> None:
        waited.append(backoff.next_wait())

    monkeypatch.setattr(aio.Backoff, "wait", wait)
    return waited


@pytest.mark.parametrize(
    ("kind", "repeated"),
    [
        (cri_errors.InvalidAnswer, 0),
        (cri_errors.AnswerTooLong, 0),
        (cri_errors.Unsupported, 0),
        (cri_errors.DeadlineExceeded, 4),
        (cri_errors.CallFailed, 4),
    ],
)
async def test_runtime_error_about_one_intent_is_a_failed_try_of_that_one(
    env: RestartEnv,
    monkeypatch: pytest.MonkeyPatch,
    waits: list[float],
    kind: type[cri_errors.CriError],
    repeated: int,
) -> None:
    await failing_replay(env, monkeypatch, error=kind("ContainerStatus: of this container", where="the socket"))
    await test_recovery.killed_after_the_stop(env)
    assert await replay(env).run() == 2
    assert [intent.id for intent in await env.store.unfinished()] == ["bad"], "the other one is concluded"
    assert len(waits) == repeated
    assert await replay(env).run() == 1, "the next agent"
    assert await env.store.quarantined() == {"bad"}
    assert "of this container at the socket" in env.said.said[SECOND.pod, conditions.IN_PLACE_RESTART].message


async def test_late_answer_of_the_runtime_during_replay_costs_no_try(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    resume = planning.resume
    late = iter([cri_errors.DeadlineExceeded("ContainerStatus took too long")] * 4)

    async def resumed(everything: Any, intent: Any, **more: Any) -> Any:
        if (error := next(late, None)) is not None:
            raise error
        return await resume(everything, intent, **more)

    monkeypatch.setattr(planning, "resume", resumed)
    await test_recovery.killed_after_the_stop(env)
    before = contained.count([Part.REPLAY])
    assert await replay(env).run() == 1
    assert await env.store.unfinished() == ()
    (running,) = await env.pod.cri_env.running()
    assert running.restart_id == "r1", "finished, not undone"
    assert contained.count([Part.REPLAY]) == before
    assert sum(waits) > 5.0


async def test_runtime_error_in_verification_of_a_replay_closes_it(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def settle(*_: object) -> Any:
        raise cri_errors.InvalidAnswer("ListContainers")

    await test_recovery.killed_after_the_stop(env)
    agent = replay(env)
    monkeypatch.setattr(agent._replay._verifier, "wait_for_kubelet", settle)
    assert await agent.run() == 1
    assert await env.store.unfinished() == ()


async def test_runtime_outage_stops_replay_after_others_are_concluded(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One agent that must begin again counts one failed try of an intent."""
    third = replace(SECOND, name="logger")
    await failing_replay(env, monkeypatch, error=cri_errors.InvalidAnswer("ContainerStatus"))
    resume = planning.resume

    async def resumed(everything: Any, intent: Any, **more: Any) -> Any:
        if intent.target == third:
            raise cri_errors.RuntimeUnavailable("ContainerStatus")
        return await resume(everything, intent, **more)

    monkeypatch.setattr(planning, "resume", resumed)
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW, id="third", target=third))
    await test_recovery.killed_after_the_stop(env)
    agent = replay(env)
    for _ in range(3):
        with pytest.raises(cri_errors.RuntimeUnavailable):
            await agent.run()
        assert {intent.id for intent in await env.store.unfinished()} == {"bad", "third"}
    assert await env.store.quarantined() == frozenset()
    (running,) = await env.pod.cri_env.running()
    assert running.restart_id == "r1"


async def test_unreadable_intent_is_quarantined_and_reported_alone(env: RestartEnv) -> None:
    await env.store.begin(env.pod.cri_env.intent(created_at=NOW, id="bad", target=SECOND))
    env.store._connection.execute("UPDATE intents SET body = json_set(body, '$.version', 9)")
    await test_recovery.killed_after_the_stop(env)
    before = contained.count([Part.REPLAY])
    assert await replay(env).run() == 1
    assert contained.count([Part.REPLAY]) == before + 1
    assert await env.store.unfinished() == ()
    assert await env.store.quarantined() == {"bad"}
    reported = env.said.said[SECOND.pod, conditions.IN_PLACE_RESTART]
    assert (reported.status, reported.reason) == (ConditionStatus.FALSE, INTERNAL)
    assert "the intent has version 9" in reported.message


async def test_agent_death_before_replay_costs_no_try(
    env: RestartEnv,
) -> None:
    await test_recovery.killed_after_the_stop(env)
    for _ in range(2):  # two agents die at this point
        assert await env.store.replay_begins("r1")
    assert await replay(env).run() == 1
    assert await env.store.unfinished() == ()
    assert await env.store.quarantined() == frozenset()


async def test_intent_at_which_agents_die_is_quarantined_untried(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    await test_recovery.killed_after_the_stop(env)
    for _ in range(5):
        assert await env.store.replay_begins("r1")
    tried = []
    monkeypatch.setattr(planning, "resume", lambda *_: tried.append(True))
    before = contained.count([Part.REPLAY])
    await replay(env).run()
    assert await env.store.quarantined() == {"r1"}
    assert tried == []
    assert contained.count([Part.REPLAY]) == before + 1


async def test_runtime_outage_during_replay_counts_as_no_try(env: RestartEnv, tmp_path: Any) -> None:
    store = await Store.open(tmp_path / "another.db")
    intent = env.pod.cri_env.intent(created_at=NOW)
    await store.begin(intent)
    for _ in range(20):
        assert await store.replay_begins(intent.id)
        assert not await store.replay_ended(intent.id, failed=False)
    await store.close()


# ---- rounds ----


async def test_round_member_that_cannot_restart_is_reported_and_released(
    round_env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(round_env.rounds._orders, "selection", broken)
        reported = round_env.order()
        failed = await reported.next()
    assert (failed.phase, failed.reason) == (StepPhase.FAILED, INTERNAL)
    round_env.rounds.abort("default/gang-1", [POD.uid], reason="it has failed")
    await eventually.true(lambda: not round_env.rounds.busy(POD.uid))
    again = round_env.order(round="default/gang-2")
    assert (await again.next()).phase is StepPhase.STOPPED
    round_env.rounds.release("default/gang-2", [])
    assert (await again.next()).phase is StepPhase.RUNNING


async def test_round_member_error_midway_is_reported_and_thawed(
    round_env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(SwapCalls, "make", broken)
        reported = round_env.order()
        failed = await reported.next()
    assert failed.phase is StepPhase.FAILED
    round_env.rounds.abort("default/gang-1", [POD.uid], reason="it has failed")
    await eventually.true(lambda: not round_env.rounds.busy(POD.uid))
    assert round_env.freezer.still() == set()

    async def closed() -> bool:
        return await round_env.store.unfinished() == ()

    await eventually.true(closed)


async def test_order_that_cannot_be_accepted_is_answered(round_env: RoundEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(round_env.rounds, "_pod", broken)
        reported = round_env.order()
        failed = await reported.next()
    assert (failed.phase, failed.reason) == (StepPhase.FAILED, INTERNAL)
    assert "IndexError" in failed.detail


async def test_thaw_error_of_one_container_releases_the_others(
    round_env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = round_env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    newest, thaw = await round_env.newest(), round_env.freezer.thaw
    with monkeypatch.context() as patched:
        patched.setattr(round_env.freezer, "thaw", lambda each: broken() if each == newest["trainer"] else thaw(each))
        round_env.rounds.release("default/gang-1", [POD.uid])
        await eventually.true(lambda: round_env.freezer.still() == {newest["trainer"]})
    thaw(newest["trainer"])


async def test_unreadable_record_does_not_stop_next_agent(round_env: RoundEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = round_env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    await round_env.die()
    monkeypatch.setattr(type(round_env.rounds), "_resume_member", broken)
    await round_env.start()
    assert round_env.freezer.still() == set(), "containers without a session are thawed"


async def test_resumed_member_whose_deletion_cannot_be_followed_leaves_the_others(
    round_env: RoundEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = round_env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    await round_env.die()
    monkeypatch.setattr(MemberSession, "until_gone", broken)
    await round_env.start()
    before, pods = contained.count([Part.ROUND]), round_env.pod.pods
    await pods.put(replace(pods.pods()[POD.uid], deleting=True))
    await eventually.true(lambda: contained.count([Part.ROUND]) > before or round_env.tasks[-1].done())
    assert not round_env.tasks[-1].done(), "it runs the rounds of all members"


async def test_unparsable_record_is_counted_and_frees_its_pod_alone(round_env: RoundEnv) -> None:
    reported = round_env.order()
    assert (await reported.next()).phase is StepPhase.STOPPED
    assert round_env.freezer.still()
    await round_env.die()
    (record,) = await round_env.store.records()
    other = replace(record, order=replace(record.order, pod=SECOND.pod.uid), pod=SECOND.pod, released=True)
    round_env.store._connection.execute("UPDATE rounds SET body = '{}'")
    await round_env.store.note(other)
    before = contained.count([Part.ROUND])
    await round_env.start()
    assert contained.count([Part.ROUND]) == before + 1
    assert round_env.freezer.still() == set()
    assert await round_env.store.unreadable_records() == ()
