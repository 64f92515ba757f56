"""Run a restart plan to its end: journal it, execute, verify, report, close."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import structlog

from kubemend.agent.actuator import device_health, progress, turns
from kubemend.agent.actuator.device_release import GateSession
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.devices import event_messages, pod_conditions
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.metrics import Metrics
from kubemend.agent.model import rounds
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import PodUid
from kubemend.agent.restart import admission, steps, verification
from kubemend.agent.restart.device_release import ReleaseState
from kubemend.agent.restarts import restart_proof, verifier
from kubemend.agent.restarts.budgets import Counted
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from kubemend.agent.restarts.plan_execution import STALE_AFTER, AnyExecution, execution_of
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.restart_plan import RestartPlan
from kubemend.common import aio, contained
from kubemend.common.contained import Part as Kind

log = structlog.get_logger(__name__)


async def _not_withdrawn() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class _Done:
    """A restart that was executed. ``in_round``: its round has reported already that it runs."""

    execution: AnyExecution
    cause: admission.Cause
    outcome: Outcome
    in_round: bool = False

    @property
    def plan(self) -> RestartPlan:
        """Return the plan that was executed."""
        return self.execution.plan


@dataclass(frozen=True, slots=True)
class _Verified:
    """The outcome of a restart, with the checks by kubelet and the devices."""

    outcome: Outcome
    settled: Sequence[verification.Check]
    answer: verification.Check
    free: verification.Check


class RoundHooks(Protocol):
    """Connect a restart to its gang's round (``agent.rounds.session.MemberSession``)."""

    def follow(self, plan: RestartPlan, *, pid: int | None) -> HoldSet:
        """Begin to follow a plan; return what holds the containers that it starts. ``pid`` is the process to end."""

    def record(self) -> rounds.Record:
        """Return the round's record to journal with the intents."""

    async def hold(self, execution: AnyExecution, outcome: Outcome) -> Outcome:
        """Hold the started containers until the round releases them; return the outcome after that."""


