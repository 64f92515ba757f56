"""Run one member of a gang's round on this node: its orders, its hold, and its reported state."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import structlog

from kubemend.agent.actuator import progress
from kubemend.agent.actuator.hold.hold_set import Freezer, HoldSet, OldDead
from kubemend.agent.metrics import Metrics
from kubemend.agent.model import rounds
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, ContainerRole, PodRef
from kubemend.agent.restart import admission, probes
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import restart_plan
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.plan_execution import AnyExecution
from kubemend.agent.rounds.pod_hold import PodHolder, is_ending, wait_terminated
from kubemend.agent.rounds.round_records import Clocks
from kubemend.agent.rounds.step_reports import NEVER_RUN, NOT_STARTED, PHASE_AFTER_RELEASE, EndReason, StepReports
from kubemend.common import aio
from kubemend.common.coordination import OrderKind, StepPhase

log = structlog.get_logger(__name__)

_RECHECK_SECONDS = 1.0
"""Seconds between checks of the running containers when no event comes."""

REPORT_INTERVAL = 3.0
"""Seconds between repeated reports while a member stops or starts. The controller gives up a member that is silent for
``--stop-timeout``."""

_STARTED = 60.0
"""Seconds for kubelet to start the released containers again."""


INTERNAL = Reason.INTERNAL.value


class MemberSession:
    """One member in a round. Its restart uses it as ``restarts.executor.RoundHooks``.

    - ``was_retried`` is set when its successor ended before it could be held, because the runtime aborts a start when
      the caller dies. The member is then restarted once more.
    - ``must_restart_again`` is set when it was held for as long as its probes allow: kubelet would kill a container
      that is released after that.
    - ``must_select_again`` is set when a container has completed since the selection: others of it may be left.
    """

    def __init__(
        self,
        order: rounds.Order,
        *,
        pod: PodRef,
        dependencies: Dependencies,
        freezer: Freezer,
        clocks: Clocks,
        on_record: Callable[[rounds.Record], None],
        on_result: Callable[[rounds.StepResult], None],
        metrics: Metrics,
        earlier: rounds.Record | None = None,
    ) -> None:
        """``on_record`` receives records, ``on_result`` results to report; ``earlier`` is a previous agent's record."""
        self.order = order
        self.pod = pod
        self.holding = HoldSet(
            freezer,
            mark=pod.uid,
            names=earlier.names if earlier is not None else (),
            on_dead=self._old_is_dead,
        )
        self.was_retried = False
        self.must_restart_again = False
        self.must_select_again = False
        self._dependencies = dependencies
        self._clocks = clocks
        self._write_record = on_record
        self._renewed_at = earlier.renewed_at if earlier is not None else clocks.since_boot()
        self._resumed_at = clocks.since_boot() if earlier is not None else None
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._reports = StepReports(
            order,
            pod=pod,
            holding=self.holding,
            before_report=self._save,
            on_result=on_result,
            metrics=metrics,
            earlier=earlier.step_result if earlier is not None else None,
        )
        self._end_reason: EndReason | None = None
        self._over = asyncio.Event()
        self._pod_holder = PodHolder(
            pod, dependencies=dependencies, holding=self.holding, on_deleted=lambda: self.end(EndReason.DELETED)
        )
        self._known: frozenset[ContainerId] = frozenset()
        self._runs: frozenset[ContainerId] = frozenset()
        self._alive: set[str] = set()
        self._all_started = True
        self._stop_reported = self.step_result.phase is StepPhase.STOPPED and not self.step_result.reason
        self._timer: asyncio.TimerHandle | None = None
        self._has_begun = earlier is not None

    @property
    def step_result(self) -> rounds.StepResult:
        """The newest result, as it was reported."""
        return self._reports.newest

    @property
    def end_reason(self) -> EndReason | None:
        """The reason for the end of the hold; None while it lasts."""
        return self._end_reason

    @property
    def must_restart_first(self) -> bool:
        """Return whether a member without a restart in the journal has not been restarted, but has to be."""
        return self.order.kind is OrderKind.RESTART and self.step_result.phase is StepPhase.STOPPING

    def record(self) -> rounds.Record:
        """Return the record to write. After the release it includes the reported phase, in case the report is lost."""
        step_result = self.step_result
        if not self.holding.on and self._end_reason in PHASE_AFTER_RELEASE and step_result.phase.is_before_release:
            phase, reason = PHASE_AFTER_RELEASE[self._end_reason]
            step_result = replace(step_result, phase=phase, reason=reason)
        return rounds.Record(
            order=self.order,
            pod=self.pod,
            step_result=step_result,
            boot=self._clocks.boot,
            renewed_at=self._renewed_at,
            written_at=self._clocks.now(),
            names=self.holding.names,
            released=not self.holding.on,
        )

    def _save(self) -> None:
        self._write_record(self.record())

    def renew(self, order: rounds.Order) -> None:
        """Extend the hold by the order's duration.

        Before anything has begun there is nothing to resume, so it is not recorded: the repeated order starts it again.
        """
        self.order = replace(self.order, hold_seconds=order.hold_seconds)
        self._renewed_at, self._resumed_at = self._clocks.since_boot(), None
        self._restart_timer()
        if self._has_begun:
            self._save()

    def end(self, end_reason: EndReason, *, reason: str = "") -> None:
        """End the hold. Stopped containers are started nevertheless; a restart that has not begun is dropped."""
        if self._end_reason is not None:
            self._end_reason = EndReason.SUPERSEDED if end_reason is EndReason.SUPERSEDED else self._end_reason
            return
        log.debug(
            "round.session_ended", round=self.order.round, pod=str(self.pod), end_reason=end_reason.value, reason=reason
        )
        self._end_reason = end_reason
        if end_reason in PHASE_AFTER_RELEASE:
            self.holding.order_release()
        try:
            if not self._is_disputed:
                self._release()
                if (
                    end_reason is EndReason.RELEASED
                    and self._stop_reported
                    and len(self._runs) >= len(self.holding.names)
                ):
                    self._report_running()  # its restart is not over: the runtime still cleans up
        finally:
            self._over.set()
            self._pod_holder.changed.set()

    async def over_reason(self) -> str:
        """Return why nothing new may start; empty if it may."""
        return f"the round has ended for this pod: {self._end_reason.value}" if self._end_reason is not None else ""

    def report(self, phase: StepPhase, *, reason: str = "", detail: str = "") -> None:
        """Record the member's phase and report it, unless another round has superseded it."""
        if self._end_reason is EndReason.SUPERSEDED:
            return
        self._reports.report(phase, reason=reason, detail=detail)

    async def _repeat_reports(self) -> None:
        """Repeat the report with the current step, until the member has stopped and from its release until it runs."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            if self._end_reason is EndReason.SUPERSEDED:
                return
            if self.step_result.phase is StepPhase.STOPPING:
                self._reports.report_progress(self.holding.doing, detail=self.holding.detail)
            elif self.step_result.phase is StepPhase.STOPPED and self._end_reason is EndReason.RELEASED:
                self._reports.report_progress("Starting")

    def refuse(self, decision: admission.Decision) -> None:
        """Report that the restart is refused, and why; hold nothing."""
        self._release()
        if decision.reason is Reason.ROUND_OVER and self._end_reason is EndReason.DELETED:
            return  # ``until_gone`` reports it
        was_released = self._end_reason is EndReason.ABORTED or (
            self._end_reason in PHASE_AFTER_RELEASE and self.step_result.phase is StepPhase.STOPPED
        )
        if decision.reason is Reason.ROUND_OVER and was_released and self._end_reason is not None:
            phase, reason = PHASE_AFTER_RELEASE[self._end_reason]
            self.report(phase, reason=reason, detail=decision.detail)
            return
        phase = StepPhase.COMPLETED if decision.reason is Reason.COMPLETED else StepPhase.REFUSED
        self.report(phase, reason=decision.reason.value, detail=decision.detail)

    def notify(self, event: progress.Event) -> None:
        """Follow the restart (``progress.Progress``): a refusal applies to the member."""
        if isinstance(event, progress.Decided) and event.decision.verb is admission.Verb.REFUSE:
            self.must_select_again = event.decision.reason is Reason.COMPLETED
            if not self.must_select_again:
                self.refuse(event.decision)

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Follow the pod and the hold's timeout during the block. A cancelled block leaves everything as it is."""
        async with self._pod_holder.at_work():
            self._restart_timer()
            reporting = asyncio.create_task(self._repeat_reports(), name=f"progress of {self.pod}")
            try:
                yield
                self._release()
            finally:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
                if self._timer is not None:
                    self._timer.cancel()

    def take_over(self, frozen: frozenset[ContainerId]) -> None:
        """Adopt containers that are frozen already. If two have the same name, one is removed before either runs."""
        self.holding.adopt(frozen - self.holding.held)
        self._pod_holder.kubelet_started.update(frozen)

    @property
    def ended(self) -> frozenset[ContainerId]:
        """Return the containers that the round ended."""
        return self.holding.excluded | self.holding.ended

    def follow(self, plan: restart_plan.RestartPlan, *, pid: int | None) -> HoldSet:
        """Begin to follow a plan; return what holds the containers that it starts, but not those that it ends."""
        self._has_begun = True
        self._reports.seconds["prepare"] = self._loop.time() - self._since
        self.must_restart_again = False
        self._alive = {each.id for each in plan.entries} | set(plan.duplicates)  # a duplicate is ended later
        self._all_started = True
        self.holding.exclude(plan.old, near=pid)
        if isinstance(plan, restart_plan.PodRestartPlan):
            # holding an init container or a sidecar would block all containers after it
            planned = plan.intent.plan
            self.holding.select(each.name for each in planned if each.role is ContainerRole.MAIN)
        return self.holding

    def _old_is_dead(self, dead: OldDead) -> None:
        """Report STOPPED at the death of the last old container: the gang waits for deaths, not for starts.

        A successor that starts before the release is held, and reported with the next phase. One that starts after it
        is not.
        """
        self._alive.discard(dead.restart)
        self._all_started &= dead.has_started
        for phase, seconds in dead.seconds.items():
            self._reports.seconds[phase] = max(seconds, self._reports.seconds.get(phase, 0.0))
        reports = self._end_reason is None and not self.holding.failed
        if not self._alive and reports and self.step_result.phase is StepPhase.STOPPING:
            self._stop_reported = self._all_started
            self._reports.held_since = self._loop.time() if self._all_started else None
            self.report(StepPhase.STOPPED, reason="" if self._all_started else NOT_STARTED)

    async def hold(self, execution: AnyExecution, outcome: Outcome) -> Outcome:
        """Hold the started containers until the round releases them; return the outcome after that."""
        plan = execution.plan
        self._reports.seconds.update(outcome.phases)
        if outcome.result is Result.SUCCESSOR_EXITED and not self.was_retried and self._end_reason is None:
            self.was_retried, self._stop_reported = True, False  # the caller restarts it; it is still held
            return outcome
        if outcome.result is Result.COMPLETED:
            self.must_select_again = True
            return outcome
        if not outcome.result.restarted:
            phase = StepPhase.STUCK if outcome.result is Result.STUCK else StepPhase.FAILED
            runs = self.step_result.phase is StepPhase.RUNNING  # it has ended since, which is a fault of its own
            if not runs and self._end_reason is not EndReason.DELETED:
                self.report(phase, reason=outcome.result.value, detail=outcome.detail)
            await self._over.wait()  # what kubelet starts in the meantime is held, too
            return outcome
        await self._hold_current(plan, outcome)
        if not all(await asyncio.gather(*(self._pod_holder.end(container_id) for container_id in plan.duplicates))):
            self.report(
                StepPhase.STUCK,
                reason=Result.STUCK.value,
                detail="the duplicate of an earlier restart cannot be killed",
            )
            await self._end_failed(execution)
            return outcome
        if outcome.result is Result.TRIGGERED:
            await self._pod_holder.until_ended(plan.old, over=self._over)  # kubelet restarts it
        if self.holding.failed:
            self.report(StepPhase.FAILED, reason=Reason.CANNOT_HOLD.value, detail=self.holding.failed)
            await self._end_failed(execution)
            return outcome
        if self._end_reason is None:
            self._stopped()
        elif self._end_reason is EndReason.RELEASED:  # at the deaths, before the successors had been checked
            self._reports.observe_stop()
        outcome = await self._undisputed(execution, outcome, until=self._loop.time() + self._longest_hold())
        if self._end_reason is None:
            self.must_restart_again, self._stop_reported = True, False
            return replace(
                outcome, result=Result.SUCCESSOR_EXITED, detail="held as long as its probes allow; restarted"
            )
        if self._end_reason is EndReason.DELETED:
            return replace(outcome, result=Result.FAILED, detail="the pod is being deleted")
        if self._end_reason is EndReason.SUPERSEDED:
            return outcome
        expected = frozenset(outcome.current.values()) & (self.holding.ever_held | self.holding.started_free)
        await self._report_after_release(
            expected=expected if not plan.pending_on_kubelet(outcome) else frozenset(), timeout=_STARTED
        )
        await execution.released()
        return outcome

    async def _end_failed(self, execution: AnyExecution) -> None:
        """Wait for the round's end of a member that failed although its successors run, and run their hooks."""
        await self._over.wait()
        if self._end_reason not in NEVER_RUN:
            self._release()
            await execution.released()

    async def hold_only(self) -> None:
        """Hold running and starting containers until the round releases them. Nothing is ended."""
        self._has_begun = True
        await self.hold_running()
        while self.order.kind is OrderKind.HOLD and not self.holding.held and self._end_reason is None:
            await self._pod_holder.until_changed()  # it has not started yet
        await self.holding.settled()
        if self.holding.failed:
            self.report(StepPhase.FAILED, reason=Reason.CANNOT_HOLD.value, detail=self.holding.failed)
            await self._over.wait()
            return
        if self._end_reason is None:
            self._stopped()
        await self._over.wait()
        self._release()
        await self._report_after_release(expected=frozenset(), timeout=None)

    async def until_changed(self) -> None:
        """Wait for the pod's next change, at most a second."""
        await self._pod_holder.until_changed()

    async def hold_running(self) -> None:
        """Hold the running containers, except those that the restart ends."""
        if self._end_reason is None:
            await self._pod_holder.hold_running(self._over)

    async def fail(self, reason: str) -> None:
        """Report Failed after an internal error. Held containers stay held until the round is over."""
        if self.step_result.phase not in (StepPhase.FAILED, StepPhase.RUNNING, StepPhase.SELF_RELEASED, StepPhase.GONE):
            self.report(StepPhase.FAILED, reason=INTERNAL, detail=reason)
        await self._over.wait()

    def drop(self) -> None:
        """Release everything, after even ``fail`` has failed."""
        self._end_reason = self._end_reason if self._end_reason is not None else EndReason.ABORTED
        self._release()

    def finalize(self) -> None:
        """Report Failed if the session ended without a final phase, so that the controller does not keep waiting."""
        if self.step_result.phase.is_before_release and self._end_reason not in NEVER_RUN:
            self.report(StepPhase.FAILED, reason=Result.UNFINISHED.value, detail="the restart ended without a result")

    def _stopped(self) -> None:
        if self._reports.held_since is None:
            self._reports.held_since = self._loop.time()
        self._reports.observe_stop()
        if self._stop_reported and not self.holding.unheld_seconds:  # it would be one more message of each of thousands
            self._reports.update_seconds()
        else:
            self.report(StepPhase.STOPPED)

    async def until_gone(self) -> None:
        """Wait until a pod that is being deleted or ended is gone or over, and report that.

        A pod that stays, because the shutdown of its node was cancelled, has failed in this round.
        """
        pods = self._dependencies.pods
        while (pod := pods.pods().get(self.pod.uid)) is not None and is_ending(pod) and not pod.is_over:
            await pods.wait_for(self.pod.uid, lambda pod: pod.is_over or not is_ending(pod), timeout=_RECHECK_SECONDS)
        if pod is not None and not pod.is_over:
            self.report(StepPhase.FAILED, reason=Result.UNFINISHED.value, detail="its node no longer shuts down")
            return
        await wait_terminated(self.pod.uid, events=self._dependencies.events)
        if pod is None:
            self.report(StepPhase.GONE)
        elif pod.phase == "Succeeded":
            self.report(StepPhase.COMPLETED)
        else:
            self.report(StepPhase.REFUSED, reason=Reason.POD_NOT_RUNNING.value, detail=f"the pod has {pod.phase}")

    @property
    def _is_disputed(self) -> bool:
        """Return whether kubelet's container may exist next to a successor of the same name.

        Before the release a container that kubelet has created and not started counts, too: kubelet would start it next
        to the successor.
        """
        others = self._pod_holder.kubelet_started
        if self._end_reason is not None:
            others = others | self._pod_holder.created
        return not others - self.holding.excluded <= self._known

    async def _hold_current(self, plan: restart_plan.RestartPlan, outcome: Outcome) -> None:
        """Hold all current containers, including kubelet's adopted containers whose event is late."""
        mine = (container_id for name, container_id in outcome.current.items() if self.holding.must_hold(name))
        await asyncio.gather(*(self.holding.hold(each, stays=each in plan.stays) for each in mine))
        await self.holding.settled()

    def _longest_hold(self) -> float:
        """Return the longest hold in seconds that the containers' probes allow (``agent.restart.probes``)."""
        pod = self._dependencies.pods.pods().get(self.pod.uid)
        return probes.longest_hold(spec for spec in (pod.containers if pod else ()) if spec.name in self.holding.names)

    async def _undisputed(self, execution: AnyExecution, outcome: Outcome, *, until: float) -> Outcome:
        """Wait for the end of the hold, at most ``until`` (loop time); resolve duplicates while both are held.

        A runtime that is away is waited for, also after the release: both would run.
        """
        backoff = aio.Backoff()
        while True:
            self._known = frozenset(outcome.current.values())
            if self._is_disputed:
                await self.holding.settled()
                before = frozenset(self._pod_holder.kubelet_started | self._pod_holder.created)
                resolved = await execution.resolve(outcome)
                if resolved.result is Result.UNFINISHED:
                    if self._end_reason is EndReason.SUPERSEDED:
                        return outcome  # the new session takes over both
                    await backoff.wait()
                    continue
                outcome = resolved
                await self._hold_current(execution.plan, outcome)
                self._pod_holder.kubelet_started -= before
                self._pod_holder.settled |= before
                continue
            if self._end_reason is not None:
                self._release()
                return outcome
            left = until - self._loop.time()
            if left <= 0:
                return outcome
            await self._pod_holder.until_changed(timeout=None if math.isinf(left) else left)

    async def _report_after_release(self, *, expected: frozenset[ContainerId], timeout: float | None) -> None:
        """Report the phase after the release: at once for held containers, otherwise when kubelet starts them."""
        if self._end_reason in NEVER_RUN or self.step_result.phase is StepPhase.RUNNING:
            return
        self._reports.count_hold()
        phase, reason = (
            PHASE_AFTER_RELEASE[self._end_reason] if self._end_reason is not None else (StepPhase.RUNNING, "")
        )
        if phase is not StepPhase.RUNNING:
            self.report(phase, reason=reason)
        elif (expected and expected <= self._runs | self.holding.started_free) or await self._pod_holder.has_started(
            timeout
        ):
            self._report_running()
        else:
            self.report(StepPhase.FAILED, reason="NotRunning", detail=f"not running {timeout:g} s after its release")

    def _report_running(self) -> None:
        self._reports.count_hold()
        self.report(StepPhase.RUNNING)

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        ends_at = rounds.hold_ends_at(
            renewed_at=self._renewed_at, hold_seconds=self.order.hold_seconds, resumed_at=self._resumed_at
        )
        left = ends_at - self._clocks.since_boot()
        self._timer = self._loop.call_later(max(left, 0.0), self.end, EndReason.TIMED_OUT)

    def _release(self) -> None:
        if not self.holding.on:
            return
        if self._end_reason is EndReason.SUPERSEDED:
            return  # the new session takes over the held containers
        if self._end_reason is EndReason.DELETED and self.order.kind is OrderKind.RESTART:
            self.holding.kill()  # it has not run, and would stay frozen until the end of its grace period
        else:
            self._runs = self.holding.release()
        self._save()
