"""Select the restarts that each budget counts. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from kubemend.agent.model.workloads import ContainerRef, PodUid
from kubemend.common import budgets


@dataclass(frozen=True, slots=True)
class Begun:
    """One restart that was begun, as budgets count it: once, however many containers of the pod it concerns.

    ``containers`` are their names; empty if they are unknown: then it counts for each container of the pod.
    ``at`` is the time of the restart, ``fault_at`` that of its cause (Unix seconds). ``device`` is the device at fault,
    by the name under which its health is kept. ``namespace`` is the pod's; empty for a restart of a previous agent.
    """

    pod: PodUid
    containers: frozenset[str]
    at: float
    fault_at: float
    device: str | None = None
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The restarts so far, for each of the budgets that a restart draws on; oldest first."""

    container: tuple[Begun, ...] = ()
    pod: tuple[Begun, ...] = ()
    device: tuple[Begun, ...] = ()
    namespace: tuple[Begun, ...] = ()
    node: tuple[Begun, ...] = ()

    @classmethod
    def of(cls, begun: Iterable[Begun], *, target: ContainerRef, device: str | None, now: float) -> "History":
        """Return the restarts that concern a container and the device at fault (None: no device is)."""
        node = budgets.noted_by(begun, now=now)
        pod = of_pod(node, target.pod.uid)
        return cls(
            container=of_container(pod, target.name),
            pod=pod,
            device=on_device(node, device) if device is not None else (),
            namespace=tuple(each for each in node if each.namespace == target.pod.namespace),
            node=node,
        )


def of_pod(begun: Iterable[Begun], pod: PodUid) -> tuple[Begun, ...]:
    """Return the restarts of one pod."""
    return tuple(each for each in begun if each.pod == pod)


def of_container(begun: Iterable[Begun], name: str) -> tuple[Begun, ...]:
    """Return those of one pod's restarts that concern the container of that name."""
    return tuple(each for each in begun if name in each.containers or not each.containers)


def on_device(begun: Iterable[Begun], device: str) -> tuple[Begun, ...]:
    """Return the restarts that were begun because of one device."""
    return tuple(each for each in begun if each.device == device)
