"""Carry out restarts by the pod's own rules (``agent.restart.rules``)."""

from collections.abc import Sequence

from agent.actuator import progress
from agent.actuator.holding import Holding
from agent.actuator.outcomes import Outcome
from agent.actuator.tools import Tools
from agent.actuator.whole_pod import PodRun
from agent.restart import intents, rules, steps


class RulesActuator:
    """Kills the container whose exit makes kubelet restart the whole pod."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def carry_out(
        self,
        intent: intents.PodIntent,
        *,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NOBODY,
        holding: Holding | None = None,
    ) -> Outcome:
        """Bring the intent to an end. See ``SwapActuator``."""
        run = _RulesRun(tools=self._tools, intent=intent, resolution=resolution, followed=followed, holding=holding)
        return await run.to_the_end()


class _RulesRun(PodRun):
    def next_steps(self) -> Sequence[steps.Step]:
        return rules.next_steps(self.intent, self.seen, resolution=self.resolution)
