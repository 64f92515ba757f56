"""Carry out reruns (``agent.restart.rerun``)."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from kubemend.agent.actuator.outcomes import Outcome, Result
from kubemend.agent.actuator.whole_pod import KubeletAwarePlanRunner, PodPlanRunner
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.model.workloads import ContainerId, ContainerRole, ContainerSpec, ContainerState, ContainerSummary
from kubemend.agent.restart import keep, rerun, reservations, reset, steps

log = structlog.get_logger(__name__)

RESERVED_AT_MOST = 60.0
"""Seconds after which names are released although kubelet has not shown the restart."""


@dataclass(slots=True, kw_only=True)
class RerunRunner(KubeletAwarePlanRunner):
    """Remove a pod's containers and run them again in kubelet's order.

    ``can_clone``: it still starts containers itself.
    """

    can_clone: bool = field(init=False)
    taken: frozenset[reservations.Name] = frozenset()
    init_runs: dict[str, set[ContainerId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.can_clone = self.materials is not None

    def next_steps(self) -> Sequence[steps.Step]:
        return rerun.next_steps(
            self.intent, self.seen, known=self._known(), resolution=self.resolution, can_clone=self.can_clone
        )

    async def containers(self) -> tuple[ContainerSummary, ...]:
        """Return the pod's containers and the reservations, which are labelled as another pod's but in its sandbox."""
        of_pod, in_sandbox = await asyncio.gather(
            PodPlanRunner.containers(self), self.tools.runtime.list_containers(sandbox_id=self.intent.sandbox_id)
        )
        self._count_init_runs(of_pod)
        return (*of_pod, *(view for view in in_sandbox if reservations.reserves(view)))

    def outcome(self, result: Result, *, detail: str = "") -> Outcome:
        again = {name: len(ran) for name, ran in self.init_runs.items() if len(ran) > 1}
        for name, runs in again.items():
            log.warning("restart.init_ran_again", restart=self.intent.id, container=name, runs=runs)
        notes = tuple(
            f"init container {name} has run {runs} times, because kubelet ran it, too" for name, runs in again.items()
        )
        outcome = PodPlanRunner.outcome(self, result, detail=detail)
        return replace(outcome, notes=(*outcome.notes, *notes))

    async def reserve(self, step: steps.Step) -> None:
        material = self.material(step.name)
        assert material is not None
        assert step.name is not None
        assert step.attempt is not None
        config = reservations.config(material.successor.config, attempt=step.attempt)
        try:
            await self.make(config, sandbox_config=material.sandbox_config)
        except cri_errors.NameReserved as error:
            log.warning("restart.not_reserved", restart=self.intent.id, container=step.name, error=str(error))
            self.taken |= {(step.name, step.attempt)}  # kubelet cannot take it either

    async def remove(self, container_id: ContainerId) -> None:
        """Remove a container; before, move what its successor keeps of it into the reservation of its name."""
        keeping = self.preparation.kept.get(self.name_of(container_id))
        if keeping is not None and keeping.old == container_id and not keeping.is_refused:
            place = reservations.outlasting(self.intent, self.seen, name=self.name_of(container_id))
            if place is None:
                keeping.refuse(keep.NOT_RESERVED)
            else:
                await self.tools.runtime.stop_container(container_id, grace=0.0)
                await keeping.park(place.id)
        await PodPlanRunner.remove(self, container_id)

    def gives_up(self) -> bool:
        """Undo the rerun if the pod is untouched; otherwise leave it to kubelet once no old container is left."""
        if not self.can_clone or self.resolution is steps.Resolution.UNDO:
            return True
        if reset.is_untouched(self.intent, self.seen):
            self.resolution = steps.Resolution.UNDO
        else:
            self.can_clone = False
        self.failures = 0
        return False

    def _count_init_runs(self, seen: Sequence[ContainerSummary]) -> None:
        """Record the runs of init containers; a failed run must be followed by another, so it is not counted."""
        failed = {container for container, end in self.exits.items() if end.code != 0}
        for planned in self.intent.plan:
            if planned.role is ContainerRole.INIT:
                made = reset.successors(self.intent, seen, planned.name)
                ran = {view.id for view in made if view.state in (ContainerState.RUNNING, ContainerState.EXITED)}
                self.init_runs[planned.name] = (self.init_runs.get(planned.name, set()) | ran) - failed

    def _known(self) -> reset.Known:
        shown = self.kubelet_status()
        return reset.Known(
            exits=self.exits,
            started=_ids(spec for spec in shown if spec.started),
            running=_ids(spec for spec in shown if spec.running),
            noticed=self.noticed(),
            taken=self.taken,
            afterwards=steps.StepKind.START.value not in self.phases,
            overdue=time.time() - self.intent.created_at > RESERVED_AT_MOST,
            keeps=frozenset(name for name, keeping in self.preparation.kept.items() if not keeping.is_refused),
        )


def _ids(specs: Iterable[ContainerSpec]) -> frozenset[ContainerId]:
    return frozenset(spec.container_id for spec in specs if spec.container_id is not None)
