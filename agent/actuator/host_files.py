"""The host files beside a container that kubelet keeps and a CRI restart would leave stale."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.model.workloads import ContainerId, ContainerRef
from agent.restart import host_files

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Termination logs and log symlinks. ``symlink_dir`` is kubelet's /var/log/containers, None to leave it alone."""

    symlink_dir: Path | None

    def empty_termination_log(self, path: str | None) -> None:
        """Empty the termination-message file: a clone mounts the old one, and old words would reappear as new.

        A message that cannot be emptied is logged and does not stop the restart: a stale text is the lesser evil.
        Nothing is followed or created: kubelet made the file, and a container may have replaced what it mounts.
        """
        if path is None:
            return
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK))
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("host_files.termination_log_kept", path=path, error=str(error))

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
            mend = "mount it writable" if error.errno in (errno.EROFS, errno.EACCES) else "check that it exists"
            log.warning("host_files.log_not_linked", link=str(link), error=str(error), mend=mend)
