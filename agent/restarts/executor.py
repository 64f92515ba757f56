"""Run a restart plan to its end: journal it, execute it, have it concluded, close it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from typing import Protocol

import structlog

from kubemend.agent.actuator import device_health, progress, turns
from kubemend.agent.actuator.device_release import GateSession
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.metrics import Metrics
from kubemend.agent.model import rounds
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.restart import admission, steps
from kubemend.agent.restarts import restart_proof
from kubemend.agent.restarts.budgets import Counted
from kubemend.agent.restarts.conclusion import Conclusions, Done
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from kubemend.agent.restarts.plan_execution import STALE_AFTER, AnyExecution, execution_of
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.restart_plan import RestartPlan
from kubemend.common import aio, contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)


async def _not_withdrawn() -> str:
    return ""


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
        self._store = store
        self._now = now
        self._conclusions = Conclusions(
            dependencies=dependencies,
            metrics=metrics,
            now=now,
            suspects=suspects,
            reattach_timer=reattach_timer,
            next_steps=next_steps,
        )
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
            with contained.within(Part.RESTART, plan.target):  # it is in the journal, and must be carried out
                on_begun()
                containers = sorted(plan.names)
                followed.notify(progress.Begun(self._now(), plan.id, plan.strategy, containers, plan.restart_count))
            with self._act_noted(in_round=round_hooks is not None):
                outcome = await self._to_the_end(execution, visit=visit, withdrawal=withdrawal)
            if outcome.result.changed_nothing:
                counted.cancel()
            outcome = restart_proof.with_note(outcome, visit.proving)
            done = Done(execution, cause, outcome, in_round=round_hooks is not None)
            if outcome.result.is_decided_again:
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
            done = Done(execution, cause, outcome, in_round=True)
            if outcome.result.is_decided_again:
                return await self._set_aside(done)
            return await self._finish(done, round_hooks=round_hooks, devices=found.devices, visit=visit)

    async def _set_aside(self, done: Done) -> Outcome:
        """Leave a plan to another one."""
        self._conclusions.count(done)
        log.warning(
            "restart.stepped_down", restart=done.plan.id, result=done.outcome.result.value, detail=done.outcome.detail
        )
        await done.execution.give_back()
        return done.outcome

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
        self, done: Done, *, round_hooks: RoundHooks | None, devices: frozenset[DeviceId] | None, visit: GateSession
    ) -> Outcome:
        """Hold it until the round's release, then conclude it. An internal error still closes its intents."""
        try:
            if round_hooks is not None:
                done = replace(done, outcome=await round_hooks.hold(done.execution, done.outcome))
            concluded = await self._conclusions.conclude(done, devices=devices, visit=visit)
        except Exception:
            if done.outcome.result is not Result.UNFINISHED:
                await self.close(done.plan, done.outcome)
            raise
        else:
            if concluded.result is not Result.UNFINISHED:  # the agent's next start resumes that
                await self.close(done.plan, concluded)
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
        with contained.within(Part.RESTART, execution.plan.target) as work:
            await visit.remembered()
            if reason := await withdrawal():
                return Outcome(Result.WITHDRAWN, detail=reason)
            self._dependencies.actuators.tools.running_hooks.end(execution.plan.target.pod, execution.plan.names)
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
