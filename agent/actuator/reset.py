"""Carry out resets (``agent.restart.reset``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubemend.agent.actuator import progress
from kubemend.agent.actuator.context import ActuatorContext, PreStopHook
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.outcomes import Outcome
from kubemend.agent.actuator.whole_pod import KubeletAwarePlanRunner, Pods
from kubemend.agent.restart import intents, reset, steps


class ResetActuator:
    """Remove a pod's containers and leave the rest to kubelet."""

    def __init__(self, tools: ActuatorContext, *, pods: Pods) -> None:
        self._tools = tools
        self._pods = pods

    async def carry_out(
        self,
        intent: intents.PodIntent,
        *,
        pre_stop_hooks: Mapping[str, PreStopHook],
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NO_FOLLOWER,
        holding: HoldSet | None = None,
    ) -> Outcome:
        """Carry out the intent; ``pre_stop_hooks`` are by container name. See ``SwapActuator``."""
        run = _ResetRun(
            tools=self._tools,
            intent=intent,
            pre_stop_hooks=pre_stop_hooks,
            pods=self._pods,
            resolution=resolution,
            followed=followed,
            holding=holding,
        )
        return await run.run_to_end()


@dataclass(slots=True, kw_only=True)
class _ResetRun(KubeletAwarePlanRunner):
    pre_stop_hooks: Mapping[str, PreStopHook]

    def next_steps(self) -> Sequence[steps.Step]:
        known = reset.Known(exits=self.exits, noticed=self.noticed())
        return reset.next_steps(self.intent, self.seen, known=known, resolution=self.resolution)

    def pre_stop_hook(self, name: str) -> PreStopHook | None:
        return self.pre_stop_hooks.get(name)
