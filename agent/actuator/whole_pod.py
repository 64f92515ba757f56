"""What carrying out a rerun, a reset and the rules have in common: they look at a whole pod."""

from dataclasses import dataclass, field

from agent.actuator.outcomes import Outcome
from agent.actuator.steps import Run
from agent.actuator.tools import Material
from agent.cri import errors as cri_errors
from agent.model.workloads import ContainerId, ContainerRole, ContainerState, ContainerView
from agent.restart import intents, reset, steps


@dataclass(slots=True, kw_only=True)
class PodRun(Run[intents.PodIntent]):
    """The restart of a pod. ``materials`` are by container name; none on a replay."""

    materials: dict[str, Material] = field(default_factory=dict)
    exits: dict[ContainerId, reset.Exit] = field(default_factory=dict)

    def material(self, name: str | None) -> Material | None:
        return self.materials.get(name) if name is not None else None

    async def containers(self) -> tuple[ContainerView, ...]:
        seen = await self.tools.runtime.list_containers(pod_uid=self.intent.target.pod.uid)
        await self._ask_exits(seen)
        return seen

    @property
    def is_first(self) -> bool:
        news = (view for view in self.seen if view.ref.name in self.intent.names and view.id not in self.intent.old)
        return all(view.state is ContainerState.CREATED for view in news)

    def survivors(self) -> dict[str, ContainerId]:
        found = {planned.name: reset.successors(self.intent, self.seen, planned.name) for planned in self.intent.plan}
        return {name: views[-1].id for name, views in found.items() if views}

    def ended(self, step: steps.Step) -> Outcome:
        outcome = Run.ended(self, step)  # a dataclass with slots is another class than super() knows
        if step.name is None or self.last_error:
            return outcome
        end = self.exits.get(step.container) if step.container is not None else None
        said = f"{step.name} ended with exit code {end.code if end is not None else 'unknown'}"
        return self.outcome(outcome.result, detail=f"{said}; kubelet does the rest")

    async def _ask_exits(self, seen: tuple[ContainerView, ...]) -> None:
        """An init container that has ended says by its exit code whether the next one's turn has come."""
        for planned in self.intent.plan:
            if planned.role is ContainerRole.MAIN:
                continue
            for view in reset.successors(self.intent, seen, planned.name):
                if view.state in steps.LIVE or view.id in self.exits:
                    continue
                try:
                    info = await self.tools.runtime.container_info(view.id)
                except cri_errors.NotFound:
                    continue  # gone since the listing
                self.exits[view.id] = reset.Exit(info.exit_code, info.finished_at)
