"""Decide whether a container's compile cache is emptied before its successor runs, and find it on the node. Pure.

A restart keeps the cache (component ``caches``). A file in it that breaks the program would therefore break every
successor as well: after two short lives in a row the next container starts with an empty cache.
"""

import enum
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import options
from kubemend.agent.restart.counts import Begun, of_container
from kubemend.common import cache_volume

EARLY_FAILURES = 2
"""Short lives in a row after which the cache is emptied: before the backoff begins (``Budget.free``)."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A pod's cache volume on the node. ``pods`` is kubelet's directory of all pods, ``path`` leads on from there."""

    pods: str
    path: str


@dataclass(frozen=True, slots=True)
class Place:
    """One container's part of the cache: the directory ``container`` in the volume."""

    volume: Volume
    container: str


@dataclass(frozen=True, slots=True)
class NotOurs:
    """Why a container has no cache that may be emptied."""

    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """The cache that a restart empties before its container's start; ``early_failures`` have led to it."""

    place: Place
    early_failures: int


def place(source: str | None, *, container: ContainerRef) -> Place | NotOurs:
    """Classify the mount at ``cache_volume.PATH``: ``source`` is its host path as reported by the runtime.

    Only the pod's own emptyDir named ``cache_volume.NAME`` qualifies, as a whole, at kubelet's path for it.
    """
    if source is None:
        return NotOurs(f"nothing is mounted at {cache_volume.PATH}")
    parts = ("pods", container.pod.uid, "volumes", "kubernetes.io~empty-dir", cache_volume.NAME)
    tail = "/" + "/".join(parts)
    is_clean = source.startswith("/") and posixpath.normpath(source) == source
    if not (is_clean and source.endswith(tail) and container.pod.uid):
        return NotOurs(f"{source} is not the pod's emptyDir {cache_volume.NAME}")
    pods = f"{source.removesuffix(tail)}/{parts[0]}"
    return Place(Volume(pods, posixpath.join(*parts[1:])), container=container.name)


class Reason(enum.Enum):
    """Why a cache is emptied (``EARLY_FAILURES``), or kept."""

    EARLY_FAILURES = "EarlyFailures"
    FEW_EARLY_FAILURES = "FewEarlyFailures"
    REQUESTED = "Requested"
    NOT_THE_CAUSE = "NotTheCause"
    OPTED_OUT = "OptedOut"
    NO_CACHE = "NoCache"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to empty a container's cache. ``early_failures`` is how many in a row have led to the restart."""

    reason: Reason
    early_failures: int = 0

    @property
    def empties(self) -> bool:
        """Return whether the cache is emptied."""
        return self.reason is Reason.EARLY_FAILURES


@dataclass(frozen=True, slots=True)
class Crashes:
    """What led to a restart. ``of_pod`` are the pod's earlier restarts, oldest first.

    ``died_at`` (Unix seconds) is the time of the fault, ``died`` the container that it hit; None: any of those that are
    restarted, because a gang's round does not know. ``requested``: a person asked for the restart.
    """

    of_pod: Sequence[Begun] = ()
    died_at: float = 0.0
    died: str | None = None
    requested: bool = False


def decide(crashes: Crashes, *, container: str, found: Place | NotOurs, pod_options: options.Options) -> Decision:
    """Decide about one of the containers that are restarted.

    An early failure counts for the backoff: it hits a container less than ``Budget.healthy_after`` seconds after its
    restart by kubemend. A person's request is no failure.
    """
    if isinstance(found, NotOurs):
        return Decision(Reason.NO_CACHE)
    if pod_options.keep_cache:
        return Decision(Reason.OPTED_OUT)
    if crashes.requested:
        return Decision(Reason.REQUESTED)
    if crashes.died not in (None, container):
        return Decision(Reason.NOT_THE_CAUSE)
    past = of_container(crashes.of_pod, container)
    streak = len(pod_options.budget().backoff.streak(past, died_at=crashes.died_at))
    return Decision(Reason.EARLY_FAILURES if streak >= EARLY_FAILURES else Reason.FEW_EARLY_FAILURES, streak)
