"""Carry out restarts by the pod's own rules (``agent.restart.rules``)."""

from collections.abc import Sequence

from kubemend.agent.actuator import progress
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.outcomes import Outcome
from kubemend.agent.actuator.whole_pod import PodPlanRunner
from kubemend.agent.restart import intents, rules, steps


class RulesActuator:
    """Kill the container whose exit makes kubelet restart the whole pod."""

    def __init__(self, tools: ActuatorContext) -> None:
        self._tools = tools

    async def carry_out(
        self,
        intent: intents.PodIntent,
        *,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NO_FOLLOWER,
        holding: HoldSet | None = None,
    ) -> Outcome:
        """Carry out the intent. See ``SwapActuator``."""
        run = _RulesRun(tools=self._tools, intent=intent, resolution=resolution, followed=followed, holding=holding)
        return await run.run_to_end()


class _RulesRun(PodPlanRunner):
    def next_steps(self) -> Sequence[steps.Step]:
        return rules.next_steps(self.intent, self.seen, resolution=self.resolution)
