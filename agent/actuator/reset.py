"""Carry out resets (``agent.restart.reset``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.actuator import progress
from agent.actuator.holding import Holding
from agent.actuator.outcomes import Outcome
from agent.actuator.tools import LastWish, Tools
from agent.actuator.whole_pod import Pods, ToldRun
from agent.restart import intents, reset, steps


class ResetActuator:
    """Takes a pod's containers away and leaves the rest to kubelet."""

    def __init__(self, tools: Tools, *, pods: Pods) -> None:
        self._tools = tools
        self._pods = pods

    async def carry_out(
        self,
        intent: intents.PodIntent,
        *,
        last_wishes: Mapping[str, LastWish],
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NOBODY,
        holding: Holding | None = None,
    ) -> Outcome:
        """Bring the intent to an end; ``last_wishes`` are by container name. See ``SwapActuator``."""
        run = _ResetRun(
            tools=self._tools,
            intent=intent,
            last_wishes=last_wishes,
            pods=self._pods,
            resolution=resolution,
            followed=followed,
            holding=holding,
        )
        return await run.to_the_end()


@dataclass(slots=True, kw_only=True)
class _ResetRun(ToldRun):
    last_wishes: Mapping[str, LastWish]

    def next_steps(self) -> Sequence[steps.Step]:
        known = reset.Known(exits=self.exits, noticed=self.noticed())
        return reset.next_steps(self.intent, self.seen, known=known, resolution=self.resolution)

    def last_wish(self, name: str) -> LastWish | None:
        return self.last_wishes.get(name)