class _Work:
    """Reports whether a plan is at work: +1 when it starts or resumes, -1 when it waits (``turns.Turn``) or ends."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        self._changed = changed
        self._at_work = 0
        self._over = False

    def count(self) -> None:
        self._at_work += 1
        if self._at_work == 1 and not self._over:
            self._changed(1)

    def leave(self) -> None:
        self._at_work -= 1
        if self._at_work == 0 and not self._over:
            self._changed(-1)

    async def join(self) -> None:
        self.count()

    def end(self) -> None:
        """Mark the plan as ended; tasks of it that still run do not count."""
        if self._at_work > 0:
            self._changed(-1)
        self._over = True


class RestartExecutor:
    """Executes plans concurrently. ``quiet`` is set while none is at work (``drained`` waits for it).

    A round's plan is not at work while it waits for a grace period, a hook or a device. An agent that stops need not
    wait for it: the next agent finishes it from the journal, and the started containers stay held until then.
    """

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        store: Store,
        metrics: Metrics,
        now: Callable[[], float],
        suspects: SuspicionTracker | None = None,
        reattach_timer: DeviceReattachTimer | None = None,
        next_steps: NextStepTimer | None = None,
    ) -> None:
        self._dependencies = dependencies
        self._verifier = verifier.RestartVerifier(dependencies=dependencies)
        self._store = store
        self._metrics = metrics
        self._now = now
        self._suspects = suspects
        self._reattach_timer = reattach_timer
        self._next_steps = next_steps
        self._expedited: dict[PodUid, asyncio.Event] = {}
        self._expediting: Counter[PodUid] = Counter()
        self._acting = 0
        self._unclosed: dict[str, str] = {}
        self.quiet = asyncio.Event()
        self.quiet.set()

    async def execute(
        self,
        plan: RestartPlan,
        *,
        cause: admission.Cause,
        counted: Counted,
        devices: frozenset[DeviceId] | None,
        on_begun: Callable[[], None],
        judge: device_health.Judge,
        withdrawal: Callable[[], Awaitable[str]] = _not_withdrawn,
        followed: progress.Progress = progress.NO_FOLLOWER,
        round_hooks: RoundHooks | None = None,
        old_pid: int | None = None,
        takes_over: Collection[str] = (),
    ) -> Outcome:
        """Execute a plan through its verified end; return its outcome. Raises JournalError before anything is done.

        After a result that ``is_decided_again`` nothing was reported, and the intents stay open. Another strategy
        ``takes_over`` the intents; if there is none, the caller closes them.

        - ``counted`` is journalled with it.
        - ``on_begun`` is called once it is in the journal.
        - ``devices`` must be free of the old processes before anything new starts, and answer afterwards.
        - ``judge`` decides again, before anything new starts on them, whether their health allows it.
        - ``withdrawal`` returns, right before the first step, why the cause no longer holds; "" while it does.
        - ``followed`` is notified of each step.
        - ``round_hooks`` are set for a restart of a round, and follows it with ``old_pid``, the process to end.
        """
        holding = round_hooks.follow(plan, pid=old_pid) if round_hooks is not None else None
        execution = execution_of(self._dependencies, plan, followed=followed, holding=holding)
        gates = self._dependencies.actuators.tools.gates
        record = round_hooks.record() if round_hooks is not None else None
        attempt = record.order.attempt if record is not None else 0
        proof = restart_proof.prepare(self._dependencies, plan, devices=devices, device=cause.device, attempt=attempt)
        if not devices and cause.device is None:
            judge = device_health.no_obstacle
        async with gates.around(plan.entries, devices=devices or frozenset(), proof=proof, judge=judge) as visit:
            await self._close_overdue()
            await self._store.begin(
                *plan.entries,
                counted=counted.restart,
                instead_of=counted.replaced(),
                record=record,
                takes_over=takes_over,
            )
            counted.has_begun()
            on_begun()
            containers = sorted(plan.names)
            followed.notify(progress.Begun(self._now(), plan.id, plan.strategy, containers, plan.restart_count))
            with self._act_noted(in_round=round_hooks is not None):
                outcome = await self._to_the_end(execution, visit=visit, withdrawal=withdrawal)
            if outcome.result is Result.WITHDRAWN:
                counted.cancel()
            outcome = restart_proof.with_note(outcome, visit.proving)
            done = _Done(execution, cause, outcome, in_round=round_hooks is not None)
            if outcome.result.is_decided_again:
                if outcome.result is not Result.STEPPED_DOWN:  # nothing of the container has changed
                    counted.cancel()
                return await self._set_aside(done)
            return await self._finish(done, round_hooks=round_hooks, devices=devices, visit=visit)

    async def resume(
        self, plan: RestartPlan, *, cause: admission.Cause, round_hooks: RoundHooks, holding: HoldSet
    ) -> Outcome:
        """Finish a plan that a previous agent started for a round; return its outcome (as ``execute``).

        It is in the journal already.
        """
        execution = execution_of(self._dependencies, plan, holding=holding)
        found = await restart_proof.of_resumed(self._dependencies, plan, attempt=round_hooks.record().order.attempt)
        gates, devices = self._dependencies.actuators.tools.gates, found.devices or frozenset()
        async with gates.around(plan.entries, devices=devices, proof=found.proof, judge=found.judge) as visit:
            with self._act_noted(in_round=True):
                outcome = await self._to_the_end(execution, visit=visit)
            restart_proof.log_resumed(plan, outcome, found.by_device(visit.proving))
            outcome = restart_proof.with_note(outcome, visit.proving, unproved=found.unproved)
            done = _Done(execution, cause, outcome, in_round=True)
            if outcome.result.is_decided_again:
                return await self._set_aside(done)
            return await self._finish(done, round_hooks=round_hooks, devices=found.devices, visit=visit)

    async def _set_aside(self, done: _Done) -> Outcome:
        """Leave a plan to another one."""
        self._count(done)
        log.warning(
            "restart.stepped_down", restart=done.plan.id, result=done.outcome.result.value, detail=done.outcome.detail
        )
        await done.execution.give_back()
        return done.outcome

    @contextlib.contextmanager
    def expedite(self, pod: PodUid) -> Iterator[None]:
        """Cut the verification of a pod's restart short during this block, because a round waits for the pod."""
        self._expediting[pod] += 1
        self._expedited.setdefault(pod, asyncio.Event()).set()
        try:
            yield
        finally:
            self._expediting[pod] -= 1
            if not self._expediting[pod]:
                del self._expediting[pod]
                self._expedited.pop(pod, None)

    @contextlib.contextmanager
    def _act_noted(self, *, in_round: bool) -> Iterator[None]:
        work = _Work(self._count_acting)
        work.count()
        try:
            with turns.within(work) if in_round else contextlib.nullcontext():
                yield
        finally:
            work.end()

    def _count_acting(self, change: int) -> None:
        self._acting += change
        if self._acting == 0:
            self.quiet.set()
        else:
            self.quiet.clear()

    async def _finish(
        self, done: _Done, *, round_hooks: RoundHooks | None, devices: frozenset[DeviceId] | None, visit: GateSession
    ) -> Outcome:
        """Hold it until the round's release, then conclude it. An internal error still closes its intents."""
        try:
            if round_hooks is not None:
                done = replace(done, outcome=await round_hooks.hold(done.execution, done.outcome))
            await self._conclude(done, devices=devices, visit=visit)
        except Exception:
            if done.outcome.result is not Result.UNFINISHED:
                await self.close(done.plan, done.outcome)
            raise
        finally:
            await done.execution.give_back()
        return done.outcome

    async def _to_the_end(
        self,
        execution: AnyExecution,
        *,
        visit: GateSession,
        withdrawal: Callable[[], Awaitable[str]] = _not_withdrawn,
    ) -> Outcome:
        """Execute the plan when the processes on its devices are known; undo it after an internal error."""
        with contained.within(Kind.RESTART, execution.plan.target) as work:
            await visit.remembered()
            if reason := await withdrawal():
                return Outcome(Result.WITHDRAWN, detail=reason)
            return await self._carried_out(execution)
        assert work.error is not None
        return await execution.undo(reason=contained.describe(work.error), waits=True)

    async def _carried_out(self, execution: AnyExecution) -> Outcome:
        """Execute the plan; retry while the runtime is away, and undo after STALE_AFTER seconds if that is safe.

        However long that takes: only this agent can continue what it has begun, for example thaw the old container.
        """
        clock = asyncio.get_running_loop().time
        begun, backoff = clock(), aio.Backoff()
        outcome = await execution.carry_out()
        while outcome.result is Result.UNFINISHED:
            log.warning("restart.unfinished", restart=execution.plan.id, detail=outcome.detail)
            async with turns.waiting():
                await backoff.wait()
            stale = clock() - begun > STALE_AFTER
            outcome = await execution.carry_out(resolution=steps.Resolution.UNDO if stale else steps.Resolution.FINISH)
        return outcome

    async def _conclude(self, done: _Done, *, devices: frozenset[DeviceId] | None, visit: GateSession) -> None:
        """Report at once, verify, wait until kubelet agrees, report again, and close the intents.

        The first report is skipped for a round's members, because there are many. The intent of a restart that
        could not be undone after an internal error stays open in the journal; the agent's next start resumes it.
        """
        self._count(done)
        if done.outcome.result is Result.RESTARTED:
            for container in done.outcome.current.values():
                self._dependencies.heartbeats.restarted(container)
        if not (done.in_round and done.outcome.result.restarted):
            self._report(done, checks=(), settled=not done.outcome.result.restarted)
        if done.outcome.result is Result.STUCK:
            self._suspect(done, visit=visit)
        if done.outcome.result in verifier.OLD_RUNS_ON and not done.in_round:  # a round holds what kubelet starts
            done = await self._with_copy(done)
        elif done.outcome.result.restarted:
            begun = asyncio.get_running_loop().time()
            self._expect(done, devices=devices, visit=visit)
            self._expect_step(done)
            verified = None
            with contained.within(Kind.VERIFICATION, done.plan.target):
                async with turns.waiting():
                    verified = await self._verified_unless_expedited(done, devices=devices, visit=visit)
            if verified is None:
                log.info("restart.not_verified", restart=done.plan.id, container=str(done.plan.target))
                if done.in_round:
                    self._report(done, checks=(), settled=False)
                await self.close(done.plan, done.outcome)
                return
            outcome, free = verified.outcome, verified.free
            if free.reason == ReleaseState.STUCK.value:
                self._suspect(done, visit=visit)
            if done.plan.pending_on_kubelet(done.outcome):  # kubelet's work is a phase of this restart
                kubelets = asyncio.get_running_loop().time() - begun
                outcome = replace(outcome, phases=MappingProxyType({**outcome.phases, "kubelet": kubelets}))
            done = replace(done, outcome=outcome)
            self._report(done, checks=(verified.answer, free, *verified.settled), settled=True)
        if done.outcome.result is not Result.UNFINISHED:
            await self.close(done.plan, done.outcome)

    async def _with_copy(self, done: _Done) -> _Done:
        """Report it if kubelet has started a copy of a successor that was removed again: that is the restart then."""
        copied = None
        with contained.within(Kind.VERIFICATION, done.plan.target):
            async with turns.waiting():
                copied = await self._verifier.adopted_copy(done.plan)
        if copied is None:
            return done
        done = replace(done, outcome=copied)
        self._report(done, checks=(), settled=True)
        return done

    async def _verified_unless_expedited(
        self, done: _Done, *, devices: frozenset[DeviceId] | None, visit: GateSession
    ) -> _Verified | None:
        """Return the verified outcome; None if a round waits for the pod."""
        expedite = self._expedited.setdefault(done.plan.target.pod.uid, asyncio.Event())
        verifying = asyncio.create_task(self._verify(done, devices=devices, visit=visit), name=f"verify {done.plan.id}")
        waiting = asyncio.create_task(expedite.wait(), name=f"expedited {done.plan.id}")
        try:
            await asyncio.wait({verifying, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return verifying.result() if verifying.done() else None
        finally:
            verifying.cancel()
            waiting.cancel()
            await asyncio.wait({verifying, waiting})
            if done.plan.target.pod.uid not in self._expediting:
                self._expedited.pop(done.plan.target.pod.uid, None)

    async def _verify(self, done: _Done, *, devices: frozenset[DeviceId] | None, visit: GateSession) -> _Verified:
        (outcome, settled), answer, free = await asyncio.gather(
            self._verifier.wait_for_kubelet(done.execution, done.outcome),
            self._verifier.devices_answer(devices),
            self._verifier.devices_free(devices, visit=visit),
        )
        return _Verified(outcome, settled, answer, free)

    def _expect(self, done: _Done, *, devices: frozenset[DeviceId] | None, visit: GateSession) -> None:
        """Start timing until a new process uses the devices that the old ones used."""
        if self._reattach_timer is not None and done.outcome.result.restarted and visit.was_occupied:
            self._reattach_timer.expect(
                done.plan.id,
                strategy=done.plan.strategy,
                devices=devices or frozenset(),
                containers=done.outcome.current.values(),
            )

    def _expect_step(self, done: _Done) -> None:
        """Start timing until the new containers touch their heartbeat files."""
        if self._next_steps is None:
            return
        plan = done.plan
        new = {name: container for name, container in done.outcome.current.items() if container not in plan.old}
        self._next_steps.expect(
            plan.id,
            strategy=plan.strategy,
            pod=self._dependencies.pods.pods().get(plan.target.pod.uid),
            old=plan.old,
            successors={name: new.get(name) for name in plan.names},
            fault_age=self._now() - done.cause.happened_at,
        )

    def _suspect(self, done: _Done, *, visit: GateSession) -> None:
        """Mark the devices of a process that cannot be killed as suspect."""
        if self._suspects is None:
            return
        for device, pids in visit.stuck().items():
            text = (
                f"pid {', '.join(map(str, sorted(pids)))} of {done.plan.target} uses it and cannot be killed (state D)"
            )
            self._suspects.mark_suspect(FindingKind.PROCESS_STUCK, device=device, text=text)

    async def close(self, plan: RestartPlan, outcome: Outcome) -> None:
        """Close the intents of a plan in the journal. Never fails."""
        for intent in plan.entries:
            try:
                await self._store.finish(intent.id, outcome=outcome.result.value, now=self._now())
            except JournalError as error:
                log.error("restart.not_closed", restart=intent.id, error=str(error))
                self._unclosed[intent.id] = outcome.result.value

    async def _close_overdue(self) -> None:
        """Close intents that a full disk has kept open: a later agent would replay them, too. Raises JournalError.

        Until there is another restart, a replay finds them done.
        """
        for intent_id, outcome in [*self._unclosed.items()]:
            await self._store.finish(intent_id, outcome=outcome, now=self._now())
            self._unclosed.pop(intent_id, None)

    def _count(self, done: _Done) -> None:
        strategy = done.plan.strategy.value
        self._metrics.restarts.labels(strategy, done.cause.code, done.outcome.result.value).inc()
        for phase, seconds in done.outcome.phases.items():
            self._metrics.restart_phase.labels(strategy, phase).observe(seconds)
        if done.outcome.result.restarted and not done.plan.pending_on_kubelet(done.outcome):
            since_fault = self._now() - done.cause.happened_at
            self._metrics.restart_phase.labels(strategy, "fault_to_running").observe(since_fault)

    def _report(self, done: _Done, *, checks: Sequence[verification.Check], settled: bool) -> None:
        plan, outcome = done.plan, done.outcome
        done.execution.followed.notify(progress.Reported(outcome, checks, settled))
        condition = pod_conditions.for_restart(
            container=plan.target.name,
            strategy=plan.strategy,
            restart_count=plan.restart_count,
            cause=done.cause,
            outcome=outcome,
            checks=checks,
            settled=settled,
        )
        self._dependencies.reporter.set(plan.target.pod, condition)
        if settled:
            self._dependencies.event_recorder.record(event_messages.of_restart(plan.target, condition, now=self._now()))
        log.info(
            "restart.finished" if settled else "restart.acted",
            restart=plan.id,
            container=str(plan.target),
            containers=sorted(plan.names),
            strategy=plan.strategy.value,
            cause=done.cause.code,
            result=outcome.result.value,
            detail=outcome.detail,
            notes=list(outcome.notes),
            milliseconds={name: round(seconds * 1000, 1) for name, seconds in outcome.phases.items()},
            checks={check.name: check.state.value for check in checks},
        )
