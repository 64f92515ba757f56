"""Carry out swaps (``agent.restart.swap``)."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.actuator.outcomes import Outcome
from agent.actuator.steps import Run
from agent.actuator.tools import Material, Tools
from agent.model.workloads import ContainerView
from agent.restart import intents, steps, swap


class SwapActuator:
    """Carries out one swap at a time per container; many run side by side."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def carry_out(
        self,
        intent: intents.Intent,
        *,
        material: Material | None,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        seen: Sequence[ContainerView] | None = None,
    ) -> Outcome:
        """Bring the intent to an end and say which.

        ``material`` is None on a replay whose old container is gone. ``seen`` is a listing made just before (it saves
        one call on the fast path). ``UNFINISHED`` means that the time limit (plus the grace period) passed, or the
        runtime stayed away: carry it out again later.
        """
        run = _SwapRun(
            tools=self._tools, intent=intent, made_from=material, resolution=resolution, seen=tuple(seen or ())
        )
        return await run.to_the_end(look_first=seen is None)


@dataclass(slots=True, kw_only=True)
class _SwapRun(Run[intents.Intent]):
    made_from: Material | None

    def next_steps(self) -> Sequence[steps.Step]:
        can_clone = self.made_from is not None
        return (swap.next_step(self.intent, self.seen, resolution=self.resolution, can_clone=can_clone),)

    def material(self, name: str | None) -> Material | None:  # noqa: ARG002 - there is only one container
        return self.made_from

    async def containers(self) -> tuple[ContainerView, ...]:
        target = self.intent.target
        return await self.tools.runtime.list_containers(pod_uid=target.pod.uid, name=target.name)

    def post_start_failed(self) -> bool:
        """Stop it as kubelet does, which then restarts it with its own backoff.

        Where an exit would fail the pod for good, a container with a failed hook is the lesser evil, and is reported.
        """
        return self.intent.order is intents.Order.STOP_FIRST
