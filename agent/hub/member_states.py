"""Determine which pods of this node are gang members, and the states of their containers. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodRef, PodView
from kubemend.common import gangs
from kubemend.common.gangs import GangKey


@dataclass(frozen=True, slots=True)
class MemberContainer:
    """The newest container of a name. ``exit_code`` is None unless it has exited and its code is known."""

    name: str
    id: ContainerId
    attempt: int
    state: ContainerState
    exit_code: int | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of a gang (coordination/v1 ``Member``)."""

    pod: PodRef
    gang: GangKey
    containers: tuple[MemberContainer, ...] = ()


@dataclass(frozen=True, slots=True)
class Gone:
    """The pod is no longer a member, or no longer on this node."""

    pod: PodRef


Change = Member | Gone


@dataclass(frozen=True, slots=True)
class Known:
    """Facts that a listing lacks: exit codes, and the containers that are held for a round."""

    exit_codes: Mapping[ContainerId, int] = field(default_factory=lambda: MappingProxyType({}))
    held: Collection[ContainerId] = frozenset()


def gang_of(pod: PodView) -> GangKey | None:
    """Return the gang of a pod; None if it is in none."""
    return gangs.key(pod.ref.namespace, pod.labels)


def newest(containers: Iterable[ContainerSummary]) -> Mapping[str, ContainerSummary]:
    """Return the newest container of each name, which is also the current one for kubelet."""
    ordered = sorted(containers, key=lambda view: (view.created_at, view.attempt))
    return {view.ref.name: view for view in ordered}


def member(pod: PodView, containers: Iterable[ContainerSummary], known: Known) -> Member | None:
    """Return a pod as a member, with its ``containers`` as the runtime reports them; None if it is in no gang."""
    gang = gang_of(pod)
    if gang is None:
        return None
    views = sorted(newest(containers).values(), key=lambda view: view.ref.name)
    return Member(pod=pod.ref, gang=gang, containers=tuple(_container(view, known) for view in views))


def change(before: Member | None, after: Member | None) -> Change | None:
    """Return the change to send to a peer that knows ``before``; None if there is none."""
    if after is None:
        return Gone(before.pod) if before is not None else None
    return after if after != before else None


def _container(view: ContainerSummary, known: Known) -> MemberContainer:
    exited = view.state is ContainerState.EXITED
    code = known.exit_codes.get(view.id) if exited else None
    return MemberContainer(
        name=view.ref.name,
        id=view.id,
        attempt=view.attempt,
        # A container with an unknown exit code must not count as one that succeeded.
        state=view.state if not exited or code is not None else ContainerState.UNKNOWN,
        exit_code=code,
        held=view.id in known.held,
    )
