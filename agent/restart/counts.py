"""What budgets count, whose it is, and how they say that they are closed. Pure."""

import datetime as dt
import math
from collections.abc import Iterable
from dataclasses import dataclass

from agent.model.workloads import ContainerRef, PodUid

CLOCK_SLACK = 60.0
"""Seconds by which a noted time may lie in the future and still count: clocks are nudged all the time."""


@dataclass(frozen=True, slots=True)
class Begun:
    """One restart that was begun, as budgets count it: once, however many containers of the pod it concerns.

    ``at`` is when, ``fault_at`` when that happened for which it was begun (Unix seconds). ``device`` is the one at
    fault, by the name under which its health is kept.
    """

    pod: PodUid
    containers: frozenset[str]
    at: float
    fault_at: float
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """A budget that allows nothing until a Unix time (infinite: never), and for people why."""

    until: float
    why: str


@dataclass(frozen=True, slots=True)
class History:
    """What was begun so far, for each of the budgets that a restart draws on; oldest first."""

    container: tuple[Begun, ...] = ()
    pod: tuple[Begun, ...] = ()
    device: tuple[Begun, ...] = ()
    node: tuple[Begun, ...] = ()

    @classmethod
    def of(cls, begun: Iterable[Begun], *, target: ContainerRef, device: str | None, now: float) -> "History":
        """Return what concerns a container and the device at fault (None: no device is)."""
        node = noted_by(begun, now=now)
        pod = of_pod(node, target.pod.uid)
        return cls(
            container=of_container(pod, target.name),
            pod=pod,
            device=on_device(node, device) if device is not None else (),
            node=node,
        )


def noted_by(begun: Iterable[Begun], *, now: float) -> tuple[Begun, ...]:
    """Return the restarts in their order, without those that were noted by a clock that has been set back since."""
    return tuple(sorted((each for each in begun if each.at <= now + CLOCK_SLACK), key=lambda each: each.at))


def of_pod(begun: Iterable[Begun], pod: PodUid) -> tuple[Begun, ...]:
    """Return the restarts of one pod."""
    return tuple(each for each in begun if each.pod == pod)


def of_container(begun: Iterable[Begun], name: str) -> tuple[Begun, ...]:
    """Return those of one pod's restarts that concern the container of that name."""
    return tuple(each for each in begun if name in each.containers)


def on_device(begun: Iterable[Begun], device: str) -> tuple[Begun, ...]:
    """Return the restarts that were begun because of one device."""
    return tuple(each for each in begun if each.device == device)


def clock(moment: float) -> str:
    """Return a Unix time as Kubernetes writes times, rounded up to the second."""
    return dt.datetime.fromtimestamp(math.ceil(moment), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(seconds: float) -> str:
    """Return a time span for people."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
