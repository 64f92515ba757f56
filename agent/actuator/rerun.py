"""Carry out reruns (``agent.restart.rerun``): remove a pod's containers and run them again in kubelet's order."""

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import whole_pod
from kubemend.agent.actuator.plan_runner import PlanRunner
from kubemend.agent.actuator.runtime_ops import RuntimeOps, hooks_of
from kubemend.agent.actuator.strategy import Calls
from kubemend.agent.actuator.whole_pod import KubeletView, PodListing, PodRestart
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import ContainerId, ContainerRole, ContainerSpec, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, keep, rerun, reservations, reset, steps

log = structlog.get_logger(__name__)

RESERVED_AT_MOST = 60.0
"""Seconds after which the check of the result releases names although kubelet has not shown the restart."""


class RerunListing:
    """The containers of the pod, and the reservations, which are labelled as another pod's but in its sandbox.

    ``init_runs`` are the runs of each init container, by its name.
    """

    def __init__(self, runtime: ports.RestartCalls, intent: intents.PodIntent) -> None:
        self.pod = PodListing(runtime, intent)
        self.init_runs: dict[str, set[ContainerId]] = {}
        self._runtime = runtime
        self._intent = intent

    async def containers(self) -> tuple[ContainerSummary, ...]:
        of_pod, in_sandbox = await asyncio.gather(
            self.pod.containers(), self._runtime.list_containers(sandbox_id=self._intent.sandbox_id)
        )
        self._count_init_runs(of_pod)
        return (*of_pod, *(view for view in in_sandbox if reservations.reserves(view)))

    def is_first(self, seen: Iterable[ContainerSummary]) -> bool:
        return self.pod.is_first(seen)

    def current(self, seen: Iterable[ContainerSummary]) -> dict[str, ContainerId]:
        return self.pod.current(seen)

    def end_detail(self, end: steps.Step) -> str:
        return self.pod.end_detail(end)

    def _count_init_runs(self, seen: Sequence[ContainerSummary]) -> None:
        """Record the runs of init containers; a failed run must be followed by another, so it is not counted."""
        failed = {container for container, end in self.pod.exits.items() if end.code != 0}
        for planned in self._intent.plan:
            if planned.role is ContainerRole.INIT:
                made = reset.successors(self._intent, seen, planned.name)
                ran = {view.id for view in made if view.state in (ContainerState.RUNNING, ContainerState.EXITED)}
                self.init_runs[planned.name] = (self.init_runs.get(planned.name, set()) | ran) - failed


class RerunStrategy:
    """One rerun. It starts containers itself while it ``can_clone``; otherwise it leaves them to kubelet."""

    def __init__(
        self,
        ops: RuntimeOps,
        intent: intents.PodIntent,
        *,
        listing: RerunListing,
        kubelet: KubeletView,
        can_clone: bool,
    ) -> None:
        self.calls: Calls = ops
        self._ops = ops
        self._state = ops.state
        self._intent = intent
        self._listing = listing
        self._kubelet = kubelet
        self._can_clone = can_clone
        self._begun = asyncio.get_running_loop().time()

    def next_steps(self) -> Sequence[steps.Step]:
        return rerun.next_steps(
            self._intent,
            self._state.seen,
            known=self._known(),
            resolution=self._state.resolution,
            can_clone=self._can_clone,
        )

    async def examine(self) -> None:
        """List again where that matters; the runtime has returned the configs, so the successors are like the old."""
        await whole_pod.look_again(self._ops, self._intent)

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        await self._kubelet.wait(step, changes)

    async def before_removal(self, container_id: ContainerId) -> None:
        """Keep what its successor needs of a container: its resources, and files, in the reservation of its name."""
        if any(planned.old[-1:] == (container_id,) for planned in self._intent.plan):
            await self._ops.read_resources(container_id)
        name = self._ops.name_of(container_id)
        keeping = self._ops.preparation.kept.get(name)
        if keeping is None or keeping.old != container_id or keeping.is_refused:
            return
        place = reservations.outlasting(self._intent, self._state.seen, name=name)
        if place is None:
            keeping.refuse(keep.NOT_RESERVED)
        else:
            await self._ops.tools.runtime.stop_container(container_id, grace=0.0)
            await keeping.park(place.id)

    def gives_up(self) -> bool:
        """Undo the rerun if the pod is untouched; otherwise leave it to kubelet once no old container is left."""
        if not self._can_clone or self._state.resolution is steps.Resolution.UNDO:
            return True
        if reset.is_untouched(self._intent, self._state.seen):
            self._state.resolution = steps.Resolution.UNDO
        else:
            self._can_clone = False
        return False

    def notes(self) -> tuple[str, ...]:
        again = {name: len(ran) for name, ran in self._listing.init_runs.items() if len(ran) > 1}
        for name, runs in again.items():
            log.warning("restart.init_ran_again", restart=self._intent.id, container=name, runs=runs)
        return tuple(
            f"init container {name} has run {runs} times, because kubelet ran it, too" for name, runs in again.items()
        )

    def _known(self) -> reset.Known:
        shown = self._kubelet.containers()
        return reset.Known(
            exits=self._listing.pod.exits,
            started=_ids(spec for spec in shown if spec.started),
            running=_ids(spec for spec in shown if spec.running),
            noticed=self._kubelet.noticed(self._state.seen),
            taken=self._state.taken,
            afterwards=steps.StepKind.START.value not in self._state.phases,
            overdue=asyncio.get_running_loop().time() - self._begun > RESERVED_AT_MOST,
            is_stopped=whole_pod.is_stopped(self._ops, self._intent),
            keeps=frozenset(name for name, kept in self._ops.preparation.kept.items() if not kept.is_refused),
        )


def runner(restart: PodRestart) -> PlanRunner:
    """Return the runner of a rerun."""
    listing = RerunListing(restart.tools.runtime, restart.intent)
    ops = restart.ops(listing, pre_stop_hooks=hooks_of(restart.successor_specs or {}))
    strategy = RerunStrategy(
        ops,
        restart.intent,
        listing=listing,
        kubelet=KubeletView(restart.pods, restart.intent),
        can_clone=restart.successor_specs is not None,
    )
    return PlanRunner(ops, strategy)


def _ids(specs: Iterable[ContainerSpec]) -> frozenset[ContainerId]:
    return frozenset(spec.container_id for spec in specs if spec.container_id is not None)
