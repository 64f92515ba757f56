"""Describe one restart of any strategy: how to run it, and which containers must result."""

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubemend.agent.actuator import outcomes, progress, turns
from kubemend.agent.actuator.cache_cleanup import CacheCleanup
from kubemend.agent.actuator.context import SuccessorSpec
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.outcomes import Outcome, Result
from kubemend.agent.actuator.shm_cleanup import ShmCleanup
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerState,
    ContainerSummary,
    PodView,
)
from kubemend.agent.restart import intents, keep, options, steps
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restarts import runtime_state
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.common import aio


@dataclass(frozen=True, slots=True)
class RestartPlan(abc.ABC):
    """A restart that was admitted.

    ``restart_count`` is the target's count after it. ``holding`` holds what it starts until the release.
    ``stepped_down`` is why a better strategy was not used, if its container could not be copied exactly.
    """

    outside: Dependencies
    target: ContainerRef
    restart_count: int
    followed: progress.Progress = field(default=progress.NO_FOLLOWER, kw_only=True)
    sweep: ShmCleanup | None = field(default=None, kw_only=True)
    holding: HoldSet | None = field(default=None, kw_only=True)
    stepped_down: str = field(default="", kw_only=True)

    @property
    @abc.abstractmethod
    def entries(self) -> tuple[intents.AnyIntent, ...]:
        """Return the intents to journal before the first step."""

    @property
    @abc.abstractmethod
    def names(self) -> frozenset[str]:
        """Return the names of the containers to restart."""

    @property
    @abc.abstractmethod
    def old(self) -> frozenset[ContainerId]:
        """Return all containers of these names that existed before."""

    @property
    def stays(self) -> frozenset[ContainerId]:
        """Return the containers that stay, because only the program in them is restarted."""
        return frozenset()

    @property
    def duplicates(self) -> frozenset[ContainerId]:
        """Return older containers that ran next to the newest one of a name: an earlier restart was not finished."""
        return frozenset()

    @property
    @abc.abstractmethod
    def emptyings(self) -> tuple[CacheCleanup, ...]:
        """Return the compile caches to empty."""

    @property
    @abc.abstractmethod
    def kept(self) -> list[str]:
        """Return what the successors keep of the writable layers and what not, for people."""

    @abc.abstractmethod
    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        """Run the restart to its end."""

    @abc.abstractmethod
    def again(self) -> "RestartPlan":
        """Return the plan for another try, without the state that was read before the first one."""

    @abc.abstractmethod
    def bare(self) -> "RestartPlan":
        """Return the plan without its gathered inputs: it can be undone, but creates nothing."""

    @abc.abstractmethod
    async def resolve(self, outcome: Outcome) -> Outcome:
        """Check again after the end: remove a duplicate that kubelet has started since, or adopt it."""

    @abc.abstractmethod
    async def released(self) -> None:
        """Do the work that had to wait for the release."""

    async def give_back(self) -> None:
        """Free the container names that were reserved until kubelet has seen the restart. Never fails."""
        return

    def must_run(self, outcome: Outcome) -> Mapping[str, ContainerId]:
        """Return the survivors that must keep running."""
        return outcome.survivors

    def awaited(self, outcome: Outcome) -> frozenset[str]:
        """Return the names that kubelet has not started yet."""
        return self.names - outcome.survivors.keys()

    def noted(self, outcome: Outcome) -> Outcome:
        """Return the outcome with notes about the cleanups before the start."""
        if not outcome.result.restarted:
            return outcome
        notes = [self.stepped_down] if self.stepped_down else []
        notes += [self.sweep.note] if self.sweep is not None else []
        notes += [emptying.note for emptying in self.emptyings if emptying.note]
        notes += self.kept
        return replace(outcome, notes=(*outcome.notes, *notes))

    @property
    def id(self) -> str:
        """Return the restart's id in logs."""
        return self.entries[0].id

    @property
    def strategy(self) -> Strategy:
        """Return the restart's strategy."""
        return self.entries[0].strategy


@dataclass(frozen=True, slots=True)
class Swap:
    """One container's swap. ``seen`` is the listing on which the decision is based."""

    intent: intents.Intent
    material: SuccessorSpec | None
    seen: Sequence[ContainerSummary] | None = None


