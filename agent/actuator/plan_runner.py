"""Carry out a restart: get the next steps from its rule, take them and list again, until the rule returns DONE.

The rules are in ``agent.restart``, the calls in ``agent.actuator.runtime_ops``; this module handles order, deadlines
and failures. A lost answer is not an error: the runtime is listed again, and the rule continues from there.
"""

import abc
import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import structlog

from kubemend.agent.actuator import device_release, progress, turns
from kubemend.agent.actuator.dying import Death
from kubemend.agent.actuator.hold.hold_set import OldDead
from kubemend.agent.actuator.outcomes import Outcome, Result
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, steps
from kubemend.common import aio

log = structlog.get_logger(__name__)

RELIST_SECONDS = 1.0
"""Seconds after which the runtime is listed again without an event."""

DEVICE_PHASE = "device"
"""The phase in which a successor waits for the old process to leave its devices."""

FREEING_PHASE = "free"
"""The phase in which the driver frees the device memory of a killed container, from when that was noticed."""

PROOF_PHASE = "proof"
"""The phase in which a successor waits for the proof of its devices."""


_Intent = TypeVar("_Intent", intents.Intent, intents.PodIntent)


@dataclass(slots=True, kw_only=True)
class PlanRunner(RuntimeOps[_Intent]):
    """One restart in progress."""

    followed: progress.Progress = progress.NO_FOLLOWER
    resolution: steps.Resolution = steps.Resolution.FINISH
    failures: int = 0
    unkilled: int = 0
    deaths: dict[ContainerId, Death] = field(default_factory=dict)
    time_up: asyncio.Timeout | None = None
    latest: float = math.inf

    @abc.abstractmethod
    def next_steps(self) -> Sequence[steps.Step]:
        """Return the steps that the rule requires now."""

    async def examine(self) -> None:
        """Examine what the last step has created, before the next one is chosen."""

    def ended(self, step: steps.Step) -> Outcome:
        """Return the outcome that a DONE stands for."""
        return self.outcome(_RESULT[step.why])

    def gives_up(self) -> bool:
        """Return whether to give up after repeated failures; False if another way was chosen instead."""
        return True

    async def reserve(self, step: steps.Step) -> None:
        """Reserve a name that kubelet could take. Raises CriError."""
        raise AssertionError(f"only reruns reserve names: {step}")

    async def run_to_end(self, *, list_first: bool = True) -> Outcome:
        """Carry out the restart.

        ``UNFINISHED``: the time limit passed or the runtime was unavailable; run it again later.
        """
        async with self.tools.events.subscribe(self.intent.target.pod.uid) as changes:
            self.latest = asyncio.get_running_loop().time() + self.tools.longest + self.intent.grace_seconds
            try:
                async with asyncio.timeout(self.tools.time_limit + self.intent.grace_seconds) as self.time_up:
                    if list_first:
                        await self.refresh()
                    return await self._drive(changes)
            except TimeoutError:
                return self.outcome(Result.UNFINISHED, detail=self.last_error or "time limit reached")
            finally:
                self.tools.gates.leave(self.intent.id)

    def extend_time(self) -> None:
        """Extend the time limit because something has progressed, up to ``ActuatorContext.longest`` in all."""
        due = asyncio.get_running_loop().time() + self.tools.time_limit
        if self.time_up is not None and not self.time_up.expired() and (before := self.time_up.when()) is not None:
            self.time_up.reschedule(max(before, min(due, self.latest)))

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:  # noqa: ARG002
        """Wait until the condition of the step may have come true."""
        await next_change(changes, timeout=RELIST_SECONDS)

    def outcome(self, result: Result, *, detail: str = "") -> Outcome:
        """Return the outcome with this result."""
        return Outcome(
            result=result,
            survivors=MappingProxyType(self.survivors()),
            phases=MappingProxyType(dict(self.phases)),
            detail=detail or self.last_error,
            notes=tuple(self.pre_stops.values()),
        )

    def survivors(self) -> dict[str, ContainerId]:
        """Return the newest container of each name."""
        newest = sorted(self.seen, key=lambda view: (view.created_at, view.attempt))
        return {view.ref.name: view.id for view in newest}

    async def _drive(self, changes: "asyncio.Queue[ContainerEvent]") -> Outcome:
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while True:
            await self.examine()
            todo = self._abandoning() or await self._delay_starts(self.next_steps())
            if todo[0].kind is steps.StepKind.DONE and self.fresh:
                return self.ended(todo[0])
            self._report_death(todo)
            errors = await self._take(todo, changes)
            if not errors:
                continue
            await self.refresh()
            errors = await self._really_failed(errors)
            if not errors:
                continue
            if unusable := [error for _, error in errors if isinstance(error, device_release.DeviceUnusableError)]:
                self.last_error = str(unusable[0])
                return await self._remove_waiting(unusable[0], Result.DEVICE_NOT_USABLE)
            unkillable = [error for step, error in errors if means_unkillable(step, error)]
            if unkillable:
                outcome = await self._stuck(unkillable[0])
                if outcome is not None:
                    return outcome
                async with turns.waiting():
                    await backoff.wait()
                continue
            self.last_error = str(errors[0][1])
            if all(isinstance(error, _KUBELET_ACTS) for _, error in errors):
                # Kubelet is creating the same attempt, which will be listed in a moment and adopted, or is acting on
                # this one.
                async with turns.waiting():
                    await next_change(changes, timeout=backoff.next_wait())
            else:
                self.failures += not any(isinstance(error, cri_errors.RuntimeUnavailable) for _, error in errors)
                log.warning("restart.call_failed", restart=self.intent.id, error=self.last_error)
                async with turns.waiting():
                    await backoff.wait()
            await self.refresh()
            if self.failures >= _MOST_FAILURES and self.gives_up():
                return self.outcome(Result.FAILED)

    def is_ending(self) -> bool:
        """Return whether the pod is terminating: then nothing is started in it any more."""
        target = self.intent.target
        if why := self.tools.ending(target.pod.uid, self.intent.sandbox_id):
            self.last_error = f"the pod is ending: {why}"
        return bool(why)

    def _abandoning(self) -> Sequence[steps.Step]:
        """Return the remaining steps in a terminating pod; empty for any other pod."""
        if not self.is_ending():
            return ()
        waiting = [view.id for view in self.seen if self.is_held(view.id)]
        return steps.abandon(self.intent.id, self.seen, waiting=waiting)

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
        found = next((view for view in self.seen if view.id == step.container), None)
        if step.container is None:
            return False
        match step.kind:
            case steps.StepKind.STOP if found is None or found.state is ContainerState.EXITED:
                begun = asyncio.get_running_loop().time()
                try:
                    await self.stopped(step.container)
                finally:
                    self.add_phase_time(step.kind.value, since=begun)  # less the wait for the devices
            case steps.StepKind.START if found is not None and found.state is ContainerState.RUNNING:
                await self.after_start(step.container)
            case steps.StepKind.REMOVE if found is None:
                pass
            case _:
                return False
        return True

    async def _delay_starts(self, todo: Sequence[steps.Step]) -> Sequence[steps.Step]:
        """Return the steps, or a wait in their place while an old process is on the devices that they need."""
        starts = [step for step in todo if step.kind is steps.StepKind.START]
        if not starts or starts[0].why is steps.StepReason.HELD_BESIDE_OLD:
            return todo
        begun = asyncio.get_running_loop().time()
        opens = await self.tools.gates.opens(self.intent.id, timeout=_LISTING_VALID)
        self.waited_at_gate(since=begun)
        if opens:
            return todo
        return (steps.Step(steps.StepKind.WAIT, steps.StepReason.OLD_ON_DEVICE, starts[0].container, starts[0].name),)

    def _report_death(self, todo: Sequence[steps.Step]) -> None:
        """Report to the round that only starts are left: nothing old runs, the devices are free, successors exist.

        The other members need not wait for these starts. Of a rerun the main containers are meant: until then its init
        containers may still change what the members share.
        """
        holding = self.holding
        if holding is None or any(
            step.kind is not steps.StepKind.START or step.why is steps.StepReason.HELD_BESIDE_OLD for step in todo
        ):
            return
        made = {view.ref.name for view in self.seen if view.restart_id == self.intent.id and view.state in steps.LIVE}
        if holding.names & self.intent.names <= made:
            holding.on_dead(OldDead(self.intent.id, dict(self.phases), has_started=False))

    def waited_at_gate(self, *, since: float, within: steps.StepKind | None = None) -> None:
        """Count a wait as the phases ``device`` and ``proof``, and not as the step ``within`` which it was made."""
        waited = asyncio.get_running_loop().time() - since
        if waited < _SHORTEST_PHASE:
            return
        proved = min(waited, self.tools.gates.proof_seconds(self.intent.id, since=since))
        for name, seconds in ((DEVICE_PHASE, waited - proved), (PROOF_PHASE, proved)):
            if seconds >= _SHORTEST_PHASE:
                self.phases[name] = self.phases.get(name, 0.0) + seconds
        if within is not None:
            phase: str = within.value
            self.phases[phase] = self.phases.get(phase, 0.0) - waited

    async def _wait_at_gate(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        """Wait for the gate, or for a change: kubelet does not wait, and its own container takes precedence."""
        await first_of(self.tools.gates.opens(self.intent.id), next_change(changes, timeout=RELIST_SECONDS))
        self.tools.gates.raise_if_shut(self.intent.id)
        self.report_left(self.tools.gates.last_left(self.intent.id), name=self.intent.target.name)
        self.extend_time()  # gates have their own timeout

    async def _take(
        self, todo: Sequence[steps.Step], changes: "asyncio.Queue[ContainerEvent]"
    ) -> list[tuple[steps.Step, cri_errors.CriError]]:
        """Take steps concurrently; return those that failed, and their errors."""
        begun = asyncio.get_running_loop().time()
        results = await turns.side_by_side(*(self._try(step, changes) for step in todo))
        if todo[0].why is steps.StepReason.OLD_ON_DEVICE:
            self.waited_at_gate(since=begun)
        else:
            self.add_phase_time(_phase(todo[0]), since=begun)
        for step in todo:
            log.debug("restart.step", restart=self.intent.id, step=step.kind.value, why=step.why.value, name=step.name)
        return [(step, error) for step, error in zip(todo, results, strict=True) if error is not None]

    async def _try(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> cri_errors.CriError | None:
        before, begun = self.seen, asyncio.get_running_loop().time()
        failed = None
        if self.holding is not None:
            self.holding.doing, self.holding.detail = _doing(step), ""
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
        if step.kind is steps.StepKind.CREATE:
            made = [view for view in self.seen if view not in before and step.name in (None, view.ref.name)]
            about = made[-1] if made else None
        else:
            about = next((view for view in (*before, *self.seen) if view.id == step.container), None)
        self.followed.notify(
            progress.StepTaken(
                step=step,
                container=about.ref.name if about is not None else step.name or self.intent.target.name,
                attempt=about.attempt if about is not None else None,
                seconds=seconds,
                error=str(failed) if failed is not None else "",
            )
        )

    async def _perform(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        match step.kind:
            case steps.StepKind.WAIT:
                async with turns.waiting():
                    if step.why is steps.StepReason.OLD_ON_DEVICE:
                        await self._wait_at_gate(changes)
                    else:
                        await self.wait(step, changes)
                await self.refresh()
            case steps.StepKind.DONE:
                await self.refresh()
            case steps.StepKind.RESERVE:
                await self.reserve(step)
            case steps.StepKind.CREATE:
                self.extend_time()  # the call has a deadline
                await self.create(step.name)
            case _:
                assert step.container is not None
                if step.kind is steps.StepKind.START:
                    self.extend_time()
                    await self.start_with_hooks(step.container)
                    return
                kills = step.kind is steps.StepKind.STOP
                given_time = kills and self.intent.grace_seconds > 0
                async with (
                    turns.waiting(after=0.0 if given_time else turns.SLOW),
                    self._followed(step.container, within=step.kind),
                ):
                    await (self.stop(step.container) if kills else self.remove(step.container))

    @contextlib.asynccontextmanager
    async def _followed(self, container_id: ContainerId, *, within: steps.StepKind) -> AsyncIterator[None]:
        """Follow how a container ends, for the block; while it progresses the time limit is extended."""
        if self.tools.processes is None:
            yield
            return
        if (death := self.deaths.get(container_id)) is None:
            death = Death(
                container_id, runtime=self.tools.runtime, processes=self.tools.processes, rhythm=self.tools.rhythm
            )
            self.deaths[container_id] = death
        following = asyncio.create_task(death.follow(on_progress=self.extend_time), name=f"death of {container_id}")
        freeing = asyncio.create_task(
            self._follow_freeing(container_id, within=within), name=f"memory of {container_id}"
        )
        try:
            yield
        finally:
            following.cancel()
            freeing.cancel()
            await asyncio.gather(following, freeing, return_exceptions=True)

    def report_left(self, left: int, *, name: str) -> None:
        """Report the device memory that a killed container still has, in bytes, unless it has none."""
        if not left:
            return
        if self.holding is not None:
            self.holding.doing, self.holding.detail = DRIVER_FREEING, f"{left / _GIB:.1f} GiB left"
        self.followed.notify(progress.Freeing(name, left))

    async def _follow_freeing(self, container_id: ContainerId, *, within: steps.StepKind) -> None:
        """Report the device memory that a killed container still has, until cancelled; count the time as ``free``.

        After SIGKILL nothing of the program runs: the driver frees its memory, which takes an H100 240 ms for each GiB
        that is pinned. That takes as long as it takes, and while memory is freed the time limit is extended.
        """
        await asyncio.sleep(self.intent.grace_seconds + self.tools.rhythm.memory)
        least: int | None = None
        since: float | None = None
        try:
            while left := await self.tools.gates.memory_left(self.intent.id):
                since = asyncio.get_running_loop().time() if since is None else since
                if least is None or left < least:
                    least = left
                    self.extend_time()
                self.report_left(left, name=self.name_of(container_id))
                await asyncio.sleep(self.tools.rhythm.memory)
        finally:
            if since is not None:
                freed = asyncio.get_running_loop().time() - since
                self.phases[FREEING_PHASE] = self.phases.get(FREEING_PHASE, 0.0) + freed
                self.phases[within.value] = self.phases.get(within.value, 0.0) - freed

    async def _stuck(self, error: cri_errors.CriError) -> Outcome | None:
        """Remove a waiting successor after a kill without effect (a process in D state); never retry indefinitely.

        Return None while that is not proven: a runtime that hangs for a while lets a stop time out as well, and may
        carry it out later, and memory of a device takes its time to be freed. The proof is the state of its threads.
        Where they cannot be read, the second such failure counts as proof, if the runtime has answered in between.
        """
        log.error("restart.kill_without_effect", restart=self.intent.id, error=str(error))
        self.last_error = str(error)
        await self.refresh()
        self.unkilled += 1
        if not (isinstance(error, device_release.ProcessStuckError) or self._is_unkillable()):
            return None
        if where := "; ".join(death.where for death in self.deaths.values() if death.is_stuck):
            self.last_error = f"{error}: {where}"
        return await self._remove_waiting(error, Result.STUCK)

    async def _remove_waiting(self, error: cri_errors.CriError, result: Result) -> Outcome:
        """Remove the successors that wait for their start, and return the outcome with this result."""
        ours = [view for view in self.seen if view.restart_id == self.intent.id]
        waiting = [view.id for view in ours if view.state in _NOT_STARTED or self.is_held(view.id)]
        try:
            for container_id in waiting:
                await self.remove(container_id)
        except cri_errors.CriError as again:
            return self.outcome(Result.UNFINISHED, detail=f"{error}; {again}")
        return self.outcome(result)

    def _is_unkillable(self) -> bool:
        if not self._wants_a_kill():
            return False
        if self.tools.processes is None:
            return self.unkilled >= _PROOF_OF_UNKILLABLE
        return any(death.is_stuck for death in self.deaths.values())

    def _wants_a_kill(self) -> bool:
        return any(step.kind in (steps.StepKind.STOP, steps.StepKind.REMOVE) for step in self.next_steps())


def _phase(step: steps.Step) -> str:
    return "confirm" if step.kind is steps.StepKind.DONE else step.kind.value


def _doing(step: steps.Step) -> str:
    """Return a member's progress while a step is taken, for the gang members that wait for it."""
    why: str = step.why.value
    return DRIVER_FREEING if step.why is steps.StepReason.OLD_ON_DEVICE else _DOING.get(step.kind, why)


def means_unkillable(step: steps.Step, error: cri_errors.CriError) -> bool:
    """Return whether a step failed because a process cannot be killed: its kill timed out, or a gate reports it."""
    kills = step.kind in (steps.StepKind.STOP, steps.StepKind.REMOVE)
    return isinstance(error, device_release.ProcessStuckError) or (
        kills and isinstance(error, cri_errors.DeadlineExceeded)
    )


async def next_change(changes: "asyncio.Queue[ContainerEvent]", *, timeout: float) -> None:
    """Wait for the pod's containers to change; return after ``timeout`` seconds in any case."""
    try:
        async with asyncio.timeout(timeout):
            await changes.get()
    except TimeoutError:
        return
    while not changes.empty():
        changes.get_nowait()  # one listing answers them all


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait until the first has ended, and cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_DOING = {
    steps.StepKind.STOP: "ProcessExiting",
    steps.StepKind.REMOVE: "ProcessExiting",
    steps.StepKind.RESERVE: "Creating",
    steps.StepKind.CREATE: "Creating",
    steps.StepKind.START: "Starting",
}
_KUBELET_ACTS = (cri_errors.NameReserved, cri_errors.ContainerBusy)
DRIVER_FREEING = "DriverFreeing"
_GIB = 1 << 30
_MOST_FAILURES = 3
_PROOF_OF_UNKILLABLE = 2
_LISTING_VALID = 0.05  # seconds for which a start may wait and still rely on the previous listing
_SHORTEST_PHASE = 0.001  # seconds at a gate from which on they are a phase of their own
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
    steps.StepReason.POD_ENDS: Result.UNDONE,
    steps.StepReason.NOTHING_TO_CLONE: Result.FAILED,
    steps.StepReason.NOT_ALIKE: Result.NOT_ALIKE,
}
