"""Names of the host files that kubelet keeps beside a container. Pure."""

from pathlib import PurePosixPath

from agent.model.workloads import ContainerId, ContainerRef

_MAX_FILE_NAME = 255  # ext4; pkg/kubelet/kuberuntime/legacy.go cuts the name, never the suffix
_SUFFIX = ".log"


def log_symlink_name(container: ContainerRef, container_id: ContainerId) -> str:
    """Return the name under /var/log/containers by which log shippers find a container's log.

    Source: pkg/kubelet/kuberuntime/legacy.go ``logSymlink``.
    """
    name = f"{container.pod.name}_{container.pod.namespace}_{container.name}-{container_id}"
    return name[: _MAX_FILE_NAME - len(_SUFFIX)] + _SUFFIX


def log_file(log_directory: str, log_path: str) -> PurePosixPath:
    """Return the container's log file on the host, as CRI composes it."""
    return PurePosixPath(log_directory) / log_path