@dataclass(frozen=True, slots=True)
class SwapPlan(RestartPlan):
    """Swap containers of one pod in parallel."""

    swaps: tuple[Swap, ...]

    @property
    def entries(self) -> tuple[intents.AnyIntent, ...]:
        return tuple(swap.intent for swap in self.swaps)

    @property
    def names(self) -> frozenset[str]:
        return frozenset[str]().union(*(swap.intent.names for swap in self.swaps))

    @property
    def old(self) -> frozenset[ContainerId]:
        return frozenset(view.id for swap in self.swaps for view in swap.seen or ()) | {
            swap.intent.old for swap in self.swaps
        }

    @property
    def duplicates(self) -> frozenset[ContainerId]:
        seen = frozenset(
            view.id for swap in self.swaps for view in swap.seen or () if view.state is ContainerState.RUNNING
        )
        return seen - {swap.intent.old for swap in self.swaps}

    @property
    def emptyings(self) -> tuple[CacheCleanup, ...]:
        materials = (swap.material for swap in self.swaps)
        return tuple(each.emptying for each in materials if each is not None and each.emptying is not None)

    @property
    def kept(self) -> list[str]:
        return _notes(swap.material for swap in self.swaps)

    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        swapper = self.outside.actuators.swap
        outcome = outcomes.together(
            await turns.side_by_side(
                *(
                    swapper.carry_out(
                        swap.intent,
                        material=swap.material,
                        resolution=resolution,
                        followed=self.followed,
                        seen=swap.seen,
                        holding=self.holding,
                    )
                    for swap in self.swaps
                )
            )
        )
        return self.noted(outcome)

    def again(self) -> RestartPlan:
        return replace(self, swaps=tuple(replace(swap, seen=None) for swap in self.swaps))

    def bare(self) -> RestartPlan:
        return replace(self, swaps=tuple(Swap(swap.intent, None) for swap in self.swaps), sweep=None)

    async def resolve(self, outcome: Outcome) -> Outcome:
        swapper = self.outside.actuators.swap
        again = outcomes.together(
            await aio.side_by_side(
                *(
                    swapper.carry_out(swap.intent, material=None, followed=self.followed, holding=self.holding)
                    for swap in self.swaps
                )
            )
        )
        return replace(outcome, result=again.result, survivors={**outcome.survivors, **again.survivors})

    async def released(self) -> None:
        assert self.holding is not None
        swapper = self.outside.actuators.swap
        await aio.side_by_side(
            *(swapper.released(swap.intent, material=swap.material, holding=self.holding) for swap in self.swaps)
        )

    async def give_back(self) -> None:
        swapper = self.outside.actuators.swap
        await aio.side_by_side(*(swapper.give_back(swap.intent) for swap in self.swaps))


@dataclass(frozen=True, slots=True)
class ProcessPlan(RestartPlan):
    """Restart a container's program inside the container."""

    intent: intents.ProcessIntent

    @property
    def entries(self) -> tuple[intents.AnyIntent, ...]:
        return (self.intent,)

    @property
    def names(self) -> frozenset[str]:
        return self.intent.names

    @property
    def old(self) -> frozenset[ContainerId]:
        return frozenset()

    @property
    def stays(self) -> frozenset[ContainerId]:
        return frozenset({self.intent.container})

    @property
    def emptyings(self) -> tuple[CacheCleanup, ...]:
        return ()

    @property
    def kept(self) -> list[str]:
        return []  # the container stays

    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        actuator = self.outside.actuators.process
        return await actuator.carry_out(
            self.intent, resolution=resolution, followed=self.followed, holding=self.holding
        )

    def again(self) -> RestartPlan:
        return self

    def bare(self) -> RestartPlan:
        return self

    async def resolve(self, outcome: Outcome) -> Outcome:
        """Check that the container still runs. Kubelet makes another one after its end, but none next to it."""
        try:
            container = await self.outside.runtime.container_status(self.intent.container)
        except CriError:
            return outcome
        ended = container.state is not ContainerState.RUNNING
        return replace(outcome, result=Result.SUCCESSOR_EXITED) if ended else outcome

    async def released(self) -> None:
        await self.outside.actuators.process.released(self.intent)


@dataclass(frozen=True, slots=True)
class PodRestartPlan(RestartPlan):
    """Restart a whole pod. ``materials`` None: kubelet starts the missing containers (a replay, a reset, the rules)."""

    intent: intents.PodIntent
    pod: PodView | None = None
    materials: Mapping[str, SuccessorSpec] | None = None

    @property
    def entries(self) -> tuple[intents.AnyIntent, ...]:
        return (self.intent,)

    @property
    def names(self) -> frozenset[str]:
        return self.intent.names

    @property
    def old(self) -> frozenset[ContainerId]:
        return self.intent.old_ids

    @property
    def emptyings(self) -> tuple[CacheCleanup, ...]:
        return tuple(each.emptying for each in (self.materials or {}).values() if each.emptying is not None)

    @property
    def kept(self) -> list[str]:
        if self.materials is not None or self.pod is None:
            return _notes((self.materials or {}).values())
        try:
            paths = options.kept_paths(self.pod.annotations)
        except options.BadAnnotationError:
            return []  # the annotations have changed since the start
        return [f"{', '.join(paths)} not kept: {keep.KUBELET}"] if paths else []

    def must_run(self, outcome: Outcome) -> Mapping[str, ContainerId]:
        lasting = {planned.name for planned in self.intent.plan if planned.role is not ContainerRole.INIT}
        return {name: container for name, container in outcome.survivors.items() if name in lasting}

    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        outcome = await self.outside.actuators.pods.carry_out(
            self.intent,
            materials=self.materials,
            pre_stop_hooks=runtime_state.pre_stop_hooks(self.pod),
            resolution=resolution,
            followed=self.followed,
            holding=self.holding,
        )
        return self.noted(outcome)

    def again(self) -> RestartPlan:
        return self

    def bare(self) -> RestartPlan:
        return replace(self, materials=None, pod=None, sweep=None)

    async def released(self) -> None:
        """Run the hooks and links of its containers. Kubelet does this for the containers that it starts."""
        assert self.holding is not None
        await self.outside.actuators.pods.released(self.intent, materials=self.materials, holding=self.holding)

    async def resolve(self, outcome: Outcome) -> Outcome:
        finished = outcome.result is Result.RERUN  # otherwise kubelet starts the containers
        again = await (self if finished else replace(self, materials=None)).carry_out()
        if again.result is Result.UNFINISHED:
            return outcome
        return replace(outcome, survivors=again.survivors)


def _notes(materials: Iterable[SuccessorSpec | None]) -> list[str]:
    return [each.keeping.note for each in materials if each is not None and each.keeping is not None]
