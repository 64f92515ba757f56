"""A running container as the node sees it: its files through its root directory, its processes by its cgroup.

Every call may block for ever where the container has mounted a file system that hangs: run them in an ``OwnThread``.
"""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from agent.health import cgroup_paths
from agent.health.heartbeat import Blank, Mark
from agent.model.hangs import Thread
from agent.model.workloads import ContainerId
from agent.sources import thread_states
from agent.sources.processes import ProcFs
from common import cgroupfs, kernel_files, rooted

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class CannotLookInsideError(Exception):
    """This agent cannot look into any container of this node. The text is one line: what, and the mend."""


class Inside:
    """One running container. Close it when done.

    The directory of its main process is kept open, so that another process with the same pid is never taken for it;
    its root is opened anew each time, for an open one would keep its file systems from being unmounted.
    """

    def __init__(self, process: int, *, proc: Path, groups: Iterable[Path]) -> None:
        self._process = process
        self._proc = proc
        self._groups = tuple(groups)
        self._freezers = tuple(group for group in self._groups if cgroupfs.frozen([group]) is not None)

    @classmethod
    def of(cls, pid: int, *, container_id: ContainerId, processes: ProcFs) -> Self:
        """Look into the container whose main process ``pid`` is.

        Raises ProcessLookupError when that is not (or no longer) a process of the container, CannotLookInsideError, or
        OSError.
        """
        process = os.open(processes.root / str(pid), _DIRECTORY)
        try:
            paths = _groups_of(_read(process, "cgroup"), container_id=container_id)
        except BaseException:
            os.close(process)
            raise
        groups = (group for path in paths for group in cgroupfs.directories(path, mounted_at=processes.cgroup_root))
        return cls(process, proc=processes.root, groups=groups)

    def close(self) -> None:
        """Look no longer."""
        os.close(self._process)

    def look(self, file: str) -> Mark | Blank:
        """Return what a heartbeat file shows now. Raises OSError, or CannotLookInsideError."""
        if self._is_paused():
            return Blank.PAUSED
        root = self._open_root()
        try:
            found = rooted.open_in(root, file, flags=os.O_PATH)
        except (FileNotFoundError, NotADirectoryError):
            return Blank.ABSENT
        except OSError as error:
            if error.errno == errno.ENOSYS:
                raise CannotLookInsideError("the kernel has no openat2; heartbeats need Linux 5.6") from error
            raise
        finally:
            os.close(root)
        try:
            return _mark(os.fstat(found), file=file)
        finally:
            os.close(found)

    def threads(self) -> tuple[Thread, ...]:
        """Return what its threads are doing. Raises OSError."""
        return thread_states.look(self._proc, cgroupfs.pids(self._groups))

    def _is_paused(self) -> bool:
        if not self._freezers:
            raise CannotLookInsideError(
                "the container's cgroup cannot be seen, so neither whether it is frozen; "
                "run the agent privileged, with the host's /sys/fs/cgroup"
            )
        frozen = cgroupfs.frozen(self._freezers)
        if frozen is None:
            raise ProcessLookupError(errno.ESRCH, "the container's cgroup has gone")
        return frozen or kernel_files.parse_stat(_read(self._process, "stat")).state in thread_states.STOPPED

    def _open_root(self) -> int:
        try:
            return os.open("root", _DIRECTORY, dir_fd=self._process)
        except PermissionError as error:
            raise CannotLookInsideError(
                f"cannot look into containers' file systems ({error.strerror}); "
                "the agent needs the host's PID namespace and CAP_SYS_PTRACE"
            ) from error
        except FileNotFoundError as error:
            raise ProcessLookupError(errno.ESRCH, "the container's main process has ended") from error


def _groups_of(cgroup: str, *, container_id: ContainerId) -> list[str]:
    """Return the container's own groups (one per hierarchy), not those that it has made for itself below."""
    if cgroup_paths.container_id(cgroup) != container_id:
        raise ProcessLookupError(errno.ESRCH, f"it is not (or no longer) a process of container {container_id}")
    paths = (cgroup_paths.container_root(line.split(":", 2)[-1]) for line in kernel_files.lines(cgroup))
    return sorted({path for path in paths if path is not None})


def _mark(found: os.stat_result, *, file: str) -> Mark:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", file)
    return Mark(device=found.st_dev, inode=found.st_ino, modified=found.st_mtime_ns, changed=found.st_ctime_ns)


def _read(directory: int, name: str) -> str:
    """Return what a file of a process says. Raises OSError, ProcessLookupError when the process is gone."""
    if (said := kernel_files.read(name, directory=directory)) is None:
        raise ProcessLookupError(errno.ESRCH, "the container's main process has ended")
    return said
