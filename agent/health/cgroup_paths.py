"""Parse a container's id, and the root of its cgroup, from a process's cgroup path. Pure."""

import re

from kubemend.agent.model.workloads import ContainerId

# cgroupfs:  /kubepods/burstable/pod<uid>/<id>       systemd: …/kubepods-pod<uid>.slice/cri-containerd-<id>.scope
# A container with its own cgroup namespace or nested cgroups appends further path segments.
# crio-conmon-<id> is of conmon, the container's parent on CRI-O, which runs outside it.
_CONTAINER = re.compile(r"(?:^|[/:-])(?<!crio-conmon-)(?P<id>[0-9a-f]{64})(?:\.scope)?(?=/|$)")

# The uid of a static pod is a hash without dashes. In systemd names the dash divides slices, so kubelet writes _ for
# it.
_POD = re.compile(
    r"kubepods.*?[/-]pod"
    r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=/|$)"
)


def container_id(cgroup_file: str) -> ContainerId | None:
    """Return the container of a process from the text of ``/proc/<pid>/cgroup``; None outside containers.

    Every line (one per hierarchy on cgroup v1) that names a container must name the same one. Lines end only at a
    newline, which the kernel does not allow in a cgroup's name; all other line ends known to Python are allowed in
    names.
    """
    found = {match["id"] for line in cgroup_file.split("\n") if (match := _CONTAINER.search(line)) is not None}
    return ContainerId(found.pop()) if len(found) == 1 else None


def container_root(path: str) -> str | None:
    """Return the part of a cgroup's path that is the container's own; None outside containers."""
    match = _CONTAINER.search(path)
    return path[: match.end()] if match is not None else None


def pod_uid(path: str) -> str | None:
    """Return the uid of a cgroup's pod from the cgroup's path; None outside pods."""
    match = _POD.search(path)
    return match["uid"].replace("_", "-") if match is not None else None
