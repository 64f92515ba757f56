"""What carrying out a rerun, a reset and the rules have in common: they look at a whole pod."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent.actuator.outcomes import Outcome
from agent.actuator.steps import LOOK_AGAIN, Run, first_of, next_change
from agent.actuator.tools import Material
from agent.cri import errors as cri_errors
from agent.cri.events import ContainerEvent
from agent.model.workloads import (
    ContainerId,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerView,
    PodUid,
    PodView,
)
from agent.restart import intents, reset, steps

NOTICED_AFTER = 30.0
"""Seconds after which kubelet must have seen a container, though we have not heard so: it looks once a second."""


class Pods(Protocol):
    """The pods as the API server tells them (``agent.sources.pods.PodWatch``): kubelet's word on its containers."""

    def pods(self) -> Mapping[PodUid, PodView]: ...
    async def wait_for(
        self, uid: PodUid, predicate: Callable[[PodView], bool], *, timeout: float
    ) -> PodView | None: ...


@dataclass(slots=True, kw_only=True)
class PodRun(Run[intents.PodIntent]):
    """The restart of a pod. ``materials`` are by container name; none on a replay."""

    materials: dict[str, Material] = field(default_factory=dict)
    exits: dict[ContainerId, reset.Exit] = field(default_factory=dict)

    def material(self, name: str | None) -> Material | None:
        return self.materials.get(name) if name is not None else None

    async def containers(self) -> tuple[ContainerView, ...]:
        seen = await self.tools.runtime.list_containers(pod_uid=self.intent.target.pod.uid)
        await self._ask_exits(seen)
        return seen

    @property
    def is_first(self) -> bool:
        news = (view for view in self.seen if view.ref.name in self.intent.names and view.id not in self.intent.old)
        return all(view.state is ContainerState.CREATED for view in news)

    def survivors(self) -> dict[str, ContainerId]:
        found = {planned.name: reset.successors(self.intent, self.seen, planned.name) for planned in self.intent.plan}
        return {name: views[-1].id for name, views in found.items() if views}

    def ended(self, step: steps.Step) -> Outcome:
        outcome = Run.ended(self, step)  # a dataclass with slots is another class than super() knows
        if step.name is None or self.last_error:
            return outcome
        end = self.exits.get(step.container) if step.container is not None else None
        said = f"{step.name} ended with exit code {end.code if end is not None else 'unknown'}"
        return self.outcome(outcome.result, detail=f"{said}; kubelet does the rest")

    async def _ask_exits(self, seen: tuple[ContainerView, ...]) -> None:
        """An init container that has ended says by its exit code whether the next one's turn has come."""
        for planned in self.intent.plan:
            if planned.role is ContainerRole.MAIN:
                continue
            for view in reset.successors(self.intent, seen, planned.name):
                if view.state in steps.LIVE or view.id in self.exits:
                    continue
                try:
                    info = await self.tools.runtime.container_info(view.id)
                except cri_errors.NotFound:
                    continue  # gone since the listing
                self.exits[view.id] = reset.Exit(info.exit_code, info.finished_at)


@dataclass(slots=True, kw_only=True)
class ToldRun(PodRun):
    """One that waits for kubelet's word at times. ``here_since`` has when we first saw a container (loop time)."""

    pods: Pods
    here_since: dict[ContainerId, float] = field(default_factory=dict)

    def told(self) -> Sequence[ContainerSpec]:
        """Return what kubelet's status says about the containers."""
        pod = self.pods.pods().get(self.intent.target.pod.uid)
        return pod.containers if pod is not None else ()

    def noticed(self) -> frozenset[ContainerId]:
        """Return the containers that kubelet has seen; by their age, where that is not known (the API is away)."""
        shown = {spec.container_id for spec in self.told()}
        now, wall = asyncio.get_running_loop().time(), time.time()
        found = set()
        for view in self.seen:
            age = max(now - self.here_since.setdefault(view.id, now), wall - view.created_at / _NANOSECONDS)
            if view.id in shown or age > NOTICED_AFTER:
                found.add(view.id)
        return frozenset(found)

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        """Wait for a change; where kubelet's word is awaited, for that, too."""
        if step.why not in (steps.Why.NOT_STARTED, steps.Why.NOT_SHOWN):
            await next_change(changes, timeout=LOOK_AGAIN)
            return
        uid, before = self.intent.target.pod.uid, self.told()
        await first_of(
            self.pods.wait_for(uid, lambda pod: pod.containers != before, timeout=LOOK_AGAIN),
            next_change(changes, timeout=LOOK_AGAIN),
        )


_NANOSECONDS = 1_000_000_000  # in a second
