"""Carry out swaps (``agent.restart.swap``)."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kubemend.agent.actuator import listings, progress
from kubemend.agent.actuator.context import NO_PREPARATION, ActuatorContext, StartPreparation
from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.next_names import NameAhead, NextNames
from kubemend.agent.actuator.plan_runner import PlanRunner
from kubemend.agent.actuator.restart_state import RestartState
from kubemend.agent.actuator.runtime_ops import RuntimeOps, hooks_of
from kubemend.agent.actuator.swap_calls import SwapCalls
from kubemend.agent.actuator.swap_proof import SwapProof
from kubemend.agent.actuator.swap_standby import SwapStandby
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, steps, swap
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.common import aio

_OLD_MAY_RUN = (Result.UNDONE, Result.NOT_ALIKE, Result.FAILED, Result.STUCK, Result.DEVICE_NOT_USABLE)
"""Results after which the old container may run, and must not stay frozen."""
_COMPARED_AT_ONCE = 4
"""Successors that are compared at the same time: their specs, and the old containers', can have some MB each."""
_TAKE_BACK_SECONDS = 5.0
"""Seconds within which a successor that must not run is removed when its swap ends early; the agent may be stopping."""


class SwapActuator:
    """Carry out swaps, one at a time per container, many concurrently."""

    def __init__(self, tools: ActuatorContext) -> None:
        self._tools = tools
        self._next_names = NextNames(tools.runtime)
        self._comparisons = asyncio.Semaphore(_COMPARED_AT_ONCE)

    async def carry_out(
        self,
        intent: intents.Intent,
        *,
        successor_spec: SuccessorSpec | None,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NO_FOLLOWER,
        seen: Sequence[ContainerSummary] | None = None,
        preparation: StartPreparation = NO_PREPARATION,
        holding: HoldSet | None = None,
    ) -> Outcome:
        """Carry out the intent and return its outcome; with ``holding`` the successor is held at the end.

        - ``successor_spec`` is None on a replay whose old container is gone.
        - ``seen`` is a listing made just before; it saves one call on the fast path.
        - ``followed`` receives each step.

        ``UNFINISHED`` means that the time limit (plus the grace period) passed, or the runtime was unavailable: carry
        it out again later. Its standby is ended in every case.
        """
        specs = {intent.target.name: successor_spec} if successor_spec is not None else {}
        ops = RuntimeOps(
            tools=self._tools,
            intent=intent,
            listing=listings.TargetListing(self._tools.runtime, intent.target),
            state=RestartState(seen=tuple(seen or ()), resolution=resolution),
            specs=specs,
            pre_stop_hooks=hooks_of(specs),
            preparation=preparation,
            holding=holding,
            followed=followed,
        )
        standby = SwapStandby(ops, intent, spec=successor_spec)
        proof = SwapProof(ops, intent, spec=successor_spec, at_once=self._comparisons)
        calls = SwapCalls(ops, intent, spec=successor_spec, standby=standby, proof=proof, next_names=self._next_names)
        strategy = SwapStrategy(ops, spec=successor_spec, calls=calls, standby=standby, proof=proof)
        try:
            outcome = await PlanRunner(ops, strategy).run_to_end(list_first=seen is None)
        finally:
            try:
                await strategy.take_back()
            finally:
                standby.end()
                standby.thaw_unless_replaced()
        if outcome.result in _OLD_MAY_RUN and intent.order is not intents.SwapOrder.STOP_FIRST:
            try:
                await standby.thaw_old()
            except (CriError, HoldError) as error:
                return replace(outcome, result=Result.UNFINISHED, detail=f"the old container may be frozen: {error}")
        return outcome

    async def released(self, intent: intents.Intent, *, successor_spec: SuccessorSpec | None, holding: HoldSet) -> None:
        """Do the work that was postponed while the successor was held."""
        ops = RuntimeOps(
            tools=self._tools,
            intent=intent,
            listing=listings.TargetListing(self._tools.runtime, intent.target),
            specs={intent.target.name: successor_spec} if successor_spec is not None else {},
            holding=holding,
        )
        await ops.released(stops_failed=intent.order.exit_is_restarted)

    def adopt_names(self, seen: Iterable[ContainerSummary]) -> None:
        """Take over the names that a dead agent has reserved for swaps that are still open."""
        self._next_names.adopt(seen)

    async def release_names(self, seen: Iterable[ContainerSummary]) -> None:
        """Release the names that a dead agent has left reserved for no open swap. Never fails."""
        await self._next_names.release(seen)

    def reserve_ahead(self, name: NameAhead) -> None:
        """Begin to reserve a name before it is decided whether its container is restarted."""
        self._next_names.reserve_ahead(name)

    async def give_back_ahead(self, old: ContainerId) -> None:
        """Release the name that was reserved ahead, unless a restart has taken it over. Never fails."""
        await self._next_names.give_back_ahead(old)

    async def give_back(self, intent: intents.Intent) -> None:
        """Release the name that is reserved for an intent.

        Call it when kubelet shows the successor running, or when the restart is over. Never fails.
        """
        await self._next_names.give_back(intent)


