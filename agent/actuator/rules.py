"""Carry out the pod's own rules (``agent.restart.rules``): kill the container whose exit makes kubelet restart it."""

import asyncio
from collections.abc import Sequence

from kubemend.agent.actuator import listings
from kubemend.agent.actuator.plan_runner import PlanRunner
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.actuator.strategy import Calls
from kubemend.agent.actuator.whole_pod import PodListing, PodRestart
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents, rules, steps


class RulesStrategy:
    """One kill; kubelet does the rest."""

    def __init__(self, ops: RuntimeOps, intent: intents.PodIntent) -> None:
        self.calls: Calls = ops
        self._state = ops.state
        self._intent = intent

    def next_steps(self) -> Sequence[steps.Step]:
        return rules.next_steps(self._intent, self._state.seen, resolution=self._state.resolution)

    async def examine(self) -> None:
        """Do nothing: kubelet creates the containers."""

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:  # noqa: ARG002
        await listings.next_change(changes)

    async def before_removal(self, container_id: ContainerId) -> None:
        """Do nothing: kubelet removes the containers."""

    def gives_up(self) -> bool:
        return True

    def notes(self) -> tuple[str, ...]:
        return ()


def runner(restart: PodRestart) -> PlanRunner:
    """Return what carries out the rules."""
    ops = restart.ops(PodListing(restart.tools.runtime, restart.intent), pre_stop_hooks={})
    return PlanRunner(ops, RulesStrategy(ops, restart.intent))
