"""Maintain a container's host files that kubelet keeps and a CRI restart would leave stale."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import structlog

from kubemend.agent.model.workloads import ContainerId, ContainerRef
from kubemend.agent.restart import host_files

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Termination logs and log symlinks. ``symlink_dir`` is kubelet's /var/log/containers, None to leave it alone."""

    symlink_dir: Path | None

    def make_termination_log(self, wanted: host_files.TerminationLog) -> bool:
        """Create a successor's termination-message file, as kubelet does: empty, and writable for all (0666).

        Kubelet reads the dead container's message from that container's own file, maybe only after the successor runs.
        Return False if the file cannot be created, which is logged: then the successor gets the old file, and an old
        message may reappear as new, the lesser evil. No link is followed, and no existing file is changed.
        """
        try:
            with _directory(wanted.directory) as directory:
                _make(wanted.name, directory)
        except OSError as error:
            log.warning("host_files.termination_log_kept", path=wanted.path, error=str(error))
            return False
        return True

    def remove_termination_log(self, made: host_files.TerminationLog) -> None:
        """Remove the file of a successor that has been removed. Harmless if it does not exist."""
        try:
            with _directory(made.directory) as directory:
                os.unlink(made.name, dir_fd=directory)
        except OSError as error:  # it is removed with the pod's directory
            log.debug("host_files.termination_log_left", path=made.path, error=str(error))

    def link_log(self, container: ContainerRef, *, container_id: ContainerId, log_file: Path) -> None:
        """Create the symlink by which log shippers find the log (kubelet's GC removes it with the container).

        Source: pkg/kubelet/kuberuntime/kuberuntime_container.go, startContainer.
        """
        if self.symlink_dir is None or not log_file.exists():
            return
        link = self.symlink_dir / host_files.log_symlink_name(container, container_id)
        try:
            link.symlink_to(log_file)
        except FileExistsError:
            return
        except OSError as error:
            hint = "mount it writable" if error.errno in (errno.EROFS, errno.EACCES) else "check that it exists"
            log.warning("host_files.log_not_linked", link=str(link), error=str(error), hint=hint)


_MODE = 0o666  # kuberuntime_container.go, makeMounts: the container may run as any user
_OF_POD = 3  # the last parts of the directory: the pod's UID, "containers", the container's name
_PATH_ONLY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def _directory(path: PurePosixPath) -> Iterator[int]:
    """Yield kubelet's directory of a container. Links below the root of all pods are not followed. Raises OSError."""
    with contextlib.ExitStack() as opened:
        found = os.open(path.parents[_OF_POD - 1], _PATH_ONLY)
        opened.callback(os.close, found)
        for part in path.parts[-_OF_POD:]:
            found = os.open(part, _PATH_ONLY | os.O_NOFOLLOW, dir_fd=found)
            opened.callback(os.close, found)
        yield found


def _make(name: str, directory: int) -> None:
    try:
        file = os.open(
            name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE, dir_fd=directory
        )
    except FileExistsError:  # created by an earlier attempt, whose container may have it already
        if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise
        return
    try:
        os.fchmod(file, _MODE)  # regardless of the umask
    finally:
        os.close(file)
