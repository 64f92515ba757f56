"""Carry out reruns (``agent.restart.rerun``)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.actuator.outcomes import Outcome
from agent.actuator.steps import LOOK_AGAIN, first_of, next_change
from agent.actuator.tools import Material, Tools
from agent.actuator.whole_pod import PodRun
from agent.cri.events import ContainerEvent
from agent.model.workloads import ContainerId, PodUid, PodView
from agent.restart import intents, rerun, reset, steps


class Pods(Protocol):
    """The pods as the API server tells them (``agent.sources.pods.PodWatch``): kubelet's word on startup probes."""

    def pods(self) -> Mapping[PodUid, PodView]: ...
    async def wait_for(
        self, uid: PodUid, predicate: Callable[[PodView], bool], *, timeout: float
    ) -> PodView | None: ...


class RerunActuator:
    """Takes a pod's containers away and runs them again in kubelet's order."""

    def __init__(self, tools: Tools, *, pods: Pods) -> None:
        self._tools = tools
        self._pods = pods

    async def carry_out(
        self,
        intent: intents.PodIntent,
        *,
        materials: Mapping[str, Material] | None,
        resolution: steps.Resolution = steps.Resolution.FINISH,
    ) -> Outcome:
        """Bring the intent to an end; without ``materials`` (a replay) kubelet starts what is missing.

        ``LEFT_TO_KUBELET`` means that nothing old is left, and that kubelet does the rest. See ``SwapActuator``.
        """
        run = _RerunRun(
            tools=self._tools,
            intent=intent,
            materials=dict(materials or {}),
            can_clone=materials is not None,
            pods=self._pods,
            resolution=resolution,
        )
        return await run.to_the_end()


@dataclass(slots=True, kw_only=True)
class _RerunRun(PodRun):
    can_clone: bool
    pods: Pods

    def next_steps(self) -> Sequence[steps.Step]:
        known = reset.Known(exits=self.exits, started=self._started())
        return rerun.next_steps(
            self.intent, self.seen, known=known, resolution=self.resolution, can_clone=self.can_clone
        )

    def gives_up(self) -> bool:
        """Leave it to kubelet, once: it finishes a pod of which nothing old is left and nothing of ours waits."""
        if not self.can_clone:
            return True
        self.can_clone, self.failures = False, 0
        return False

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        if step.why is not steps.Why.NOT_STARTED:
            await next_change(changes, timeout=LOOK_AGAIN)
            return
        uid = self.intent.target.pod.uid
        await first_of(
            self.pods.wait_for(uid, lambda pod: step.container in _started_in(pod), timeout=LOOK_AGAIN),
            next_change(changes, timeout=LOOK_AGAIN),
        )

    def _started(self) -> frozenset[ContainerId]:
        pod = self.pods.pods().get(self.intent.target.pod.uid)
        return _started_in(pod) if pod is not None else frozenset()


def _started_in(pod: PodView) -> frozenset[ContainerId]:
    return frozenset(spec.container_id for spec in pod.containers if spec.started and spec.container_id is not None)
