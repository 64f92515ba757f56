"""Select the containers of a pod that a gang's round concerns. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kubemend.agent.model.workloads import ContainerRole, ContainerState, ContainerSummary, PodView, RestartPolicy
from kubemend.common import targets as common_targets


@dataclass(frozen=True, slots=True)
class Selection:
    """``restarted`` must be restarted; the decision examines the first one most closely.

    ``held`` are the names of which nothing new may run: the same, and those that have not begun yet. ``completed`` have
    ended successfully. If all have, nothing must be done.
    """

    restarted: tuple[str, ...]
    held: frozenset[str]
    completed: frozenset[str]


def newest(seen: Iterable[ContainerSummary]) -> Mapping[str, ContainerSummary]:
    """Return the newest container of each name."""
    return {view.ref.name: view for view in sorted(seen, key=lambda view: view.generation)}


def targets(pod: PodView, *, named: Collection[str]) -> frozenset[str]:
    """Return the containers that restarts of a pod are for: the ``named`` ones, else by ``common.targets``."""
    return common_targets.of(
        (
            common_targets.Candidate(spec.name, spec.role is ContainerRole.MAIN, spec.holds_devices)
            for spec in pod.containers
        ),
        named=named,
    )


def select(
    pod: PodView, *, named: frozenset[str], seen: Mapping[str, ContainerSummary], exit_codes: Mapping[str, int]
) -> Selection:
    """Return the selection of a round: the ``named`` containers, or the pod's ``targets`` if none is named.

    ``seen`` has the newest container of each name, ``exit_codes`` those of ended ones. One that exited with 0 and will
    not run again (OnFailure, Never) has completed; under Never any other end is final, too, which the decision on the
    restart finds: such a one comes first.
    """
    meant = targets(pod, named=named)
    wanted = [spec.name for spec in pod.containers if spec.name in meant]
    wanted += sorted(meant - set(wanted))  # admission reports that there is no such container
    completed = frozenset(name for name in wanted if _completed(pod, name, exit_codes=exit_codes))
    left = [name for name in wanted if name not in completed]
    begun = [name for name in left if name in seen or pod.container(name) is None]
    begun.sort(key=lambda name: (not _has_ended(seen.get(name)), pod.policy_of(name) is not RestartPolicy.NEVER))
    return Selection(restarted=tuple(begun), held=frozenset(left), completed=completed)


def has_ended_for_good(pod: PodView, name: str, *, exit_code: int) -> bool:
    """Return whether a container that has exited will not run again, by its restartPolicy."""
    policy = pod.policy_of(name)
    return policy is RestartPolicy.NEVER or (policy is RestartPolicy.ON_FAILURE and exit_code == 0)


def _has_ended(view: ContainerSummary | None) -> bool:
    return view is not None and view.state is ContainerState.EXITED


def _completed(pod: PodView, name: str, *, exit_codes: Mapping[str, int]) -> bool:
    return pod.policy_of(name) is not RestartPolicy.ALWAYS and exit_codes.get(name) == 0