class SwapStrategy:
    """One swap. Its rule is given the listing, and the facts that are known about the successor."""

    def __init__(
        self,
        ops: RuntimeOps,
        *,
        spec: SuccessorSpec | None,
        calls: SwapCalls,
        standby: SwapStandby,
        proof: SwapProof,
    ) -> None:
        self.calls = calls
        self._ops = ops
        self._state = ops.state
        self._holding = ops.holding
        self._spec = spec
        self._standby = standby
        self._old_ended_at: float | None = None  # when that was first seen, by the loop's clock
        self._old_exit: int | None = None
        self._proof = proof

    def next_steps(self) -> Sequence[steps.Step]:
        step = swap.next_step(
            self.calls.intent,
            self._state.seen,
            resolution=self._state.resolution,
            can_clone=self._spec is not None,
            is_unlike=self._proof.unlike is not None,
            is_held=self._standby.is_on,
            stays=self._stays(),
            kubelet_first=self._kubelet_is_first(),
            old_exit=self._old_exit,
            recalls=self._recalls(),
        )
        return (step,)

    def _recalls(self) -> bool:
        """Return whether a running successor is removed if the old container has completed next to it.

        An agent has started it on standby, next to one that may not have frozen because it was ending; the agent's
        death has released it. One that runs after a swap, or for a minute, stays.
        """
        swaps = self._spec is not None and self._state.resolution is steps.Resolution.FINISH
        return swaps and self.calls.intent.order.starts_first and not self._standby.is_frozen

    def _kubelet_is_first(self) -> bool:
        """Return whether kubelet is about to create the successor, where the runtime stalls two calls for one name.

        CRI-O lets a CreateContainer wait until its timeout (kubelet's: two minutes) if another one for the same name is
        in progress, even when that one has ended (``getResourceOrWait`` in server/utils.go, 1.34). A container that has
        ended by itself wakes kubelet, whose call would come during this agent's.
        """
        if not self.calls.is_rebuilt or self._standby.old_runs:
            return False
        now = asyncio.get_running_loop().time()
        if self._old_ended_at is None:
            self._old_ended_at = now
        return now - self._old_ended_at < swap.KUBELETS_TURN and self._ops.tools.kubelet_creates(
            self.calls.intent.target
        )

    async def examine(self) -> None:
        """Compare a successor that waits with the old container, before anything is stopped or started for it.

        One that is started on standby is compared while it starts (``SwapCalls``), but for one that was made from a
        rebuilt config: there a difference is likely enough not to start it. Also read the exit code of an old container
        that may have ended for good, and end what is left of one, next to which kubelet may start another.
        """
        await self.calls.renew_name()
        with contextlib.suppress(CriError):  # before a start it must succeed
            await self.calls.end_rest_of_old()
        if self._old_exit is None and (self.calls.intent.completes or self._state.resolution is steps.Resolution.UNDO):
            await self._read_exit()
        if self.calls.is_rebuilt or not self.calls.starts_on_standby:
            await self._proof.compare_waiting()

    async def _read_exit(self) -> None:
        """Read how the old container has ended, unless a successor runs that stays."""
        old = self._state.find(self.calls.intent.old)
        if old is None or old.state is not ContainerState.EXITED:
            return
        newer = (view for view in self._state.seen if view.attempt > old.attempt)
        if any(view.state is ContainerState.RUNNING for view in newer) and not self._recalls():
            return
        status = await self._ops.status_of(old.id)
        if status is not None and status.state is ContainerState.EXITED:
            self._old_exit = status.exit_code

    def _stays(self) -> frozenset[ContainerId]:
        """Return the containers that a round has released, or will release unless kubelet's container is running."""
        if self._holding is None:
            return frozenset()
        released = {view.id for view in self._state.seen if self._holding.has_released(view.id)}
        if self._holding.must_release and all(view.state is not ContainerState.RUNNING for view in self.calls.copies()):
            released |= {view.id for view in self._state.seen if self._holding.is_frozen(view.id)}
        return frozenset(released)

    async def take_back(self) -> None:
        """Remove a held successor that must not run, if the swap has ended early: cancelled, or by its time limit.

        Otherwise it would be released, and the old container killed.
        """
        if not self._standby.is_on:
            return
        self._proof.close()
        backoff = aio.Backoff(first=0.02, limit=2.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_BACK_SECONDS):
                while (unwanted := self._unwanted()) is not None:
                    try:
                        await self._ops.remove(unwanted)
                    except CriError:
                        await backoff.wait()
                    await self._ops.refresh()

    def _unwanted(self) -> ContainerId | None:
        if self._ops.is_ending():
            ours = (view for view in self._state.seen if view.restart_id == self.calls.intent.id)
            return next((view.id for view in ours if view.state in steps.LIVE), None)
        (step,) = self.next_steps()
        return step.container if step.kind is steps.StepKind.REMOVE else None

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:  # noqa: ARG002
        await listings.next_change(changes)

    async def before_removal(self, container_id: ContainerId) -> None:
        """Do nothing: an old container is removed only once its successor runs, which has what it keeps by then."""

    def gives_up(self) -> bool:
        """Remove the successor rather than leave it waiting next to the old one; then list again.

        Nor is one left that must go because the old one has completed: kubelet would start a copy of it.
        A rebuilt config that the runtime refuses counts as one that differs. If even that fails, the intent stays in
        the journal: the outcome is UNFINISHED.
        """
        if not any(view.restart_id == self.calls.intent.id for view in self._state.seen):
            if not self.calls.is_rebuilt or self.calls.refused is None:
                return True
            self._proof.unlike = self.calls.refused  # a config that was rebuilt; the pod can still be reset
            return False
        if not self._standby.old_runs:
            return self.next_steps()[0].kind is not steps.StepKind.REMOVE
        self._state.resolution = steps.Resolution.UNDO
        return False

    def notes(self) -> tuple[str, ...]:
        """Return whether the successor imported early, if the pod allows that.

        Nothing can overlap the end of a container that has ended by itself.
        """
        note = self._standby.overlap_note() if self.calls.stopped_old else None
        return (note,) if note is not None else ()
