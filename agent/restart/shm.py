"""Find the node's directory of a container's /dev/shm, and decide whether it may be emptied. Pure.

It is emptied only if it is known to be the pod's own: the node's (hostIPC, or a hostPath) and unknown ones are never
touched.
"""

import posixpath
from dataclasses import dataclass

from kubemend.agent.model.workloads import PodUid, SandboxId

INSIDE = "/dev/shm"  # noqa: S108 - the path of POSIX shared memory in a container


@dataclass(frozen=True, slots=True)
class Place:
    """A node's directory that is a pod's /dev/shm, and the pod's cgroup, which contains all its processes."""

    directory: str
    cgroup: str


@dataclass(frozen=True, slots=True)
class NotOurs:
    """Why a container's /dev/shm is not emptied."""

    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """The places that a restart empties before its first start.

    ``waits_for`` are the containers that are replaced concurrently, if there are several.
    """

    places: tuple[Place | NotOurs, ...] = ()
    waits_for: tuple[str, ...] = ()


def place(
    source: str | None, *, pod_uid: PodUid, sandbox_id: SandboxId, cgroup_parent: str, shares_node_ipc: bool
) -> Place | NotOurs:
    """Classify the mount at a container's /dev/shm: ``source`` is its host path as reported by the runtime.

    The runtimes name the pod's common one after its sandbox (containerd ``sandboxes/<id>/shm``, CRI-O
    ``overlay-containers/<id>/userdata/shm``), kubelet an emptyDir after the pod.
    """
    if source is None:
        return NotOurs("the runtime does not report its path")
    clean = posixpath.normpath(source)
    own_volume = f"/pods/{pod_uid}/volumes/kubernetes.io~empty-dir/"
    if sandbox_id in clean.split("/") or own_volume in clean:
        return Place(directory=clean, cgroup=cgroup_path(cgroup_parent))
    if shares_node_ipc:
        return NotOurs("it is the node's (hostIPC)")
    return NotOurs(f"{source} is not known to be the pod's own")


def cgroup_path(parent: str) -> str:
    """Return the path of a pod's cgroup from kubelet's name for it; a slice's name is its path (systemd.slice(5))."""
    name = posixpath.basename(parent)
    if not name.endswith(".slice"):
        return parent
    parts = name.removesuffix(".slice").split("-")
    return "/" + "/".join("-".join(parts[: count + 1]) + ".slice" for count in range(len(parts)))
