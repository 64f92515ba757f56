"""Freeze, thaw and kill all processes of a container at once, by its cgroup (kernel: cgroup-v2.rst).

Only the version 2 hierarchy can do this without races; on a hybrid node it is mounted at ``unified``.
"""

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kubemend.agent.clients.cri import kills
from kubemend.agent.health import cgroup_paths
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import cgroupfs, kernel_files

VERSION_2 = ("cgroup.controllers", "unified/cgroup.controllers")
"""Files below the mount point that show a version 2 hierarchy, alone or next to version 1."""

_MARK = "trusted.kubemend.held"
"""An extended attribute (xattr(7)); it is removed with the cgroup, and outlives the agent."""

HELD, RELEASED, REPLACED = "held", "released", "replaced"
"""States of a mark: held for a round, released, and frozen next to its successor until it is ended."""

_LONGEST_FREEZE = 0.25  # seconds; usually milliseconds
_LISTINGS = 3  # listings of remaining processes; the first finds all of them unless freezing timed out


@dataclass(frozen=True, slots=True)
class Mark:
    """The text written on a cgroup: its state, the purpose of the hold (no blanks), and its owner.

    ``at`` is the time of the release of a held container (seconds since boot); None if the mark does not have it.
    """

    state: str
    text: str
    owner: str
    at: float | None = None

    def __str__(self) -> str:
        state = self.state if self.at is None else f"{self.state}:{self.at:.9f}"
        return f"{state} {self.text} {self.owner}"

    @classmethod
    def parse(cls, written: str) -> Self:
        """Parse a mark; the owner is empty where another program has set it."""
        head, _, rest = written.partition(" ")
        state, _, at = head.partition(":")
        text, _, owner = rest.partition(" ")
        return cls(state, text, owner, _seconds(at))


def container_of(process: Path) -> ContainerId | None:
    """Return the container of a process, given as its directory in /proc; None if it is in none, or has ended."""
    try:
        return cgroup_paths.container_id(kernel_files.read(process / "cgroup") or "")
    except OSError:
        return None


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One container's cgroup in the version 2 hierarchy.

    Each call raises OSError, except when the cgroup no longer exists.
    """

    path: Path

    @classmethod
    def of_process(cls, pid: int, *, proc: Path, mounted_at: Path) -> "Cgroup | None":
        """Return the cgroup of the container that a process belongs to.

        None if there is no such process, if it is in no container, or if there is no version 2 hierarchy.
        """
        lines = kernel_files.lines(kernel_files.read(proc / str(pid) / "cgroup") or "")
        unified = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
        if (root := cgroup_paths.container_root(unified)) is None:
            return None
        relative = root.lstrip("/")
        places = (mounted_at / "unified" / relative, mounted_at / relative)
        return next((cls(place) for place in places if (place / "cgroup.freeze").exists()), None)

    def is_of(self, container_id: ContainerId) -> bool:
        """Return whether it is this container's. A process may be another one with the PID that the runtime shows."""
        return cgroup_paths.container_id(self.path.name) == container_id

    def sibling(self, container_id: ContainerId) -> "Cgroup | None":
        """Return the cgroup of another container of the same pod; None if there is none (yet)."""
        mine = cgroup_paths.container_id(self.path.name)
        if mine is None:
            return None
        place = self.path.with_name(self.path.name.replace(mine, container_id))
        return Cgroup(place) if (place / "cgroup.freeze").exists() else None

    @property
    def frozen(self) -> bool:
        """Return whether the cgroup has been asked to freeze."""
        return self._read("cgroup.freeze").strip() == "1"

    @property
    def populated(self) -> bool:
        """Return whether there is a process in it, or below."""
        return "populated 1" in kernel_files.lines(self._read("cgroup.events"))

    def pids(self) -> frozenset[int]:
        """Return its processes."""
        return cgroupfs.pids([self.path])

    def wait_frozen(self, *, timeout: float) -> bool:
        """Block until all of its processes are frozen, at most ``timeout`` seconds; return whether they are."""
        return self._wait_for("frozen 1", timeout=timeout)

    def wait_ended(self, *, timeout: float) -> bool:
        """Block until all of its processes have ended, at most ``timeout`` seconds; return whether they have.

        A process counts as ended after it has closed its files, sockets and devices (cgroup_exit in do_exit).
        """
        return self._wait_for("populated 0", timeout=timeout)

    def _wait_for(self, line: str, *, timeout: float) -> bool:
        """Block until ``cgroup.events`` has this line; a cgroup that no longer exists counts as having it."""
        until = time.monotonic() + timeout
        try:
            with (self.path / "cgroup.events").open() as events:
                poll = select.poll()
                poll.register(events, select.POLLPRI | select.POLLERR)  # cgroup-v2.rst: on every change
                while line not in events.read().splitlines():
                    left = until - time.monotonic()
                    if left <= 0 or not poll.poll(left * 1000):
                        return False
                    events.seek(0)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
        return True

    @property
    def mark(self) -> str | None:
        """Return the text that ``put_mark`` wrote on it; None if there is none."""
        try:
            return kernel_files.text(os.getxattr(self.path, _MARK))
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM):
                raise
            return None

    def put_mark(self, text: str) -> None:
        """Write a mark on it, replacing the previous one."""
        try:
            os.setxattr(self.path, _MARK, text.encode())
        except FileNotFoundError:
            return

    def freeze(self) -> None:
        """Request that all processes freeze; they do so within milliseconds."""
        self._write("cgroup.freeze", "1")

    def thaw(self) -> None:
        """Thaw the processes. Harmless if they are not frozen."""
        self._write("cgroup.freeze", "0")

    def kill(self) -> None:
        """SIGKILL all of them, frozen or not."""
        try:
            self._write("cgroup.kill", "1")
        except FileNotFoundError:  # Linux before 5.14
            self._kill_each()

    def _kill_each(self) -> None:
        """SIGKILL them one by one. They are frozen before, so that none forks in the meantime."""
        self.freeze()
        self.wait_frozen(timeout=_LONGEST_FREEZE)
        for _ in range(_LISTINGS):
            alive = self.pids()
            if not alive:
                return
            for pid in alive:
                self._kill_one(pid)

    def _kill_one(self, pid: int) -> None:
        """SIGKILL a process unless its PID has been reused."""
        try:
            process = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in kills.ENDED:
                return
            raise
        try:
            if pid in self.pids():
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(process)

    def _read(self, name: str) -> str:
        return kernel_files.read(self.path / name) or ""

    def _write(self, name: str, text: str) -> None:
        try:
            (self.path / name).write_text(text)
        except FileNotFoundError:
            if self.path.exists():
                raise
        except OSError as error:
            if error.errno != errno.ENODEV:  # it was removed between the opening and the write
                raise


def marked(mounted_at: Path) -> Iterator[tuple[ContainerId, Cgroup, str]]:
    """Yield the containers whose cgroups bear a mark that can be read, and its text. Reads every cgroup of the node."""
    unified = mounted_at / "unified"
    for directory, names, _ in os.walk(unified if unified.is_dir() else mounted_at):
        if (container_id := cgroup_paths.container_id(Path(directory).name)) is None:
            continue
        names.clear()  # the cgroups below are the container's own
        group, text = Cgroup(Path(directory)), None
        with contextlib.suppress(OSError):  # the others must be released nevertheless
            text = group.mark
        if text is not None:
            yield container_id, group, text
