"""Carry out resets (``agent.restart.reset``): remove a pod's containers and leave the rest to kubelet."""

import asyncio
from collections.abc import Sequence

from kubemend.agent.actuator import whole_pod
from kubemend.agent.actuator.plan_runner import PlanRunner
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.actuator.strategy import Calls
from kubemend.agent.actuator.whole_pod import KubeletView, PodListing, PodRestart
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents, reset, steps


class ResetStrategy:
    """One reset. Kubelet must have seen the last containers before they are removed."""

    def __init__(self, ops: RuntimeOps, intent: intents.PodIntent, *, pod: PodListing, kubelet: KubeletView) -> None:
        self.calls: Calls = ops
        self._ops = ops
        self._state = ops.state
        self._intent = intent
        self._pod = pod
        self._kubelet = kubelet

    def next_steps(self) -> Sequence[steps.Step]:
        known = reset.Known(
            exits=self._pod.exits,
            noticed=self._kubelet.noticed(self._state.seen),
            is_stopped=whole_pod.is_stopped(self._ops, self._intent),
        )
        return reset.next_steps(self._intent, self._state.seen, known=known, resolution=self._state.resolution)

    async def examine(self) -> None:
        await whole_pod.look_again(self._ops, self._intent)

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        await self._kubelet.wait(step, changes)

    async def before_removal(self, container_id: ContainerId) -> None:
        """Do nothing: a reset keeps nothing."""

    def gives_up(self) -> bool:
        return True

    def notes(self) -> tuple[str, ...]:
        return ()


def runner(restart: PodRestart) -> PlanRunner:
    """Return the runner of a reset."""
    pod = PodListing(restart.tools.runtime, restart.intent)
    ops = restart.ops(pod, pre_stop_hooks=restart.pre_stop_hooks)
    kubelet = KubeletView(restart.pods, restart.intent)
    return PlanRunner(ops, ResetStrategy(ops, restart.intent, pod=pod, kubelet=kubelet))
