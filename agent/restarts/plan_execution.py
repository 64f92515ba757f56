"""Execute restart plans: call the actuator of the plan's strategy, and undo the restart after an internal error."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from kubemend.agent.actuator import progress, turns
from kubemend.agent.actuator.context import NO_PREPARATION, StartPreparation
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model import outcomes
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.agent.restart import steps
from kubemend.agent.restarts import runtime_state
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.restart_plan import PodRestartPlan, ProcessPlan, RestartPlan, SwapPlan
from kubemend.common import aio, contained

STALE_AFTER = 60.0
"""Seconds after which an unfinished intent is undone, as far as that is safe, rather than finished."""

_UNDO_TRIES = 2

_Plan_co = TypeVar("_Plan_co", bound=RestartPlan, covariant=True)


class PlanExecution(abc.ABC, Generic[_Plan_co]):
    """One plan, and what executes it: the services, and the state that its tries share.

    ``followed`` is notified of each step. ``holding`` holds what it starts until the release of a round.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        plan: _Plan_co,
        *,
        followed: progress.Progress = progress.NO_FOLLOWER,
        holding: HoldSet | None = None,
    ) -> None:
        self.plan = plan
        self.followed = followed
        self._dependencies = dependencies
        self._preparation = StartPreparation.of(dependencies.actuators.tools, plan.specs, shm_cleanup=plan.shm_cleanup)
        self._holding = holding

    @abc.abstractmethod
    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        """Run the restart to its end. Call it again after ``UNFINISHED``."""

    @abc.abstractmethod
    async def resolve(self, outcome: Outcome) -> Outcome:
        """Check again after the end: remove a duplicate that kubelet has started since, or adopt it."""

    @abc.abstractmethod
    async def released(self) -> None:
        """Do the work that had to wait for the release."""

    async def give_back(self) -> None:
        """Free the container names that were reserved until kubelet has seen the restart. Never fails."""

    async def undo(self, *, reason: str, waits: bool = False) -> Outcome:
        """Undo the restart after an internal error, as far as that is safe.

        Nothing is created or cleaned, because that may be what fails; kubelet starts containers that have ended. The
        outcome is UNFINISHED if the undo does not finish either; otherwise its detail is ``reason``. ``waits``: a
        runtime that is away is waited for, however long that takes: the old container may be frozen.
        """
        bare = execution_of(self._dependencies, self.plan.bare(), followed=self.followed, holding=self._holding)
        tries, backoff = _UNDO_TRIES, aio.Backoff()
        while tries > 0:
            with contained.within(contained.Part.RESTART, self.plan.target) as work:
                outcome = await bare.carry_out(resolution=steps.Resolution.UNDO)
                if outcome.result is not Result.UNFINISHED:
                    result = Result.FAILED if outcome.result is Result.UNDONE else outcome.result
                    return replace(outcome, result=result, detail=reason)
            if work.failed or not waits:
                tries -= 1
                continue
            async with turns.waiting():
                await backoff.wait()
        return Outcome(Result.UNFINISHED, detail=reason)

    def _noted(self, outcome: Outcome) -> Outcome:
        """Return the outcome with notes about the cleanups before the start."""
        if not outcome.result.restarted:
            return outcome
        self._preparation.replaced_by(outcome.current)
        notes = [self.plan.stepped_down, *self._preparation.notes, self.plan.not_kept]
        return replace(outcome, notes=(*outcome.notes, *filter(None, notes)))

    def _renoted(self, notes: Sequence[str], current: Mapping[str, ContainerId]) -> tuple[str, ...]:
        """Return the notes for the containers that run now."""
        changed = self._preparation.replaced_by(current)
        return tuple(changed.get(note, note) for note in notes)


