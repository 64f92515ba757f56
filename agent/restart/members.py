"""Which containers of a pod a gang's round is about. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from agent.model.workloads import ContainerRole, ContainerState, ContainerView, PodView, RestartPolicy
from common import targets as common_targets


@dataclass(frozen=True, slots=True)
class Selection:
    """``restarted`` are to be restarted: the first has been looked at most closely when the restart is decided on.

    ``held`` are those that nothing new of may run: the same, and those that have not begun yet. ``completed`` have
    ended well. Nothing is to be done where all have.
    """

    restarted: tuple[str, ...]
    held: frozenset[str]
    completed: frozenset[str]


def newest(seen: Iterable[ContainerView]) -> Mapping[str, ContainerView]:
    """Return the newest container of each name, as kubelet counts (``targets.find``)."""
    return {view.ref.name: view for view in sorted(seen, key=lambda view: (view.created_at, view.attempt))}


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
    pod: PodView, *, named: frozenset[str], seen: Mapping[str, ContainerView], exit_codes: Mapping[str, int]
) -> Selection:
    """Return what a round is about: the ``named`` containers, or the pod's ``targets`` where none is.

    ``seen`` has the newest container of each name, ``exit_codes`` those of the ones that have ended. One that exited
    with 0 and is not to run again (OnFailure, Never) has completed; under Never any other end is final, too, and is
    found out when the restart is decided on: such a one comes first.
    """
    meant = targets(pod, named=named)
    wanted = [spec.name for spec in pod.containers if spec.name in meant]
    wanted += sorted(meant - set(wanted))  # admission says that there is no such container
    completed = frozenset(name for name in wanted if _completed(pod, name, seen=seen, exit_codes=exit_codes))
    left = [name for name in wanted if name not in completed]
    begun = [name for name in left if name in seen or pod.container(name) is None]
    begun.sort(key=lambda name: (not _has_ended(seen.get(name)), pod.policy_of(name) is not RestartPolicy.NEVER))
    return Selection(restarted=tuple(begun), held=frozenset(left), completed=completed)


def has_ended_for_good(pod: PodView, name: str, *, exit_code: int) -> bool:
    """Whether a container that has exited is not to run again, by its restartPolicy."""
    policy = pod.policy_of(name)
    return policy is RestartPolicy.NEVER or (policy is RestartPolicy.ON_FAILURE and exit_code == 0)


def _has_ended(view: ContainerView | None) -> bool:
    return view is not None and view.state is ContainerState.EXITED


def _completed(pod: PodView, name: str, *, seen: Mapping[str, ContainerView], exit_codes: Mapping[str, int]) -> bool:
    final = pod.policy_of(name) is not RestartPolicy.ALWAYS
    return final and _has_ended(seen.get(name)) and exit_codes.get(name) == 0
