"""Name the host files that kubelet keeps for a container. Pure."""

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from kubemend.agent.model.workloads import ContainerId, ContainerRef

_MAX_FILE_NAME = 255  # ext4; pkg/kubelet/kuberuntime/legacy.go cuts the name, never the suffix
_SUFFIX = ".log"
_NAME_DIGITS = 16  # kubelet's own names have 8, so they never collide


@dataclass(frozen=True, slots=True)
class TerminationLog:
    """The successor's own termination-message file.

    ``directory`` is kubelet's for the container: ``…/pods/<uid>/containers/<container>``.
    """

    directory: PurePosixPath
    name: str

    @property
    def path(self) -> str:
        """Return the file's path on the host."""
        return str(self.directory / self.name)


def termination_log(old: str, *, container: ContainerRef, restart: str) -> TerminationLog | None:
    """Return the file to create in place of the old container's; None if that is not kubelet's own.

    Kubelet creates a new file per attempt, so that it can still read the dead container's message
    (pkg/kubelet/kuberuntime/kuberuntime_container.go ``makeMounts``: ``PodContainerDir`` and a random name); the pod
    names where it is mounted, and may have a volume there. One ``restart`` creates one file, however often it is tried.
    """
    path = PurePosixPath(old)
    if not path.is_absolute() or ".." in path.parts:
        return None
    if path.parts[-5:-1] != ("pods", container.pod.uid, "containers", container.name):
        return None
    made = hashlib.sha256(f"{restart}/{container.name}".encode()).hexdigest()[:_NAME_DIGITS]
    return TerminationLog(directory=path.parent, name=made)


def log_symlink_name(container: ContainerRef, container_id: ContainerId) -> str:
    """Return the name under /var/log/containers by which log shippers find a container's log.

    Source: pkg/kubelet/kuberuntime/legacy.go ``logSymlink``.
    """
    name = f"{container.pod.name}_{container.pod.namespace}_{container.name}-{container_id}"
    return name[: _MAX_FILE_NAME - len(_SUFFIX)] + _SUFFIX


def log_file(log_directory: str, log_path: str) -> PurePosixPath:
    """Return the container's log file on the host, as CRI composes it."""
    return PurePosixPath(log_directory) / log_path