class _Swaps(PlanExecution[SwapPlan]):
    _is_again = False

    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        swapper, is_again = self._dependencies.actuators.swap, self._is_again
        self._is_again = True
        outcome = outcomes.together(
            await turns.side_by_side(
                *(
                    swapper.carry_out(
                        swap.intent,
                        successor_spec=swap.successor_spec,
                        resolution=resolution,
                        followed=self.followed,
                        seen=None if is_again else swap.seen,
                        preparation=self._preparation,
                        holding=self._holding,
                    )
                    for swap in self.plan.swaps
                )
            )
        )
        return self._noted(outcome)

    async def resolve(self, outcome: Outcome) -> Outcome:
        swapper = self._dependencies.actuators.swap
        again = outcomes.together(
            await aio.side_by_side(
                *(
                    swapper.carry_out(swap.intent, successor_spec=None, followed=self.followed, holding=self._holding)
                    for swap in self.plan.swaps
                )
            )
        )
        current = {**outcome.current, **again.current}
        return replace(outcome, result=again.result, current=current, notes=self._renoted(outcome.notes, current))

    async def released(self) -> None:
        assert self._holding is not None
        swapper, holding = self._dependencies.actuators.swap, self._holding
        await aio.side_by_side(
            *(
                swapper.released(swap.intent, successor_spec=swap.successor_spec, holding=holding)
                for swap in self.plan.swaps
            )
        )

    async def give_back(self) -> None:
        swapper = self._dependencies.actuators.swap
        await aio.side_by_side(*(swapper.give_back(swap.intent) for swap in self.plan.swaps))


class _Program(PlanExecution[ProcessPlan]):
    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        actuator = self._dependencies.actuators.process
        return await actuator.carry_out(
            self.plan.intent, resolution=resolution, followed=self.followed, holding=self._holding
        )

    async def resolve(self, outcome: Outcome) -> Outcome:
        """Check that the container still runs. Kubelet makes another one after its end, but none next to it."""
        try:
            container = await self._dependencies.runtime.container_status(self.plan.intent.container)
        except CriError:
            return outcome
        ended = container.state is not ContainerState.RUNNING
        return replace(outcome, result=Result.SUCCESSOR_EXITED) if ended else outcome

    async def released(self) -> None:
        await self._dependencies.actuators.process.released(self.plan.intent)


class _WholePod(PlanExecution[PodRestartPlan]):
    _result: Result | None = None
    """The result of the restart, by the last outcome that was finished."""

    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        return self._noted(await self._carry_out(resolution=resolution, starts=True))

    async def _carry_out(self, *, resolution: steps.Resolution, starts: bool) -> Outcome:
        return await self._dependencies.actuators.pods.carry_out(
            self.plan.intent,
            successor_specs=self.plan.successor_specs if starts else None,
            pre_stop_hooks=runtime_state.pre_stop_hooks(self.plan.pod),
            resolution=resolution,
            followed=self.followed,
            preparation=self._preparation if starts else NO_PREPARATION,
            holding=self._holding,
        )

    async def resolve(self, outcome: Outcome) -> Outcome:
        if outcome.result is not Result.UNFINISHED:
            self._result = outcome.result
        starts = self._result is Result.RERUN  # otherwise kubelet starts the containers
        again = await self._carry_out(resolution=steps.Resolution.FINISH, starts=starts)
        if again.result is Result.UNFINISHED and await self._may_run_twice():
            return replace(outcome, result=again.result)
        outcome = replace(outcome, result=self._result or again.result)
        if again.result is Result.UNFINISHED:
            return outcome
        return replace(outcome, current=again.current, notes=self._renoted(outcome.notes, again.current))

    async def _may_run_twice(self) -> bool:
        """Return whether two containers of one name run, or the runtime does not answer.

        A restart that only waits long, for a startup probe or for kubelet, is not repeated.
        """
        try:
            views = await self._dependencies.runtime.list_containers(pod_uid=self.plan.target.pod.uid)
        except CriError:
            return True
        running = [view.ref.name for view in views if view.state is ContainerState.RUNNING]
        return any(running.count(name) > 1 for name in self.plan.names)

    async def released(self) -> None:
        """Run the hooks and links of its containers. Kubelet does this for the containers that it starts."""
        assert self._holding is not None
        actuator = self._dependencies.actuators.pods
        await actuator.released(self.plan.intent, successor_specs=self.plan.successor_specs, holding=self._holding)


AnyExecution = PlanExecution[RestartPlan]


def execution_of(
    dependencies: Dependencies,
    plan: RestartPlan,
    *,
    followed: progress.Progress = progress.NO_FOLLOWER,
    holding: HoldSet | None = None,
) -> AnyExecution:
    """Return the execution of a plan (see ``PlanExecution``)."""
    match plan:
        case SwapPlan():
            return _Swaps(dependencies, plan, followed=followed, holding=holding)
        case ProcessPlan():
            return _Program(dependencies, plan, followed=followed, holding=holding)
        case PodRestartPlan():
            return _WholePod(dependencies, plan, followed=followed, holding=holding)
    raise AssertionError(f"no strategy has such a plan: {plan}")
