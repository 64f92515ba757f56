"""Which pods of this node are members of gangs, and how their containers stand. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.workloads import ContainerId, ContainerState, ContainerView, PodRef, PodView
from common import gangs
from common.gangs import GangKey


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
    """It is a member no longer, or no longer on this node."""

    pod: PodRef


Change = Member | Gone


@dataclass(frozen=True, slots=True)
class Known:
    """What a listing does not tell: exit codes, and which containers stand still for a round."""

    exit_codes: Mapping[ContainerId, int] = field(default_factory=lambda: MappingProxyType({}))
    held: Collection[ContainerId] = frozenset()


def gang_of(pod: PodView) -> GangKey | None:
    """Return the gang of a pod; None when it is in none."""
    return gangs.key(pod.ref.namespace, pod.labels)


def newest(containers: Iterable[ContainerView]) -> Mapping[str, ContainerView]:
    """Return the newest container of each name, which is the one that counts for kubelet, too."""
    ordered = sorted(containers, key=lambda view: (view.created_at, view.attempt))
    return {view.ref.name: view for view in ordered}


def member(pod: PodView, containers: Iterable[ContainerView], known: Known) -> Member | None:
    """Return a pod as a member, with its ``containers`` as the runtime shows them; None when it is in no gang."""
    gang = gang_of(pod)
    if gang is None:
        return None
    views = sorted(newest(containers).values(), key=lambda view: view.ref.name)
    return Member(pod=pod.ref, gang=gang, containers=tuple(_container(view, known) for view in views))


def change(before: Member | None, after: Member | None) -> Change | None:
    """Return what to tell to somebody who knows ``before``; None when there is nothing new."""
    if after is None:
        return Gone(before.pod) if before is not None else None
    return after if after != before else None


def _container(view: ContainerView, known: Known) -> MemberContainer:
    exited = view.state is ContainerState.EXITED
    code = known.exit_codes.get(view.id) if exited else None
    return MemberContainer(
        name=view.ref.name,
        id=view.id,
        attempt=view.attempt,
        # One that has ended in a way that cannot be told must not pass for one that has ended well.
        state=view.state if not exited or code is not None else ContainerState.UNKNOWN,
        exit_code=code,
        held=view.id in known.held,
    )
