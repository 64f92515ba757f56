"""Carry out a restart: get the next steps from its strategy, take them and list again, until the rule returns DONE.

The rules are in ``agent.restart``, the calls in ``agent.actuator.runtime_ops``; this module handles order, deadlines
and failures. A lost answer is not an error: the runtime is listed again, and the rule continues from there.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import MappingProxyType

import structlog

from kubemend.agent.actuator import device_release, listings, progress, turns
from kubemend.agent.actuator.device_waits import DeviceWaits
from kubemend.agent.actuator.dying import Deaths
from kubemend.agent.actuator.hold.hold_set import OldDead
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.actuator.strategy import RestartStrategy
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import steps
from kubemend.common import aio

log = structlog.get_logger(__name__)


class PlanRunner:
    """The loop of one restart. ``ops`` are its plain calls, with its state; ``strategy`` decides on the steps."""

    def __init__(self, ops: RuntimeOps, strategy: RestartStrategy) -> None:
        self._ops = ops
        self._strategy = strategy
        self._state = ops.state
        self._devices = DeviceWaits(ops)
        self._failures = 0
        self._done: Counter[steps.Step] = Counter()
        self._keeps: set[ContainerId] = set()  # successors that had their files before they could start
        self._deaths = Deaths(
            runtime=ops.tools.runtime,
            processes=ops.tools.processes,
            poll_intervals=ops.tools.poll_intervals,
            on_progress=self._state.limit.extend,
        )

    async def run_to_end(self, *, list_first: bool = True) -> Outcome:
        """Carry out the restart.

        ``UNFINISHED``: the time limit passed or the runtime was unavailable; run it again later.
        """
        tools, intent = self._ops.tools, self._ops.intent
        grace = intent.grace_seconds
        async with tools.events.subscribe(intent.target.pod.uid) as changes:
            time_up = self._state.limit.start(
                first=tools.time_limit + grace, each=tools.time_limit, longest=tools.longest + grace
            )
            try:
                async with time_up:
                    if list_first:
                        await self._ops.refresh()
                    outcome = await self._drive(changes)
                    self._forget_failed_ends(outcome)
                    return outcome
            except TimeoutError:
                return self._outcome(Result.UNFINISHED, detail=self._state.last_error or "time limit reached")
            finally:
                tools.gates.leave(intent.id)

    async def _drive(self, changes: "asyncio.Queue[ContainerEvent]") -> Outcome:
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while True:
            await self._strategy.examine()
            todo = self._abandoning() or await self._delay_starts(self._strategy.next_steps())
            if todo[0].kind is steps.StepKind.DONE and self._state.fresh:
                return self._ended(todo[0])
            self._report_death(todo)
            errors = await self._take(todo, changes)
            if not errors:
                if (times := self._times_done(todo)) > _REPEATS:
                    self._state.last_error = f"{todo[0].kind.value}: the runtime reports success, but nothing changes"
                    async with turns.waiting():
                        await backoff.wait()
                    await self._ops.refresh()
                    if times > _MOST_REPEATS and self._strategy.gives_up():
                        return self._outcome(Result.FAILED)
                continue
            await self._ops.refresh()
            errors = await self._really_failed(errors)
            if not errors:
                continue
            if unusable := [error for _, error in errors if isinstance(error, device_release.DeviceUnusableError)]:
                self._state.last_error = str(unusable[0])
                return await self._remove_waiting(unusable[0], Result.DEVICE_NOT_USABLE)
            unkillable = [error for step, error in errors if _means_unkillable(step, error)]
            if unkillable:
                outcome = await self._stuck(unkillable[0])
                if outcome is not None:
                    return outcome
                async with turns.waiting():
                    await backoff.wait()
                continue
            self._state.last_error = str(errors[0][1])
            if all(isinstance(error, _KUBELET_ACTS) for _, error in errors):
                # Kubelet is creating the same attempt, which will be listed in a moment and adopted, or is acting on
                # this one.
                async with turns.waiting():
                    await listings.next_change(changes, timeout=backoff.next_wait())
            else:
                self._failures += not any(isinstance(error, cri_errors.RuntimeUnavailable) for _, error in errors)
                log.warning("restart.call_failed", restart=self._ops.intent.id, error=self._state.last_error)
                async with turns.waiting():
                    await backoff.wait()
            await self._ops.refresh()
            if self._failures >= _MOST_FAILURES:
                if self._strategy.gives_up():
                    return self._outcome(Result.FAILED)
                self._failures = 0

    def _times_done(self, todo: Sequence[steps.Step]) -> int:
        """Return how often one of these steps has been taken without an error, this time included."""
        acting = [step for step in todo if step.kind not in (steps.StepKind.WAIT, steps.StepKind.DONE)]
        self._done.update(acting)
        return max((self._done[step] for step in acting), default=0)

    def _forget_failed_ends(self, outcome: Outcome) -> None:
        """Let the exits of old containers that run on count again as their own: the requests to end them have failed.

        One that cannot be killed (``STUCK``) is still ended by that kill.
        """
        if outcome.result not in _OLD_RUNS_ON:
            return
        for view in self._state.seen:
            if view.id in self._ops.intent.old_ids and view.state is ContainerState.RUNNING:
                self._ops.tools.runtime.forget_end(view.id)

    def _ended(self, end: steps.Step) -> Outcome:
        detail = self._state.last_error or self._ops.listing.end_detail(end)
        return self._outcome(_RESULT[end.reason], detail=detail)

    def _outcome(self, result: Result, *, detail: str = "") -> Outcome:
        return Outcome(
            result=result,
            current=MappingProxyType(self._ops.listing.current(self._state.seen)),
            phases=MappingProxyType(dict(self._state.phases)),
            detail=detail or self._state.last_error,
            notes=(*self._state.hook_failures.values(), *self._strategy.notes()),
        )

    def _abandoning(self) -> Sequence[steps.Step]:
        """Return the remaining steps in a terminating pod; empty for any other pod."""
        if not self._ops.is_ending():
            return ()
        seen = self._state.seen
        waiting = [view.id for view in seen if self._strategy.calls.is_held(view.id)]
        return steps.abandon(self._ops.intent.id, seen, waiting=waiting, old=self._ops.intent.old_ids)

    async def _really_failed(
        self, errors: Sequence[tuple[steps.Step, cri_errors.CriError]]
    ) -> list[tuple[steps.Step, cri_errors.CriError]]:
        """Return the steps without effect: the answer of a call that took effect may be lost or late.

        For a step that took effect after all, the actions that belong to it are carried out now.
        """
        left = []
        for step, error in errors:
            try:
                if not await self._complete(step):
                    left.append((step, error))
            except cri_errors.CriError as again:
                left.append((step, again))
        return left

    async def _complete(self, step: steps.Step) -> bool:
        if step.container is None:
            return False
        found = self._state.find(step.container)
        match step.kind:
            case steps.StepKind.STOP if found is None or found.state is ContainerState.EXITED:
                begun = asyncio.get_running_loop().time()
                try:
                    await self._strategy.calls.complete_stop(step.container)
                finally:
                    self._state.add_phase_time(step.kind.value, since=begun)  # less the wait for the devices
            case steps.StepKind.START if found is not None and found.state is ContainerState.RUNNING:
                await self._strategy.calls.complete_start(step.container)
            case steps.StepKind.REMOVE if found is None:
                pass
            case _:
                return False
        return True

    async def _delay_starts(self, todo: Sequence[steps.Step]) -> Sequence[steps.Step]:
        """Return the steps, or a wait in their place while an old process is on the devices that they need.

        Files to keep do not wait: once a minute, kubelet removes all but the newest of a name's containers that do not
        run (``enforceMaxContainersPerEvictUnit`` in kuberuntime_gc.go, 1.36).
        """
        starts = [step for step in todo if step.kind is steps.StepKind.START]
        if not starts or starts[0].reason is steps.StepReason.ON_STANDBY or await self._devices.is_open():
            return todo
        for successor in {step.container for step in starts if step.container is not None} - self._keeps:
            self._keeps.add(successor)
            await self._ops.keep(successor)
        return (steps.Step(steps.StepKind.WAIT, steps.StepReason.OLD_ON_DEVICE, starts[0].container, starts[0].name),)

    def _report_death(self, todo: Sequence[steps.Step]) -> None:
        """Report to the round that only starts are left: nothing old runs, the devices are free, successors exist.

        The other members need not wait for these starts. Of a rerun the main containers are meant: until then its init
        containers may still change what the members share.
        """
        holding, intent = self._ops.holding, self._ops.intent
        if holding is None or any(
            step.kind is not steps.StepKind.START or step.reason is steps.StepReason.ON_STANDBY for step in todo
        ):
            return
        ours = (view for view in self._state.seen if view.restart_id == intent.id)
        made = {view.ref.name for view in ours if view.state in steps.LIVE}
        if holding.names & intent.names <= made:
            holding.on_dead(OldDead(intent.id, dict(self._state.phases), has_started=False))

    async def _take(
        self, todo: Sequence[steps.Step], changes: "asyncio.Queue[ContainerEvent]"
    ) -> list[tuple[steps.Step, cri_errors.CriError]]:
        """Take steps concurrently; return those that failed, and their errors."""
        begun = asyncio.get_running_loop().time()
        results = await turns.side_by_side(*(self._try(step, changes) for step in todo))
        if todo[0].reason is steps.StepReason.OLD_ON_DEVICE:
            self._devices.count(since=begun)
        else:
            self._state.add_phase_time(_phase(todo[0]), since=begun)
        for step in todo:
            about = {"step": step.kind.value, "reason": step.reason.value, "name": step.name}
            log.debug("restart.step", restart=self._ops.intent.id, **about)
        return [(step, error) for step, error in zip(todo, results, strict=True) if error is not None]

    async def _try(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> cri_errors.CriError | None:
        before, begun = self._state.seen, asyncio.get_running_loop().time()
        failed = None
        if (holding := self._ops.holding) is not None:
            holding.doing, holding.detail = progress.doing(step), ""
        try:
            await self._perform(step, changes)
        except cri_errors.CriError as error:
            failed = error
        self._report(step, before=before, seconds=asyncio.get_running_loop().time() - begun, failed=failed)
        return failed

    def _report(
        self,
        step: steps.Step,
        *,
        before: Sequence[ContainerSummary],
        seconds: float,
        failed: cri_errors.CriError | None,
    ) -> None:
        if step.kind is steps.StepKind.DONE:
            return  # the caller reports how the restart ended
        seen = self._state.seen
        if step.kind is steps.StepKind.CREATE:
            made = [view for view in seen if view not in before and step.name in (None, view.ref.name)]
            about = made[-1] if made else None
        else:
            about = next((view for view in (*before, *seen) if view.id == step.container), None)
        self._ops.followed.notify(
            progress.StepTaken(
                step=step,
                container=about.ref.name if about is not None else step.name or self._ops.intent.target.name,
                attempt=about.attempt if about is not None else None,
                seconds=seconds,
                error=str(failed) if failed is not None else "",
            )
        )

    async def _perform(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        match step.kind:
            case steps.StepKind.WAIT:
                async with turns.waiting():
                    if step.reason is steps.StepReason.OLD_ON_DEVICE:
                        await self._devices.wait_for_change(changes)
                    else:
                        await self._strategy.wait(step, changes)
                await self._ops.refresh()
            case steps.StepKind.DONE:
                await self._ops.refresh()
            case steps.StepKind.RESERVE:
                assert step.name is not None
                assert step.attempt is not None
                await self._ops.reserve(step.name, attempt=step.attempt)
            case steps.StepKind.CREATE:
                self._state.limit.extend()  # the call has a deadline
                await self._strategy.calls.create(step.name or self._ops.intent.target.name)
            case steps.StepKind.START:
                assert step.container is not None
                self._state.limit.extend()
                await self._strategy.calls.start(step.container)
            case steps.StepKind.STOP:
                assert step.container is not None
                waits_at_once = self._ops.intent.grace_seconds > 0
                async with self._killing(step.container, within=step.kind, after=0.0 if waits_at_once else turns.SLOW):
                    await self._strategy.calls.stop(step.container)
            case steps.StepKind.REMOVE:
                assert step.container is not None
                async with self._killing(step.container, within=step.kind, after=turns.SLOW):
                    await self._strategy.before_removal(step.container)
                    await self._ops.remove(step.container)

    @contextlib.asynccontextmanager
    async def _killing(self, container_id: ContainerId, *, within: steps.StepKind, after: float) -> AsyncIterator[None]:
        """Give the turn to others ``after`` seconds, and follow how a container ends, for the block.

        While it progresses the time limit is extended.
        """
        async with turns.waiting(after=after):
            if self._ops.tools.processes is None:
                yield
                return
            following = asyncio.create_task(self._deaths.follow(container_id), name=f"death of {container_id}")
            freeing = asyncio.create_task(
                self._devices.follow_freeing(container_id, within=within), name=f"memory of {container_id}"
            )
            try:
                yield
            finally:
                following.cancel()
                freeing.cancel()
                await asyncio.gather(following, freeing, return_exceptions=True)

    async def _stuck(self, error: cri_errors.CriError) -> Outcome | None:
        """Remove a waiting successor after a kill without effect (a process in D state); never retry indefinitely.

        Return None while that is not proven: a runtime that hangs for a while lets a stop time out as well, and may
        carry it out later, and memory of a device takes its time to be freed.
        """
        log.error("restart.kill_without_effect", restart=self._ops.intent.id, error=str(error))
        self._state.last_error = str(error)
        await self._ops.refresh()
        is_proven = self._deaths.killed_in_vain() and any(step.kind in _KILLS for step in self._strategy.next_steps())
        if not (isinstance(error, device_release.ProcessStuckError) or is_proven):
            return None
        if where := self._deaths.where_stuck:
            self._state.last_error = f"{error}: {where}"
        return await self._remove_waiting(error, Result.STUCK)

    async def _remove_waiting(self, error: cri_errors.CriError, result: Result) -> Outcome:
        """Remove the successors that wait for their start, and return the outcome with this result."""
        ours = [view for view in self._state.seen if view.restart_id == self._ops.intent.id]
        is_held = self._strategy.calls.is_held
        waiting = [view.id for view in ours if view.state in _NOT_STARTED or is_held(view.id)]
        try:
            for container_id in waiting:
                await self._ops.remove(container_id)
        except cri_errors.CriError as again:
            return self._outcome(Result.UNFINISHED, detail=f"{error}; {again}")
        return self._outcome(result)


def _phase(step: steps.Step) -> str:
    return "confirm" if step.kind is steps.StepKind.DONE else step.kind.value


def _means_unkillable(step: steps.Step, error: cri_errors.CriError) -> bool:
    """Return whether a step failed because a process cannot be killed: its kill timed out, or a gate reports it."""
    return isinstance(error, device_release.ProcessStuckError) or (
        step.kind in _KILLS and isinstance(error, cri_errors.DeadlineExceeded)
    )


_KILLS = (steps.StepKind.STOP, steps.StepKind.REMOVE)
_KUBELET_ACTS = (cri_errors.NameReserved, cri_errors.ContainerBusy)
_MOST_FAILURES = 3
_REPEATS, _MOST_REPEATS = 2, 10  # of a step without effect: at once, and in some 5 s
_OLD_RUNS_ON = (Result.UNDONE, Result.FAILED, Result.NOT_ALIKE, Result.DEVICE_NOT_USABLE)
_NOT_STARTED = (ContainerState.CREATED, ContainerState.UNKNOWN)

_RESULT = {
    steps.StepReason.SWAPPED: Result.SWAPPED,
    steps.StepReason.ADOPTED: Result.ADOPTED,
    steps.StepReason.RERUN: Result.RERUN,
    steps.StepReason.CLEARED: Result.RESET,
    steps.StepReason.TRIGGERED: Result.TRIGGERED,
    steps.StepReason.INIT_FAILED: Result.LEFT_TO_KUBELET,
    steps.StepReason.SIDECAR_EXITED: Result.LEFT_TO_KUBELET,
    steps.StepReason.LEFT_TO_KUBELET: Result.LEFT_TO_KUBELET,
    steps.StepReason.SUCCESSOR_EXITED: Result.SUCCESSOR_EXITED,
    steps.StepReason.UNDONE: Result.UNDONE,
    steps.StepReason.COMPLETED: Result.COMPLETED,
    steps.StepReason.POD_ENDS: Result.UNDONE,
    steps.StepReason.NOTHING_TO_CLONE: Result.FAILED,
    steps.StepReason.NOT_ALIKE: Result.NOT_ALIKE,
    steps.StepReason.ALREADY_REPLACED: Result.ALREADY_REPLACED,
    steps.StepReason.TRIGGER_ENDED: Result.TRIGGER_ENDED,
}
