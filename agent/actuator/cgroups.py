"""Freeze, thaw and kill all processes of a container at once, by its cgroup (kernel: cgroup-v2.rst).

Only the version 2 hierarchy can do it without races; on a hybrid node it is the one mounted at ``unified``.
"""

import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agent.health import cgroup_paths
from agent.model.workloads import ContainerId
from common import cgroupfs, kernel_files

VERSION_2 = ("cgroup.controllers", "unified/cgroup.controllers")
"""What there is below the mount point where there is a version 2 hierarchy, alone or beside version 1."""

_MARK = "trusted.kubemend.held"
"""An extended attribute (xattr(7)); it goes with the cgroup, and outlives us."""

HELD, LET_GO, REPLACED = "held", "released", "replaced"
"""States of a mark: held for a round, let go, and standing still beside its successor until it is ended."""

_LONGEST_FREEZE = 0.25  # seconds; mostly it takes milliseconds
_LOOKS = 3  # at who is left: the first finds everybody, unless the freezing took too long


@dataclass(frozen=True, slots=True)
class Mark:
    """What is written on a cgroup: its state, for whom (no blanks), and whose it is."""

    state: str
    text: str
    owner: str

    def __str__(self) -> str:
        return f"{self.state} {self.text} {self.owner}"

    @classmethod
    def parse(cls, written: str) -> Self:
        """Read it back; what is none of ours has nobody for its owner."""
        state, _, rest = written.partition(" ")
        text, _, owner = rest.partition(" ")
        return cls(state, text, owner)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One container's cgroup in the version 2 hierarchy.

    Each call raises OSError, unless it is because the cgroup is gone.
    """

    path: Path

    @classmethod
    def of_process(cls, pid: int, *, proc: Path, mounted_at: Path) -> "Cgroup | None":
        """Return the cgroup of the container that a process is in.

        None when there is no such process, when it is in no container, or where there is no version 2 hierarchy.
        """
        lines = kernel_files.lines(kernel_files.read(proc / str(pid) / "cgroup") or "")
        unified = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
        if (root := cgroup_paths.container_root(unified)) is None:
            return None
        relative = root.lstrip("/")
        places = (mounted_at / "unified" / relative, mounted_at / relative)
        return next((cls(place) for place in places if (place / "cgroup.freeze").exists()), None)

    def sibling(self, container_id: ContainerId) -> "Cgroup | None":
        """Return the cgroup of another container of the same pod; None when there is none (yet)."""
        mine = cgroup_paths.container_id(self.path.name)
        if mine is None:
            return None
        place = self.path.with_name(self.path.name.replace(mine, container_id))
        return Cgroup(place) if (place / "cgroup.freeze").exists() else None

    @property
    def frozen(self) -> bool:
        """Whether it has been asked to stand still."""
        return self._read("cgroup.freeze").strip() == "1"

    @property
    def populated(self) -> bool:
        """Whether there is a process in it, or below."""
        return "populated 1" in kernel_files.lines(self._read("cgroup.events"))

    def pids(self) -> frozenset[int]:
        """Return its processes."""
        return cgroupfs.pids([self.path])

    def stands_still(self, *, timeout: float) -> bool:
        """Wait, and block, until all of its processes stand still, for so many seconds at most."""
        until = time.monotonic() + timeout
        try:
            with (self.path / "cgroup.events").open() as events:
                poll = select.poll()
                poll.register(events, select.POLLPRI | select.POLLERR)  # cgroup-v2.rst: on every change
                while "frozen 1" not in events.read().splitlines():
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
        """What ``put_mark`` has written on it; None when nothing is."""
        try:
            return kernel_files.text(os.getxattr(self.path, _MARK))
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOENT, errno.EOPNOTSUPP, errno.EPERM):
                raise
            return None

    def put_mark(self, text: str) -> None:
        """Write on it, in the place of what was there."""
        try:
            os.setxattr(self.path, _MARK, text.encode())
        except FileNotFoundError:
            return

    def freeze(self) -> None:
        """Ask for all processes to stand still; they do so within milliseconds."""
        self._write("cgroup.freeze", "1")

    def thaw(self) -> None:
        """Let them go on. Harmless when they are not frozen."""
        self._write("cgroup.freeze", "0")

    def kill(self) -> None:
        """SIGKILL all of them, frozen or not."""
        try:
            self._write("cgroup.kill", "1")
        except FileNotFoundError:  # Linux before 5.14
            self._kill_each()

    def _kill_each(self) -> None:
        """SIGKILL them one by one. They stand still before, so that none makes another meanwhile."""
        self.freeze()
        self.stands_still(timeout=_LONGEST_FREEZE)
        for _ in range(_LOOKS):
            alive = self.pids()
            if not alive:
                return
            for pid in alive:
                self._kill_one(pid)

    def _kill_one(self, pid: int) -> None:
        """SIGKILL a process unless its number is another's by now."""
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
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


def marked(mounted_at: Path) -> Iterator[tuple[ContainerId, Cgroup, str]]:
    """Yield the containers whose cgroups bear a mark, and what it says. Looks at every cgroup of the node."""
    unified = mounted_at / "unified"
    for directory, names, _ in os.walk(unified if unified.is_dir() else mounted_at):
        if (container_id := cgroup_paths.container_id(Path(directory).name)) is None:
            continue
        names.clear()  # what is below is the container's own
        group = Cgroup(Path(directory))
        if (text := group.mark) is not None:
            yield container_id, group, text
