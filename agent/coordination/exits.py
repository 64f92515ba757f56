"""Is the end of a container a member's fault? One pure function over what is known of the pod."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.coordination import membership
from agent.model.workloads import (
    ContainerId,
    ContainerState,
    ContainerView,
    PodView,
    RuleAction,
)
from agent.restart import admission


class NoFault(enum.Enum):
    """Why the end of a container is none, though what befalls that container may be one."""

    COMPLETED = "Completed"
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


def why_no_fault(ended: Exit, *, opted_in_namespaces: frozenset[str]) -> NoFault | admission.Reason | None:
    """Return why the gang need not know; None when this is a fault of the member."""
    refused = admission.why_no_fault(ended.pod, ended.container.ref.name, opted_in_namespaces=opted_in_namespaces)
    if refused is not None:
        return refused.reason
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
