"""Carry out the strategies that restart a whole pod."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kubemend.agent import ports
from kubemend.agent.actuator import progress, rerun, reset, rules
from kubemend.agent.actuator.context import NO_PREPARATION, ActuatorContext, StartPreparation
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.plan_runner import PlanRunner
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.actuator.whole_pod import PodListing, PodRestart
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.restart import intents, steps
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.successor_spec import PreStopHook, SuccessorSpec

_NO_HOOKS: Final[Mapping[str, PreStopHook]] = MappingProxyType({})

RUNNERS: Final[Mapping[Strategy, Callable[[PodRestart], PlanRunner]]] = MappingProxyType(
    {Strategy.RERUN: rerun.runner, Strategy.RESET: reset.runner, Strategy.RULES: rules.runner}
)
"""Builds the runner of each strategy that restarts a whole pod (``agent.restart.strategies.Spec.whole_pod``)."""


class PodActuator:
    """Restart whole pods."""

    def __init__(self, tools: ActuatorContext, *, pods: ports.Pods) -> None:
        self._tools = tools
        self._pods = pods

    async def carry_out(
        self,
        intent: intents.PodIntent,
        *,
        successor_specs: Mapping[str, SuccessorSpec] | None = None,
        pre_stop_hooks: Mapping[str, PreStopHook] = _NO_HOOKS,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NO_FOLLOWER,
        preparation: StartPreparation = NO_PREPARATION,
        holding: HoldSet | None = None,
    ) -> Outcome:
        """Carry out the intent by its strategy; ``successor_specs`` and ``pre_stop_hooks`` are by container name.

        Without ``successor_specs`` (a replay) kubelet starts the missing containers. ``LEFT_TO_KUBELET``: no old
        container is left, and kubelet does the rest. See ``SwapActuator``.
        """
        restart = PodRestart(
            tools=self._tools,
            pods=self._pods,
            intent=intent,
            successor_specs=successor_specs,
            pre_stop_hooks=pre_stop_hooks,
            resolution=resolution,
            followed=followed,
            preparation=preparation,
            holding=holding,
        )
        return await RUNNERS[intent.strategy](restart).run_to_end()

    async def released(
        self, intent: intents.PodIntent, *, successor_specs: Mapping[str, SuccessorSpec] | None, holding: HoldSet
    ) -> None:
        """Do the work that was postponed while the main containers were held.

        Kubelet does this work for the containers that it starts.
        """
        listing = PodListing(self._tools.runtime, intent)
        ops = RuntimeOps(
            tools=self._tools, intent=intent, listing=listing, specs=successor_specs or {}, holding=holding
        )
        await ops.released()
