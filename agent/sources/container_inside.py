"""Inspect a running container from the node: its files through its root directory, its processes by its cgroup.

Access to a file blocks indefinitely, and no signal ends it, if the container has mounted a file system that hangs. So
``heartbeat_mark`` and ``examine`` are called in an ``OwnProcess``, and nothing here is called in the agent's process.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kubemend.agent.health import cgroup_paths
from kubemend.agent.health.state.heartbeat import Blank, Mark
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.sources import thread_states
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import cgroupfs, kernel_files, openat2

_ENDED = ("Z", "X")  # proc_pid_stat(5); the cgroup of such a process may be gone
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class CannotInspectError(Exception):
    """The agent cannot inspect any container of this node. The text is one line: the reason and the hint."""


@dataclass(frozen=True, slots=True)
class MainProcess:
    """A running container, by its main process ``pid``, and the paths of the node's procfs and cgroups."""

    pid: int
    container_id: ContainerId
    processes: ProcFs

    @contextlib.contextmanager
    def opened(self) -> Iterator["Inside"]:
        """Open the container for the length of the block; see ``Inside.of``."""
        inside = Inside.of(self.pid, container_id=self.container_id, processes=self.processes)
        try:
            yield inside
        finally:
            inside.close()


def heartbeat_mark(main: MainProcess, file: str) -> Mark | Blank:
    """Return the state of a heartbeat file; see ``Inside.of`` and ``Inside.heartbeat_mark``."""
    with main.opened() as inside:
        return inside.heartbeat_mark(file)


def examine(main: MainProcess) -> tuple[tuple[Thread, ...], tuple[Thread, ...]] | None:
    """Return the states of all threads, and of those most informative about a hang with the place where they wait.

    None: the container is paused on purpose (``thread_states.are_stopped``). Raises what ``Inside.of`` raises.
    """
    with main.opened() as inside:
        threads = inside.threads()
    if thread_states.are_stopped(main.processes.root, threads):
        return None
    return threads, thread_states.most_informative(main.processes.root, threads)


class Inside:
    """One running container. Close it when done.

    The directory of its main process stays open, so that another process with the same pid is never mistaken for it.
    Its root is opened for each access, because an open root would keep its file systems from being unmounted.
    """

    def __init__(self, process: int, *, proc: Path, groups: Iterable[Path]) -> None:
        self._process = process
        self._proc = proc
        self._groups = tuple(groups)
        self._freezers = tuple(group for group in self._groups if cgroupfs.frozen([group]) is not None)

    @classmethod
    def of(cls, pid: int, *, container_id: ContainerId, processes: ProcFs) -> Self:
        """Open the container with the main process ``pid``.

        Raises ProcessLookupError when ``pid`` is not (or no longer) a process of the container, CannotInspectError,
        or OSError.
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
        """Close the directory of the main process."""
        os.close(self._process)

    def heartbeat_mark(self, file: str) -> Mark | Blank:
        """Return the state of a heartbeat file. Raises OSError, or CannotInspectError."""
        if self._is_paused():
            return Blank.PAUSED
        root = self._open_root()
        try:
            found = openat2.open_in_root(root, file, flags=os.O_PATH)
        except (FileNotFoundError, NotADirectoryError):
            return Blank.ABSENT
        except OSError as error:
            if error.errno == errno.ENOSYS:
                raise CannotInspectError("the kernel has no openat2; heartbeats need Linux 5.6") from error
            raise
        finally:
            os.close(root)
        try:
            return _mark(os.fstat(found), file=file)
        finally:
            os.close(found)

    def threads(self) -> tuple[Thread, ...]:
        """Return the states of its threads. Raises OSError."""
        return thread_states.read(self._proc, cgroupfs.pids(self._groups))

    def _is_paused(self) -> bool:
        if not self._freezers:
            if kernel_files.parse_stat(_read(self._process, "stat")).state in _ENDED:
                raise ProcessLookupError(errno.ESRCH, "the container's main process has ended")
            raise CannotInspectError(
                "the container's cgroup is not visible, so the agent cannot read whether it is frozen; "
                "run the agent privileged, with the host's /sys/fs/cgroup"
            )
        frozen = cgroupfs.frozen(self._freezers)
        if frozen is None:
            raise ProcessLookupError(errno.ESRCH, "the container's cgroup no longer exists")
        return frozen or kernel_files.parse_stat(_read(self._process, "stat")).state in thread_states.STOPPED

    def _open_root(self) -> int:
        try:
            return os.open("root", _DIRECTORY, dir_fd=self._process)
        except PermissionError as error:
            raise CannotInspectError(
                f"cannot access containers' file systems ({error.strerror}); "
                "the agent needs the host's PID namespace and CAP_SYS_PTRACE"
            ) from error
        except FileNotFoundError as error:
            raise ProcessLookupError(errno.ESRCH, "the container's main process has ended") from error


def _groups_of(cgroup: str, *, container_id: ContainerId) -> list[str]:
    """Return the container's own cgroups (one per hierarchy), without the child cgroups that it created."""
    if cgroup_paths.container_id(cgroup) != container_id:
        raise ProcessLookupError(errno.ESRCH, f"it is not (or no longer) a process of container {container_id}")
    paths = (cgroup_paths.container_root(line.split(":", 2)[-1]) for line in kernel_files.lines(cgroup))
    return sorted({path for path in paths if path is not None})


def _mark(found: os.stat_result, *, file: str) -> Mark:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", file)
    return Mark(device=found.st_dev, inode=found.st_ino, modified=found.st_mtime_ns, changed=found.st_ctime_ns)


def _read(directory: int, name: str) -> str:
    """Read a file of a process. Raises OSError, ProcessLookupError when the process is gone."""
    if (text := kernel_files.read(name, directory=directory)) is None:
        raise ProcessLookupError(errno.ESRCH, "the container's main process has ended")
    return text
