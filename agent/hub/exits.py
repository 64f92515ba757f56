"""Decide whether a container's exit is a fault of the gang member, in one pure function over facts of the pod."""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodView, RuleAction
from kubemend.agent.restart import admission, members
from kubemend.agent.restart import exits as restart_exits
from kubemend.agent.restart.reasons import Reason

MISSED_WITHIN: Final = 600.0
"""Seconds after which an exit that no agent observed is not reported any more."""
ALIVE: Final = (ContainerState.RUNNING, ContainerState.CREATED)


class NoFault(enum.Enum):
    """Reasons why an exit is no fault of the member, although other exits of that container may be."""

    COMPLETED = "Completed"
    OURS = "Ours"
    KUBELETS = "Kubelets"


@dataclass(frozen=True, slots=True)
class Exit:
    """A container that has ended, among the pod's ``containers``, with the known exit codes (None: unknown).

    ``ours``: a restart or a round of this agent has ended it.
    """

    pod: PodView
    container: ContainerSummary
    exit_code: int
    containers: tuple[ContainerSummary, ...]
    exit_codes: Mapping[ContainerId, int | None]
    ours: bool = False


def no_fault_reason(ended: Exit, *, opted_in_namespaces: frozenset[str]) -> NoFault | Reason | None:
    """Return why the gang need not know; None if the exit is a fault of the member."""
    refused = admission.no_fault_reason(ended.pod, ended.container.ref.name, opted_in_namespaces=opted_in_namespaces)
    if refused is not None:
        return refused.reason
    if ended.exit_code == 0:
        return NoFault.COMPLETED
    if ended.ours or _replaced_by_us(ended):
        return NoFault.OURS
    if _killed_with_its_pod(ended):
        return NoFault.KUBELETS
    return None


def replaced_by_kubelet(containers: Iterable[ContainerSummary]) -> Iterator[ContainerSummary]:
    """Yield the ended containers of a pod in whose place kubelet has started another one, the latest of each name."""
    views = [*containers]
    newest = members.newest(views)
    earlier = members.newest(view for view in views if view.id != newest[view.ref.name].id)
    for name, before in earlier.items():
        after = newest[name]
        if before.state is ContainerState.EXITED and after.state in ALIVE and after.restart_id is None:
            yield before


def is_missed_failure(how: restart_exits.Exit, *, seconds_ago: float) -> bool:
    """Return whether an exit that no agent observed, and after which kubelet restarted the container, is a failure.

    A rank that kubelet restarts alone leaves its gang waiting. But a container that was stopped by a signal may have
    been stopped for a reason that is not known any more, such as a failed liveness probe. An exit in the future is from
    before the clock was set back: it may be of any age.
    """
    return not how.looks_like_a_stop and abs(seconds_ago) <= MISSED_WITHIN


def _replaced_by_us(ended: Exit) -> bool:
    """Return whether its successor was created by kubemend: the exit was reported late, by a listing."""
    successor = members.newest(ended.containers).get(ended.container.ref.name)
    return successor is not None and successor.id != ended.container.id and successor.restart_id is not None


def _killed_with_its_pod(ended: Exit) -> bool:
    """Return whether kubelet ended it because another container's exit restarts the whole pod (KEP-5532).

    The other container's exit is the fault.
    """
    return any(
        (rule := spec.rule_for(code)) is not None and rule.action is RuleAction.RESTART_ALL
        for name, code in _ended_others(ended)
        if (spec := ended.pod.container(name)) is not None
    )


def _ended_others(ended: Exit) -> Iterable[tuple[str, int]]:
    for name, view in members.newest(ended.containers).items():
        code = ended.exit_codes.get(view.id)
        if name != ended.container.ref.name and view.state is ContainerState.EXITED and code is not None:
            yield name, code
