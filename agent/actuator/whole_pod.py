"""Share the parts of a rerun, a reset and the rules: all of them list a whole pod."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kubemend.agent import ports
from kubemend.agent.actuator.context import PreStopHook, SuccessorSpec
from kubemend.agent.actuator.outcomes import Outcome
from kubemend.agent.actuator.plan_runner import RELIST_SECONDS, PlanRunner, first_of, next_change
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
)
from kubemend.agent.restart import intents, reset, steps

NOTICED_AFTER = 30.0
"""Seconds after which kubelet must have seen a container even without confirmation: it relists once a second."""


@dataclass(slots=True, kw_only=True)
class PodPlanRunner(PlanRunner[intents.PodIntent]):
    """The restart of a pod. ``materials`` and ``pre_stop_hooks`` are by container name.

    ``materials`` is None if kubelet starts the containers, as on a replay. ``pods`` have kubelet's status.
    """

    pods: ports.Pods
    materials: Mapping[str, SuccessorSpec] | None = None
    pre_stop_hooks: Mapping[str, PreStopHook] = field(default_factory=dict)
    exits: dict[ContainerId, reset.Exit] = field(default_factory=dict)

    def material(self, name: str | None) -> SuccessorSpec | None:
        return self.materials.get(name) if self.materials is not None and name is not None else None

    async def containers(self) -> tuple[ContainerSummary, ...]:
        seen = await self.tools.runtime.list_containers(pod_uid=self.intent.target.pod.uid)
        await self._ask_exits(seen)
        return seen

    @property
    def is_first(self) -> bool:
        news = (view for view in self.seen if view.ref.name in self.intent.names and view.id not in self.intent.old_ids)
        return all(view.state is ContainerState.CREATED for view in news)

    def survivors(self) -> dict[str, ContainerId]:
        found = {planned.name: reset.successors(self.intent, self.seen, planned.name) for planned in self.intent.plan}
        return {name: views[-1].id for name, views in found.items() if views}

    def ended(self, step: steps.Step) -> Outcome:
        outcome = PlanRunner.ended(self, step)  # a dataclass with slots is another class than super() knows
        if step.name is None or self.last_error:
            return outcome
        end = self.exits.get(step.container) if step.container is not None else None
        detail = f"{step.name} ended with exit code {end.code if end is not None else 'unknown'}"
        return self.outcome(outcome.result, detail=f"{detail}; kubelet does the rest")

    async def _ask_exits(self, seen: tuple[ContainerSummary, ...]) -> None:
        """Record the exit codes of ended init containers: they decide whether the next one may start."""
        for planned in self.intent.plan:
            if planned.role is ContainerRole.MAIN:
                continue
            for view in reset.successors(self.intent, seen, planned.name):
                if view.state in steps.LIVE or view.id in self.exits:
                    continue
                try:
                    info = await self.tools.runtime.container_status(view.id)
                except cri_errors.NotFound:
                    continue  # gone since the listing
                self.exits[view.id] = reset.Exit(info.exit_code, info.finished_at)


@dataclass(slots=True, kw_only=True)
class KubeletAwarePlanRunner(PodPlanRunner):
    """A runner that waits for kubelet's status. ``here_since`` is when a container was first listed (loop time)."""

    here_since: dict[ContainerId, float] = field(default_factory=dict)

    def kubelet_status(self) -> Sequence[ContainerSpec]:
        """Return the containers in kubelet's status of the pod."""
        pod = self.pods.pods().get(self.intent.target.pod.uid)
        return pod.containers if pod is not None else ()

    def noticed(self) -> frozenset[ContainerId]:
        """Return the containers that kubelet has seen; judged by age if the API server is unavailable."""
        shown = {spec.container_id for spec in self.kubelet_status()}
        now, wall = asyncio.get_running_loop().time(), time.time()
        found = set()
        for view in self.seen:
            age = max(now - self.here_since.setdefault(view.id, now), wall - view.created_at / _NANOSECONDS)
            if view.id in shown or age > NOTICED_AFTER:
                found.add(view.id)
        return frozenset(found)

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        """Wait for a change; also for kubelet's status, if the step needs it."""
        if step.why not in (steps.StepReason.NOT_STARTED, steps.StepReason.NOT_SHOWN):
            await next_change(changes, timeout=RELIST_SECONDS)
            return
        uid, before = self.intent.target.pod.uid, self.kubelet_status()
        await first_of(
            self.pods.wait_for(uid, lambda pod: pod.containers != before, timeout=RELIST_SECONDS),
            next_change(changes, timeout=RELIST_SECONDS),
        )


_NANOSECONDS = 1_000_000_000  # in a second
