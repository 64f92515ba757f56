"""Empty a pod's /dev/shm. Blocking; everything is done by file descriptor, so that no link leads out of the directory.

What a process of the pod has open or mapped stays. A file that one only means to open later goes.
"""

import os
import posixpath
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent.restart import shm
from common import cgroupfs, rooted

_DEEPEST = 32
_NAMES_TOLD = 3
_READABLE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512  # st_blocks, whatever the file system's own are


class NotEmptiedError(Exception):
    """Nothing was removed; the text says why."""


@dataclass(slots=True)
class Emptied:
    """What came of it. ``left`` maps what was left to why. ``complete`` is False when time was up before the end."""

    removed: int = 0
    bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)
    complete: bool = True

    def __str__(self) -> str:
        text = f"{self.removed} files removed ({self.bytes / 2**20:.1f} MiB)"
        if self.left:
            told = [f"{name!r} {why}" for name, why in list(self.left.items())[:_NAMES_TOLD]]
            more = ["…"] if len(self.left) > _NAMES_TOLD else []
            text += f", {len(self.left)} left ({', '.join(told + more)})"
        return text if self.complete else f"{text}; the time was up before the end"


def empty(place: shm.Place, *, runtime: Path, cgroup_root: Path, until: float) -> Emptied:
    """Remove what is in it and not in use, until the monotonic time ``until``. Raises NotEmptiedError.

    ``runtime`` is the container runtime's directory in /proc: the place is looked up where the runtime sees it.

    First what is there is noted, then who uses it, and only then something removed: a file that another container makes
    meanwhile is not among them.
    """
    try:
        top = _open(place.directory, runtime=runtime)
        try:
            device = os.fstat(top).st_dev
            there = frozenset(_inodes(top, device=device))
            users = _users(place.cgroup, device=device, proc=runtime.parent, cgroup_root=cgroup_root)
            removal = _Removal(device=device, there=there, users=users, until=until)
            removal.directory(top)
        finally:
            os.close(top)
    except OSError as error:
        raise NotEmptiedError(f"{error.strerror or error}: {error.filename or place.directory}") from error
    return removal.emptied


@dataclass(frozen=True, slots=True)
class _Users:
    """What the pod's processes use: files by inode, and the names of sockets, which are bound by name alone."""

    inodes: frozenset[int]
    sockets: frozenset[str]


@dataclass(slots=True)
class _Removal:
    device: int
    there: frozenset[int]
    users: _Users
    until: float
    emptied: Emptied = field(default_factory=Emptied)

    def directory(self, opened: int, *, path: str = "", depth: int = 0) -> None:
        """Remove what is in an open directory."""
        for name in _names(opened):
            if time.monotonic() >= self.until:
                self.emptied.complete = False
                return
            below = posixpath.join(path, name)
            try:
                why = self._entry(opened, name, path=below, depth=depth)
            except FileNotFoundError:
                continue
            except OSError as error:
                why = error.strerror or repr(error)
            if why:
                self.emptied.left[below] = why

    def _entry(self, parent: int, name: str, *, path: str, depth: int) -> str:
        """Remove one entry; return why it was left."""
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if found.st_dev != self.device:
            return "is another file system"
        if found.st_ino not in self.there:
            return "is new"
        if stat.S_ISDIR(found.st_mode):
            return self._subdirectory(parent, name, path=path, depth=depth)
        if found.st_ino in self.users.inodes or (stat.S_ISSOCK(found.st_mode) and name in self.users.sockets):
            return "is in use"
        os.unlink(name, dir_fd=parent)
        self.emptied.removed += 1
        if found.st_nlink == 1:
            self.emptied.bytes += found.st_blocks * _BLOCK
        return ""

    def _subdirectory(self, parent: int, name: str, *, path: str, depth: int) -> str:
        if depth >= _DEEPEST:
            return "is too deep"
        opened = os.open(name, _READABLE, dir_fd=parent)
        try:
            found = os.fstat(opened)
            if found.st_dev != self.device:
                return "is another file system"
            self.directory(opened, path=path, depth=depth + 1)
            if _names(opened) or found.st_ino in self.users.inodes:
                return ""  # what is left in it has been noted
        finally:
            os.close(opened)
        os.rmdir(name, dir_fd=parent)
        return ""


def _open(directory: str, *, runtime: Path) -> int:
    """Open it. Whatever its path says, it must not be the node's own."""
    root = os.open(runtime / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = rooted.open_in(root, directory, flags=_READABLE)
        node = os.stat(shm.INSIDE.lstrip("/"), dir_fd=root)
    finally:
        os.close(root)
    if os.fstat(opened).st_dev == node.st_dev:
        os.close(opened)
        raise NotEmptiedError(f"{directory} is the node's own {shm.INSIDE}")
    return opened


def _names(opened: int) -> list[str]:
    with os.scandir(opened) as entries:
        return [entry.name for entry in entries]


def _inodes(opened: int, *, device: int, depth: int = 0) -> Iterator[int]:
    """Yield what is in a directory and below."""
    with os.scandir(opened) as entries:
        for entry in entries:
            yield entry.inode()
            if depth < _DEEPEST and entry.is_dir(follow_symlinks=False):
                try:
                    below = os.open(entry.name, _READABLE, dir_fd=opened)
                except FileNotFoundError:
                    continue
                try:
                    if os.fstat(below).st_dev == device:
                        yield from _inodes(below, device=device, depth=depth + 1)
                finally:
                    os.close(below)


def _users(cgroup: str, *, device: int, proc: Path, cgroup_root: Path) -> _Users:
    groups = cgroupfs.directories(cgroup, mounted_at=cgroup_root)
    if not groups:
        raise NotEmptiedError(f"the pod's cgroup {cgroup} cannot be seen, so neither who uses what is in it")
    inodes: set[int] = set()
    sockets: set[str] = set()
    for pid in cgroupfs.pids(groups):
        process = proc / str(pid)
        try:
            inodes.update(_open_files(process, device=device), _mapped_files(process, device=device))
            sockets.update(_bound_sockets(process))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return _Users(frozenset(inodes), frozenset(sockets))


def _open_files(process: Path, *, device: int) -> Iterator[int]:
    for link in (process / "fd").iterdir():
        try:
            found = link.stat()
        except FileNotFoundError:
            continue  # closed meanwhile
        if found.st_dev == device:
            yield found.st_ino


def _mapped_files(process: Path, *, device: int) -> Iterator[int]:
    """Yield by proc_pid_maps(5): ``address perms offset dev inode path``."""
    number = f"{os.major(device):02x}:{os.minor(device):02x}"
    for line in (process / "maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if fields[3] == number:
            yield int(fields[4])


def _bound_sockets(process: Path) -> Iterator[str]:
    """Yield the names of unix(7) sockets in the process's network namespace; their directories depend on who looks."""
    for line in (process / "net" / "unix").read_text(errors="replace").splitlines():
        _, _, path = line.partition(" /")
        if path:
            yield posixpath.basename(path)
