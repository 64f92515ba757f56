"""Apply the pod's own rules: kill one container, and kubelet restarts all of them. Pure.

KEP-5532: a container may declare ``RestartAllContainers`` for exit codes; SIGKILL makes it exit with 137. Kubelet (1.35
with the gate, 1.36 by default) then stops, removes and starts every container of the pod.
"""

from collections.abc import Iterable

from kubemend.agent.model.workloads import (
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodView,
    RestartPolicy,
    RuleAction,
)
from kubemend.agent.restart import intents, reset
from kubemend.agent.restart.steps import Resolution, Step, StepKind, StepReason

KILLED = 137
"""The exit code of a container that SIGKILL has ended."""


def declares_restart_all(container: ContainerSpec) -> bool:
    """Return whether kubelet restarts the whole pod when this container is killed."""
    rule = container.rule_for(KILLED)
    return rule is not None and rule.action is RuleAction.RESTART_ALL


def trigger(pod: PodView, *, preferred: str) -> ContainerSpec | None:
    """Return the container to kill: the preferred one, else any other that declares the rule and runs."""
    candidates = [
        container
        for container in pod.containers
        if container.role is not ContainerRole.INIT and container.running and declares_restart_all(container)
    ]
    return next((container for container in candidates if container.name == preferred), next(iter(candidates), None))


def has_ended_trigger(pod: PodView) -> bool:
    """Return whether kubelet restarts a container that could be killed if it ran."""
    return any(
        container.role is not ContainerRole.INIT
        and not container.running
        and declares_restart_all(container)
        and pod.policy_of(container.name) is not RestartPolicy.NEVER
        for container in pod.containers
    )


def next_steps(
    intent: intents.PodIntent,
    seen: Iterable[ContainerSummary],
    *,
    resolution: Resolution = Resolution.FINISH,
    trigger_exit: int | None = None,
) -> tuple[Step, ...]:
    """Return the one next step: kill the trigger if it still runs; the rest is kubelet's.

    ``trigger_exit`` is the trigger's exit code, None if it is unknown. One that has ended by itself with another code
    than that of a kill has triggered nothing, as far as the rule is known here; kubelet may have replaced the target.
    Kubelet restarts it alone, so that the target may run on with its fault: that must be decided again.
    """
    seen = tuple(seen)
    found = next((view for view in seen if view.id == intent.trigger), None)
    if found is None or found.state is not ContainerState.RUNNING:
        if found is not None and trigger_exit not in (None, KILLED):
            end = Step(StepKind.DONE, StepReason.TRIGGER_ENDED, found.id, found.ref.name)
            return (reset.replaced(intent, seen) or end,)
        return (Step(StepKind.DONE, StepReason.TRIGGERED),)
    if resolution is Resolution.UNDO:
        return (Step(StepKind.DONE, StepReason.UNDONE),)
    return (reset.replaced(intent, seen) or Step(StepKind.STOP, StepReason.OLD_RUNS, intent.trigger),)
