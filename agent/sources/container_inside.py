"""A running container as the node sees it: its files through its root directory, its processes by its cgroup.

A look at a file may block for ever, and no signal ends it, where the container has mounted a file system that hangs.
So ``look`` and ``examine`` are called in an ``OwnProcess``, and nothing here is called in the agent's own.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agent.health import cgroup_paths
from agent.health.heartbeat import Blank, Mark
from agent.model.hangs import Thread
from agent.model.workloads import ContainerId
from agent.sources import thread_states
from agent.sources.processes import ProcFs
from common import cgroupfs, kernel_files, rooted

_ENDED = ("Z", "X")  # proc_pid_stat(5); then its cgroup may have gone
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class CannotLookInsideError(Exception):
    """This agent cannot look into any container of this node. The text is one line: what, and the mend."""


@dataclass(frozen=True, slots=True)
class Where:
    """A running container, by its main process ``pid``, and where this node's processes are seen."""

    pid: int
    container_id: ContainerId
    processes: ProcFs

    @contextlib.contextmanager
    def opened(self) -> Iterator["Inside"]:
        """Look into it for the length of the block; see ``Inside.of``."""
        inside = Inside.of(self.pid, container_id=self.container_id, processes=self.processes)
        try:
            yield inside
        finally:
            inside.close()


def look(where: Where, file: str) -> Mark | Blank:
    """Return what a heartbeat file shows now; see ``Inside.of`` and ``Inside.look``."""
    with where.opened() as inside:
        return inside.look(file)


def examine(where: Where) -> tuple[tuple[Thread, ...], tuple[Thread, ...]]:
    """Return what its threads are doing, and again those that say most about a hang, with where they wait.

    Raises what ``Inside.of`` raises.
    """
    with where.opened() as inside:
        threads = inside.threads()
    return threads, thread_states.telling(where.processes.root, threads)


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
            if kernel_files.parse_stat(_read(self._process, "stat")).state in _ENDED:
                raise ProcessLookupError(errno.ESRCH, "the container's main process has ended")
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
