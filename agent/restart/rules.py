"""Apply the pod's own rules: kill one container, and kubelet restarts all of them. Pure.

KEP-5532: a container may declare ``RestartAllContainers`` for exit codes; SIGKILL makes it exit with 137. Kubelet (1.35
with the gate, 1.36 by default) then stops, removes and starts every container of the pod.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kubemend.agent.model.workloads import (
    ContainerId,
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
        and not _has_ended_for_good(pod, container)
        for container in pod.containers
    )


def _has_ended_for_good(pod: PodView, container: ContainerSpec) -> bool:
    policy = pod.policy_of(container.name)
    succeeded = container.succeeded and container.rule_for(0) is None
    return policy is RestartPolicy.NEVER or (policy is RestartPolicy.ON_FAILURE and succeeded)


def next_steps(
    intent: intents.PodIntent,
    seen: Iterable[ContainerSummary],
    *,
    resolution: Resolution = Resolution.FINISH,
    exits: Mapping[ContainerId, reset.Exit] = MappingProxyType({}),
) -> tuple[Step, ...]:
    """Return the one next step: kill the trigger if it still runs; the rest is kubelet's.

    ``exits`` are those of the trigger and the target, as far as they are known. A trigger that has ended by itself with
    another code than that of a kill has triggered nothing, as far as the rule is known here; kubelet may have replaced
    the target. Kubelet restarts it alone, so that the target may run on with its fault: that must be decided again.
    """
    seen, known = tuple(seen), reset.Known(exits=exits)
    found = next((view for view in seen if view.id == intent.trigger), None)
    if found is None or found.state is not ContainerState.RUNNING:
        if found is not None and found.id in exits and exits[found.id].code != KILLED:
            end = Step(StepKind.DONE, StepReason.TRIGGER_ENDED, found.id, found.ref.name)
            return (reset.replaced(intent, seen) or end,)
        return (Step(StepKind.DONE, StepReason.TRIGGERED),)
    if resolution is Resolution.UNDO:
        return (Step(StepKind.DONE, StepReason.UNDONE),)
    over = reset.completed(intent, seen, known=known) or reset.replaced(intent, seen)
    return (over or Step(StepKind.STOP, StepReason.OLD_RUNS, intent.trigger),)
