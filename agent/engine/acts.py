"""One restart on its way through the engine, whatever its strategy: how to carry it out, and what must come of it."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.actuator import outcomes, progress, turns
from agent.actuator.holding import Holding
from agent.actuator.outcomes import Outcome, Result
from agent.actuator.sweep import Sweep
from agent.actuator.tools import Material
from agent.engine import ports, targets
from agent.model.workloads import ContainerId, ContainerRef, ContainerRole, ContainerState, ContainerView, PodView
from agent.restart import intents, steps
from agent.restart.intents import Strategy
from common import aio


@dataclass(frozen=True, slots=True)
class Act(abc.ABC):
    """A restart that has been decided on. ``restart_count`` is what its target's will be.

    ``holding`` keeps what it starts from running, until that is let go.
    """

    outside: ports.Outside
    target: ContainerRef
    restart_count: int
    followed: progress.Progress = field(default=progress.NOBODY, kw_only=True)
    sweep: Sweep | None = field(default=None, kw_only=True)
    holding: Holding | None = field(default=None, kw_only=True)

    @property
    @abc.abstractmethod
    def entries(self) -> tuple[intents.AnyIntent, ...]:
        """What goes into the journal before the first step."""

    @property
    @abc.abstractmethod
    def names(self) -> frozenset[str]:
        """The containers that it concerns."""

    @property
    @abc.abstractmethod
    def old(self) -> frozenset[ContainerId]:
        """Everything of its names that was there before."""

    @property
    def strays(self) -> frozenset[ContainerId]:
        """What ran beside the newest container of a name before: an earlier restart has not come to its end."""
        return frozenset()

    @abc.abstractmethod
    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        """Bring it to an end."""

    @abc.abstractmethod
    def again(self) -> "Act":
        """Return the same act for another try: what was seen before the first no longer holds."""

    @abc.abstractmethod
    def bare(self) -> "Act":
        """Return the same act without all that was gathered for it: enough to take it back, and to make nothing."""

    @abc.abstractmethod
    async def resolve(self, outcome: Outcome) -> Outcome:
        """Look again after the end: a copy that kubelet has started since goes, or takes over."""

    @abc.abstractmethod
    async def released(self) -> None:
        """Do what had to wait while it was held."""

    def must_run(self, outcome: Outcome) -> Mapping[str, ContainerId]:
        """Return the survivors that run for good."""
        return outcome.survivors

    def awaited(self, outcome: Outcome) -> frozenset[str]:
        """Return the names that kubelet has not started yet."""
        return self.names - outcome.survivors.keys()

    def noted(self, outcome: Outcome) -> Outcome:
        """Return the outcome with what came of the cleaning that the pod has asked for."""
        if self.sweep is None or not outcome.result.restarted:
            return outcome
        return replace(outcome, notes=(*outcome.notes, self.sweep.note))

    @property
    def id(self) -> str:
        """The restart's name in the log."""
        return self.entries[0].id

    @property
    def strategy(self) -> Strategy:
        """How it is done."""
        return self.entries[0].strategy


@dataclass(frozen=True, slots=True)
class Swap:
    """One container's part in a swap. ``seen`` is the listing that the decision was made on."""

    intent: intents.Intent
    material: Material | None
    seen: Sequence[ContainerView] | None = None


@dataclass(frozen=True, slots=True)
class SwapAct(Act):
    """Containers of one pod, swapped side by side."""

    swaps: tuple[Swap, ...]

    @property
    def entries(self) -> tuple[intents.AnyIntent, ...]:
        return tuple(swap.intent for swap in self.swaps)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(swap.intent.target.name for swap in self.swaps)

    @property
    def old(self) -> frozenset[ContainerId]:
        return frozenset(view.id for swap in self.swaps for view in swap.seen or ()) | {
            swap.intent.old for swap in self.swaps
        }

    @property
    def strays(self) -> frozenset[ContainerId]:
        seen = frozenset(
            view.id for swap in self.swaps for view in swap.seen or () if view.state is ContainerState.RUNNING
        )
        return seen - {swap.intent.old for swap in self.swaps}

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

    def again(self) -> Act:
        return replace(self, swaps=tuple(replace(swap, seen=None) for swap in self.swaps))

    def bare(self) -> Act:
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


@dataclass(frozen=True, slots=True)
class PodAct(Act):
    """A whole pod. ``materials`` None: kubelet starts what is missing (a replay, a reset, the rules)."""

    intent: intents.PodIntent
    pod: PodView | None = None
    materials: Mapping[str, Material] | None = None

    @property
    def entries(self) -> tuple[intents.AnyIntent, ...]:
        return (self.intent,)

    @property
    def names(self) -> frozenset[str]:
        return self.intent.names

    @property
    def old(self) -> frozenset[ContainerId]:
        return self.intent.old

    def must_run(self, outcome: Outcome) -> Mapping[str, ContainerId]:
        lasting = {planned.name for planned in self.intent.plan if planned.role is not ContainerRole.INIT}
        return {name: container for name, container in outcome.survivors.items() if name in lasting}

    async def carry_out(self, *, resolution: steps.Resolution = steps.Resolution.FINISH) -> Outcome:
        return self.noted(await self._carry_out(resolution))

    async def _carry_out(self, resolution: steps.Resolution) -> Outcome:
        actuators = self.outside.actuators
        match self.intent.strategy:
            case Strategy.RERUN:
                return await actuators.rerun.carry_out(
                    self.intent,
                    materials=self.materials,
                    resolution=resolution,
                    followed=self.followed,
                    holding=self.holding,
                )
            case Strategy.RESET:
                last_wishes = targets.last_wishes(self.pod)
                return await actuators.reset.carry_out(
                    self.intent,
                    last_wishes=last_wishes,
                    resolution=resolution,
                    followed=self.followed,
                    holding=self.holding,
                )
            case Strategy.RULES:
                return await actuators.rules.carry_out(
                    self.intent, resolution=resolution, followed=self.followed, holding=self.holding
                )
            case _:
                raise AssertionError(f"{self.intent.strategy.value} is not done to a whole pod")

    def again(self) -> Act:
        return self

    def bare(self) -> Act:
        return replace(self, materials=None, pod=None, sweep=None)

    async def released(self) -> None:
        """What kubelet has started it looks after itself."""
        assert self.holding is not None
        if self.intent.strategy is Strategy.RERUN:
            await self.outside.actuators.rerun.released(self.intent, materials=self.materials, holding=self.holding)

    async def resolve(self, outcome: Outcome) -> Outcome:
        finished = outcome.result is Result.RERUN  # else the starting has been left to kubelet
        again = await (self if finished else replace(self, materials=None)).carry_out()
        if again.result is Result.UNFINISHED:
            return outcome
        return replace(outcome, survivors=again.survivors)
