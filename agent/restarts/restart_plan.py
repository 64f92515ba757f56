"""Describe one restart of any strategy as data: what to restart, with which inputs. ``plan_execution`` runs it."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerState,
    ContainerSummary,
    PodView,
)
from kubemend.agent.restart import intents, keep, options, shm
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.successor_spec import SuccessorSpec


@dataclass(frozen=True, slots=True)
class RestartPlan(abc.ABC):
    """A restart that was admitted.

    - ``restart_count`` is the target's count after it; 0: unknown, because a previous agent has begun it
    - ``shm_cleanup`` is the shared memory to empty
    - ``stepped_down`` is why a better strategy was not used, if its container could not be copied exactly
    """

    target: ContainerRef
    restart_count: int
    shm_cleanup: shm.Request | None = field(default=None, kw_only=True)
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
    def specs(self) -> Mapping[str, SuccessorSpec]:
        """Return the inputs of the successors that kubemend creates, by container name."""
        return {}

    @property
    def not_kept(self) -> str:
        """Return why kubelet's containers keep nothing of the writable layers, for people; empty if that is no loss."""
        return ""

    def bare(self) -> "RestartPlan":
        """Return the plan without its gathered inputs: it can be undone, but creates nothing."""
        return self

    def must_run(self, outcome: Outcome) -> Mapping[str, ContainerId]:
        """Return the current containers that must keep running."""
        return outcome.current

    def pending_on_kubelet(self, outcome: Outcome) -> frozenset[str]:
        """Return the names that kubelet has not started yet."""
        return self.names - outcome.current.keys()

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
    successor_spec: SuccessorSpec | None
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
    def specs(self) -> Mapping[str, SuccessorSpec]:
        return {swap.intent.target.name: swap.successor_spec for swap in self.swaps if swap.successor_spec is not None}

    def pending_on_kubelet(self, outcome: Outcome) -> frozenset[str]:  # noqa: ARG002
        """Return no name: a swap starts each successor itself, and a container that has completed gets none."""
        return frozenset()

    def bare(self) -> RestartPlan:
        return replace(self, swaps=tuple(Swap(swap.intent, None) for swap in self.swaps), shm_cleanup=None)


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


@dataclass(frozen=True, slots=True)
class PodRestartPlan(RestartPlan):
    """Restart a whole pod. Without ``successor_specs`` kubelet starts the missing containers (replay, reset, rules)."""

    intent: intents.PodIntent
    pod: PodView | None = None
    successor_specs: Mapping[str, SuccessorSpec] | None = None

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
    def specs(self) -> Mapping[str, SuccessorSpec]:
        return self.successor_specs or {}

    @property
    def not_kept(self) -> str:
        if self.successor_specs is not None or self.pod is None:
            return ""
        try:
            paths = options.kept_paths(self.pod.annotations)
        except options.BadAnnotationError:
            return ""  # the annotations have changed since the start
        return f"{', '.join(paths)} not kept: {keep.KUBELET}" if paths else ""

    def bare(self) -> RestartPlan:
        return replace(self, successor_specs=None, pod=None, shm_cleanup=None)

    def must_run(self, outcome: Outcome) -> Mapping[str, ContainerId]:
        lasting = {planned.name for planned in self.intent.plan if planned.role is not ContainerRole.INIT}
        return {name: container for name, container in outcome.current.items() if name in lasting}
