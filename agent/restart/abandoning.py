"""Return the remaining steps of a restart whose pod is terminating. Pure, and the same for every strategy.

Nothing is started any more: kubelet ends the containers that it saw when it began, and would leave later ones alone.
Nothing is ended early either: running containers have a grace period, which kubelet controls.
"""

from collections.abc import Collection, Iterable

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart.steps import LIVE, Step, StepKind, StepReason


def next_steps(
    restart_id: str, seen: Iterable[ContainerSummary], *, waiting: Collection[ContainerId] = ()
) -> tuple[Step, ...]:
    """Return the next steps, which may be taken concurrently: remove this restart's unstarted containers, then be done.

    ``waiting`` are containers that have been started, but are held before their first instruction.
    """
    removals = tuple(
        Step(StepKind.REMOVE, StepReason.POD_ENDS, view.id, view.ref.name)
        for view in seen
        if view.restart_id == restart_id
        and view.state in LIVE
        and (view.state is not ContainerState.RUNNING or view.id in waiting)
    )
    return removals or (Step(StepKind.DONE, StepReason.POD_ENDS),)
