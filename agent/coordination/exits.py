"""Is the end of a container a member's fault? One pure function over what is known of the pod."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.coordination import membership
from agent.model.workloads import (
    ContainerId,
    ContainerRole,
    ContainerState,
    ContainerView,
    PodView,
    RuleAction,
)
from agent.restart import options


class NoFault(enum.Enum):
    """Why the end of a container is none."""

    COMPLETED = "Completed"
    NOT_MAIN = "NotMain"
    POD_DELETING = "PodDeleting"
    NOT_OPTED_IN = "NotOptedIn"
    NOT_SELECTED = "NotSelected"
    OURS = "Ours"
    KUBELETS = "Kubelets"


@dataclass(frozen=True, slots=True)
class Exit:
    """A container that has ended, among the pod's ``containers`` and what is known of how they ended.

    ``ours``: a restart or a round of this agent has ended it.
    """

    pod: PodView
    container: ContainerView
    exit_code: int
    containers: tuple[ContainerView, ...]
    exit_codes: Mapping[ContainerId, int]
    ours: bool = False


def may_tell(pod: PodView, *, opted_in_namespaces: frozenset[str]) -> bool:
    """Whether the gang may be restarted because of this pod: it has opted in, and its annotations make sense."""
    try:
        wishes = options.parse(pod.annotations)
    except options.BadAnnotationError:
        return False
    return wishes.opted_in or pod.ref.namespace in opted_in_namespaces


def why_not_watched(pod: PodView, name: str, *, opted_in_namespaces: frozenset[str]) -> NoFault | None:
    """Return why nothing that befalls a container of a pod is a member's fault; None when it is one."""
    spec = pod.container(name)
    if spec is None or spec.role is not ContainerRole.MAIN:
        return NoFault.NOT_MAIN
    if pod.deleting:
        return NoFault.POD_DELETING
    if not may_tell(pod, opted_in_namespaces=opted_in_namespaces):
        return NoFault.NOT_OPTED_IN
    if (selected := options.parse(pod.annotations).containers) and name not in selected:
        return NoFault.NOT_SELECTED
    return None


def why_no_fault(ended: Exit, *, opted_in_namespaces: frozenset[str]) -> NoFault | None:
    """Return why the gang need not know; None when this is a fault of the member."""
    name = ended.container.ref.name
    if (why := why_not_watched(ended.pod, name, opted_in_namespaces=opted_in_namespaces)) is not None:
        return why
    if ended.exit_code == 0:
        return NoFault.COMPLETED
    if ended.ours or _replaced_by_us(ended):
        return NoFault.OURS
    if _killed_with_its_pod(ended):
        return NoFault.KUBELETS
    return None


def _replaced_by_us(ended: Exit) -> bool:
    """Whether what runs in its place is of our making: the news of the end came late, by a listing."""
    successor = membership.newest(ended.containers).get(ended.container.ref.name)
    return successor is not None and successor.id != ended.container.id and successor.restart_id is not None


def _killed_with_its_pod(ended: Exit) -> bool:
    """Whether kubelet has ended it because another container's exit restarts the whole pod (KEP-5532).

    That other one's exit is the fault.
    """
    return any(
        (rule := spec.rule_for(code)) is not None and rule.action is RuleAction.RESTART_ALL
        for name, code in _ended_others(ended)
        if (spec := ended.pod.container(name)) is not None
    )


def _ended_others(ended: Exit) -> Iterable[tuple[str, int]]:
    for name, view in membership.newest(ended.containers).items():
        code = ended.exit_codes.get(view.id)
        if name != ended.container.ref.name and view.state is ContainerState.EXITED and code is not None:
            yield name, code
