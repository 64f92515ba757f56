"""Facts about a process from /proc: its container, start time, CPUs and end."""

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kubemend.agent.clients.cri import kills
from kubemend.agent.health import cgroup_paths
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.processes import ProcessFacts, ProcessOrigin
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.sources import thread_states
from kubemend.common import cgroupfs, kernel_files, root_mounts

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_START_TIME_FIELD = 22  # proc_pid_stat(5), counted from 1
_DEAD = ("Z", "X")
_DEVICE_FILES = "/dev/nvidia"
_MOST_FILES, _MOST_FILES_IN_ALL = 4096, 65536
"""Open files that are read of one process, and of one container."""
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_MOST_ANCESTORS = 256
"""In a container; no training program nests processes deeper."""


@dataclass(frozen=True, slots=True)
class _Lineage:
    """``ids`` are its pids from the agent's PID namespace down to its own (``NSpid``, Linux 4.1)."""

    parent: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProcFs:
    """Reads the host's /proc (the agent runs with hostPID)."""

    root: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")

    def has_pids_of(self, log: Path) -> bool:
        """Return whether the pids in a kernel log are its own; True if that cannot be determined.

        The kernel writes those of the initial PID namespace. A node that is a container itself (kind, minikube, k3d)
        has another. A regular file in place of the log has this node's.
        """
        if log.is_file():
            return True
        try:
            return is_initial_pid_namespace(self.root / "1" / "ns" / "pid")
        except OSError:
            return True

    def facts(self, pid: int) -> ProcessFacts | None:
        """Return the facts about a process, or None when it does not exist (any more).

        Raises OSError when it exists and its facts cannot be read.
        """
        cgroup = kernel_files.read(self.root / str(pid) / "cgroup")
        stat = kernel_files.read(self.root / str(pid) / "stat")
        if cgroup is None or stat is None:
            return None
        return ProcessFacts(pid=pid, container=cgroup_paths.container_id(cgroup), started=_started(stat))

    def name(self, pid: int) -> str:
        """Return a process's own name, of 15 characters at most; empty if it does not exist or cannot be read."""
        try:
            text = kernel_files.read(self.root / str(pid) / "comm")
        except OSError:
            return ""
        return text.removesuffix("\n") if text is not None else ""

    def root_kind(self, pid: int) -> str | None:
        """Return the file system type of the process's root, such as ``overlay``; None: unknown."""
        return root_mounts.kind(pid, proc=self.root)

    def is_alive(self, process: ProcessFacts) -> bool:
        """Return whether that very process still runs and is not a zombie: another one may have its pid."""
        now = self.facts(process.pid)
        if now is None or (now.container, now.started) != (process.container, process.started):
            return False
        return any(thread.state not in _DEAD for thread in thread_states.read(self.root, [process.pid]))

    def origin(self, pid: int) -> ProcessOrigin | None:
        """Return how a process came into its container; None when it is unknown.

        It is, if the process has ended, or if it or a process that it descends from cannot be read.

        A process added to a container has a parent outside its PID namespace, as the first process has, and only the
        first one has pid 1 there. A child of an added process that has lost its parent cannot be distinguished from the
        container's own.
        """
        with contextlib.suppress(OSError):
            return self._origin(pid)
        return None

    def _origin(self, pid: int) -> ProcessOrigin | None:
        facts = self.facts(pid)
        mine = self._lineage(pid)
        for _ in range(_MOST_ANCESTORS):
            if facts is None or mine is None:
                return None
            above, theirs = self.facts(mine.parent), self._lineage(mine.parent)
            if mine.parent and (above is None or theirs is None):
                return None
            if above is None or theirs is None or above.container != facts.container:
                own_namespace = len(mine.ids) > 1 and (theirs is None or len(theirs.ids) < len(mine.ids))
                adopted = theirs is not None and len(theirs.ids) == len(mine.ids) > 1  # by the pod's pause container
                return ProcessOrigin(pid, is_its_own=adopted or (own_namespace and mine.ids[-1] == 1))
            pid, facts, mine = mine.parent, above, theirs
        return None

    def _lineage(self, pid: int) -> _Lineage | None:
        try:
            status = (self.root / str(pid) / "status").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = dict(line.split(b":", 1) for line in status.split(b"\n") if b":" in line)
        try:
            parent, ids = int(fields[b"PPid"]), tuple(map(int, fields[b"NSpid"].split()))
        except (KeyError, ValueError):
            return None
        return _Lineage(parent, ids)

    def cpuset(self, pid: int) -> str | None:
        """Return the CPUs that the process's cgroup allows, in the kernel's list format; None when it is unknown."""
        try:
            text = kernel_files.read_bytes(self.root / str(pid) / "cgroup")
        except OSError:
            return None
        for line in os.fsdecode(text or b"").split("\n"):  # a path to be opened must keep its bytes
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            relative = path.lstrip("/")
            if "cpuset" in controllers.split(","):
                file = self.cgroup_root / "cpuset" / relative / "cpuset.cpus"
            elif hierarchy == "0" and not controllers:
                file = self.cgroup_root / relative / "cpuset.cpus"
            else:
                continue
            try:
                if cpus := (kernel_files.read(file) or "").strip():
                    return cpus
            except OSError:
                continue
        return None

    def is_stuck(self, pid: int) -> bool:
        """Return whether any of its threads is in uninterruptible sleep (state D), where no signal reaches it.

        All threads are read, because the first one of a process being killed may already be a zombie. Raises OSError
        when they cannot be read.
        """
        return any(thread.state == "D" for thread in thread_states.read(self.root, [pid]))

    def container_pids(self, pid: int, *, of: ContainerId) -> frozenset[int]:
        """Return the processes of a container, if this is one of it: its PID may be another process's by now.

        Raises OSError.
        """
        text = kernel_files.read(self.root / str(pid) / "cgroup")
        if text is None or cgroup_paths.container_id(text) != of:
            return frozenset()
        lines = kernel_files.lines(text)
        paths = {root for line in lines if (root := cgroup_paths.container_root(line.split(":", 2)[-1])) is not None}
        groups = [group for path in paths for group in cgroupfs.directories(path, mounted_at=self.cgroup_root)]
        return cgroupfs.pids(groups) | {pid}

    def on_devices(self, pids: Collection[int]) -> frozenset[int]:
        """Return the processes that have a device file of a GPU open. Files beyond a limit are not read."""
        files = ((pid, name) for pid in sorted(pids) for name in itertools.islice(self._open_files(pid), _MOST_FILES))
        some = itertools.islice(files, _MOST_FILES_IN_ALL)
        return frozenset(pid for pid, name in some if name.startswith(_DEVICE_FILES))

    def _open_files(self, pid: int) -> Iterator[str]:
        """Yield the names of a process's open files, which /proc shows without any access to the files."""
        try:
            directory = os.open(self.root / str(pid) / "fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return  # the process has ended
        try:
            with contextlib.suppress(OSError), os.scandir(directory) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # closed by now
                        yield os.readlink(entry.name, dir_fd=directory)
        finally:
            os.close(directory)

    def threads(self, pids: Iterable[int]) -> tuple[Thread, ...]:
        """Return the threads of processes (``thread_states.read_with_times``). Raises OSError."""
        return thread_states.read_with_times(self.root, pids)

    async def ended(self, pid: int, *, started: float = 0.0) -> None:
        """Wait until the process has ended; return immediately when it does not exist. Needs no polling (pidfd).

        ``started``: when it began, in seconds since boot: another process may have its pid by now. 0: any process.
        Raises OSError if it cannot be followed.
        """
        try:
            descriptor = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in kills.ENDED:
                return
            raise
        loop = asyncio.get_running_loop()
        end = asyncio.Event()
        loop.add_reader(descriptor, end.set)
        try:
            if started and self._is_another(pid, started=started):
                return
            await end.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _is_another(self, pid: int, *, started: float) -> bool:
        """Return whether the process of this pid is not the one that began then; False if it cannot be read."""
        try:
            now = self.facts(pid)
        except OSError:
            return False
        return now is None or now.started != started


def is_initial_pid_namespace(link: Path) -> bool:
    """Return whether ``/proc/PID/ns/pid`` is the link of the node's initial PID namespace. Raises OSError."""
    return link.stat().st_ino == _INITIAL_PID_NAMESPACE


def _started(stat: str) -> float:
    """Return when a process began, in seconds since boot. Raises OSError when its ``stat`` has no start time."""
    try:
        return int(kernel_files.parse_stat(stat).rest[_START_TIME_FIELD - 4]) / _TICKS_PER_SECOND
    except (IndexError, ValueError) as error:
        raise kernel_files.UnreadableError(errno.EBADMSG, "no start time", stat[:80]) from error
