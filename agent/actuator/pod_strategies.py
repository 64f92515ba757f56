"""Carry out the strategies that restart a whole pod, each by its runner."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kubemend.agent import ports
from kubemend.agent.actuator import progress
from kubemend.agent.actuator.context import (
    NO_PREPARATION,
    ActuatorContext,
    PreStopHook,
    StartPreparation,
    SuccessorSpec,
)
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.outcomes import Outcome
from kubemend.agent.actuator.rerun import RerunRunner
from kubemend.agent.actuator.whole_pod import KubeletAwarePlanRunner, PodPlanRunner
from kubemend.agent.restart import intents, reset, rules, steps
from kubemend.agent.restart.intents import Strategy

_NO_HOOKS: Final[Mapping[str, PreStopHook]] = MappingProxyType({})


class _ResetRunner(KubeletAwarePlanRunner):
    """Remove a pod's containers and leave the rest to kubelet."""

    def next_steps(self) -> Sequence[steps.Step]:
        known = reset.Known(exits=self.exits, noticed=self.noticed())
        return reset.next_steps(self.intent, self.seen, known=known, resolution=self.resolution)

    def pre_stop_hook(self, name: str) -> PreStopHook | None:
        return self.pre_stop_hooks.get(name)


class _RulesRunner(PodPlanRunner):
    """Kill the container whose exit makes kubelet restart the whole pod."""

    def next_steps(self) -> Sequence[steps.Step]:
        return rules.next_steps(self.intent, self.seen, resolution=self.resolution)


RUNNERS: Final[Mapping[Strategy, type[PodPlanRunner]]] = MappingProxyType(
    {Strategy.RERUN: RerunRunner, Strategy.RESET: _ResetRunner, Strategy.RULES: _RulesRunner}
)
"""The runner of each strategy that restarts a whole pod (``agent.restart.strategies.Spec.whole_pod``)."""


class PodActuator:
    """Restart whole pods."""

    def __init__(self, tools: ActuatorContext, *, pods: ports.Pods) -> None:
        self._tools = tools
        self._pods = pods

    async def carry_out(
        self,
        intent: intents.PodIntent,
        *,
        materials: Mapping[str, SuccessorSpec] | None = None,
        pre_stop_hooks: Mapping[str, PreStopHook] = _NO_HOOKS,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NO_FOLLOWER,
        preparation: StartPreparation = NO_PREPARATION,
        holding: HoldSet | None = None,
    ) -> Outcome:
        """Carry out the intent by its strategy; ``materials`` and ``pre_stop_hooks`` are by container name.

        Without ``materials`` (a replay) kubelet starts the missing containers. ``LEFT_TO_KUBELET``: no old container is
        left, and kubelet does the rest. See ``SwapActuator``.
        """
        run = RUNNERS[intent.strategy](
            tools=self._tools,
            intent=intent,
            materials=materials,
            pre_stop_hooks=pre_stop_hooks,
            pods=self._pods,
            resolution=resolution,
            followed=followed,
            preparation=preparation,
            holding=holding,
        )
        return await run.run_to_end()

    async def released(
        self, intent: intents.PodIntent, *, materials: Mapping[str, SuccessorSpec] | None, holding: HoldSet
    ) -> None:
        """Do the work that was postponed while the main containers were held.

        Kubelet does this work for the containers that it starts.
        """
        run = RUNNERS[intent.strategy](
            tools=self._tools, intent=intent, materials=materials, pods=self._pods, holding=holding
        )
        await run.released()
