"""Conclude restarts that were executed: report them, verify them with kubelet and the devices, and report again."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from kubemend.agent.actuator import progress, turns
from kubemend.agent.actuator.device_release import GateSession
from kubemend.agent.devices import event_messages, pod_conditions
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.restart import admission, verification
from kubemend.agent.restart.device_release import ReleaseState
from kubemend.agent.restarts import verifier
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from kubemend.agent.restarts.plan_execution import AnyExecution
from kubemend.agent.restarts.reattach_timer import DeviceReattachTimer
from kubemend.agent.restarts.restart_plan import RestartPlan
from kubemend.common import contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
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


class Conclusions:
    """Concludes restarts, concurrently."""

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        metrics: Metrics,
        now: Callable[[], float],
        suspects: SuspicionTracker | None,
        reattach_timer: DeviceReattachTimer | None,
        next_steps: NextStepTimer | None,
    ) -> None:
        self._dependencies = dependencies
        self._verifier = verifier.RestartVerifier(dependencies=dependencies)
        self._metrics = metrics
        self._now = now
        self._suspects = suspects
        self._reattach_timer = reattach_timer
        self._next_steps = next_steps

    async def conclude(self, done: Done, *, devices: frozenset[DeviceId] | None, visit: GateSession) -> Outcome:
        """Report at once, verify, wait until kubelet agrees, and report again; return the outcome after that.

        The first report is skipped for a round's members, because there are many.
        """
        self.count(done)
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
            with contained.within(Part.VERIFICATION, done.plan.target):
                async with turns.waiting():
                    verified = await turns.unless_hurried(self._verify(done, devices=devices, visit=visit))
            if verified is None:
                log.info("restart.not_verified", restart=done.plan.id, container=str(done.plan.target))
                if done.in_round:
                    self._report(done, checks=(), settled=False)
                return done.outcome
            outcome, free = verified.outcome, verified.free
            if free.reason == ReleaseState.STUCK.value:
                self._suspect(done, visit=visit)
            if done.plan.pending_on_kubelet(done.outcome):  # kubelet's work is a phase of this restart
                kubelets = asyncio.get_running_loop().time() - begun
                outcome = replace(outcome, phases=MappingProxyType({**outcome.phases, "kubelet": kubelets}))
            done = replace(done, outcome=outcome)
            self._report(done, checks=(verified.answer, free, *verified.settled), settled=True)
        return done.outcome

    async def _with_copy(self, done: Done) -> Done:
        """Report it if kubelet has started a copy of a successor that was removed again: that is the restart then."""
        copied = None
        with contained.within(Part.VERIFICATION, done.plan.target):
            async with turns.waiting():
                copied = await self._verifier.adopted_copy(done.plan)
        if copied is None:
            return done
        done = replace(done, outcome=copied)
        self._report(done, checks=(), settled=True)
        return done

    async def _verify(self, done: Done, *, devices: frozenset[DeviceId] | None, visit: GateSession) -> _Verified:
        (outcome, settled), answer, free = await asyncio.gather(
            self._verifier.wait_for_kubelet(done.execution, done.outcome),
            self._verifier.devices_answer(devices),
            self._verifier.devices_free(devices, visit=visit),
        )
        return _Verified(outcome, settled, answer, free)

    def _expect(self, done: Done, *, devices: frozenset[DeviceId] | None, visit: GateSession) -> None:
        """Start timing until a new process uses the devices that the old ones used."""
        if self._reattach_timer is not None and done.outcome.result.restarted and visit.was_occupied:
            self._reattach_timer.expect(
                done.plan.id,
                strategy=done.plan.strategy,
                devices=devices or frozenset(),
                containers=done.outcome.current.values(),
            )

    def _expect_step(self, done: Done) -> None:
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

    def _suspect(self, done: Done, *, visit: GateSession) -> None:
        """Mark the devices of a process that cannot be killed as suspect."""
        if self._suspects is None:
            return
        for device, pids in visit.stuck().items():
            text = (
                f"pid {', '.join(map(str, sorted(pids)))} of {done.plan.target} uses it and cannot be killed (state D)"
            )
            self._suspects.mark_suspect(FindingKind.PROCESS_STUCK, device=device, text=text)

    def count(self, done: Done) -> None:
        """Count a restart and its phases in the metrics."""
        strategy = done.plan.strategy.value
        self._metrics.restarts.labels(strategy, done.cause.code, done.outcome.result.value).inc()
        for phase, seconds in done.outcome.phases.items():
            self._metrics.restart_phase.labels(strategy, phase).observe(seconds)
        if done.outcome.result.restarted and not done.plan.pending_on_kubelet(done.outcome):
            since_fault = self._now() - done.cause.happened_at
            self._metrics.restart_phase.labels(strategy, "fault_to_running").observe(since_fault)

    def _report(self, done: Done, *, checks: Sequence[verification.Check], settled: bool) -> None:
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
