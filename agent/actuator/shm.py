"""Empty a pod's /dev/shm. Blocking; works by file descriptor, so that no link leads out of the directory.

A file that a process of the pod has open or mapped stays. A file that a process only intends to open later is removed.

The pod controls how many files exist, their names, and how many of them a process maps. So the memory used for them is
bounded, and files beyond the bound stay.
"""

import errno
import os
import posixpath
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kubemend.agent.restart import shm
from kubemend.common import cgroupfs, kernel_files, openat2, unix_sockets

_DEEPEST = 32
_NAMES_SHOWN = 3
_MOST_FILES = 100_000  # some 10 MiB
_MOST_LEFT = 1000
_LONGEST_LINE = 1 << 16  # of maps or net/unix: a path has 4096 bytes at most, each of them in up to four characters
_READABLE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEVICE, _INODE = 3, 4  # of the fields of maps, counted from 0
_NUMBER = re.compile(rb"\d{1,20}")
_TIME_UP = "it ran out of time"
_BLOCK = 512  # the unit of st_blocks on every file system
_NOT_IN_MEMORY = (errno.ENOTCONN, errno.ESTALE, errno.EIO)
"""Errors of an open file whose server or FUSE program is gone. A tmpfs gives none of them."""


class NotEmptiedError(Exception):
    """Nothing was removed; the text is the reason."""


@dataclass(slots=True)
class Emptied:
    """The result of emptying. ``left`` maps remaining files to reasons, ``left_beside`` counts further ones.

    ``cut_short`` is why it did not complete; empty if it did.
    """

    removed: int = 0
    bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)
    left_beside: int = 0
    cut_short: str = ""

    def leave(self, name: str, *, reason: str) -> None:
        """Record a remaining file."""
        if len(self.left) < _MOST_LEFT:
            self.left[name] = reason
        else:
            self.left_beside += 1

    def __str__(self) -> str:
        text = f"{self.removed} files removed ({self.bytes / 2**20:.1f} MiB)"
        if self.left:
            shown = [f"{name!r} {reason}" for name, reason in list(self.left.items())[:_NAMES_SHOWN]]
            more = ["…"] if len(self.left) > _NAMES_SHOWN else []
            text += f", {len(self.left) + self.left_beside} left ({', '.join(shown + more)})"
        return f"{text}; {self.cut_short}" if self.cut_short else text


def empty_for_runtime(socket_path: str, place: shm.Place, *, proc: Path, cgroup_root: Path, until: float) -> str:
    """Empty a place as the runtime behind a socket sees it; return a description of the result for people.

    ``until`` is a monotonic time, which all processes of a node share: nothing is removed after it, because the files
    of the next container may be in the place then.
    """
    try:
        runtime = proc / str(unix_sockets.listener(socket_path))
    except OSError as error:
        return f"not emptied: the runtime behind {socket_path} cannot be found ({error.strerror or error})"
    try:
        return str(empty(place, runtime=runtime, cgroup_root=cgroup_root, until=until))
    except NotEmptiedError as error:
        return f"not emptied: {error}"


def empty(place: shm.Place, *, runtime: Path, cgroup_root: Path, until: float) -> Emptied:
    """Remove the files that are not in use, until the monotonic time ``until``. Raises NotEmptiedError.

    ``runtime`` is the container runtime's directory in /proc: the place is looked up as the runtime sees it.

    First the existing files are recorded, then their users, and only then files are removed. So a file that another
    container creates in the meantime is never removed.
    """
    try:
        top = _open(place.directory, runtime=runtime)
        try:
            device = os.fstat(top).st_dev
            there = _InitialEntries.of(top, device=device)
            users = _users(
                there, place.cgroup, device=device, proc=runtime.parent, cgroup_root=cgroup_root, until=until
            )
            removal = _Removal(device=device, there=there, users=users, until=until)
            removal.directory(top)
        finally:
            os.close(top)
    except TimeoutError:
        return Emptied(cut_short=_TIME_UP)
    except OSError as error:
        name = os.fsencode(error.filename or place.directory)
        raise NotEmptiedError(f"{error.strerror or error}: {kernel_files.text(name)}") from error
    return removal.emptied


@dataclass(slots=True)
class _InitialEntries:
    """The entries at the beginning: inodes, and the names of those that are neither files nor directories.

    ``more``: not all entries are recorded.
    """

    inodes: set[int] = field(default_factory=set)
    sockets: set[str] = field(default_factory=set)
    more: bool = False

    @classmethod
    def of(cls, opened: int, *, device: int) -> Self:
        """Record the entries of an open directory and below. Raises OSError."""
        there = cls()
        for entry in _entries(opened, device=device):
            if len(there.inodes) >= _MOST_FILES:
                there.more = True
                break
            there.inodes.add(entry.inode())
            if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                there.sockets.add(entry.name)
        return there


@dataclass(frozen=True, slots=True)
class _Users:
    """The entries that the pod's processes use: files by inode, and sockets, which are bound by name alone."""

    inodes: frozenset[int]
    sockets: frozenset[str]


@dataclass(slots=True)
class _Removal:
    device: int
    there: _InitialEntries
    users: _Users
    until: float
    emptied: Emptied = field(default_factory=Emptied)

    def directory(self, opened: int, *, path: str = "", depth: int = 0) -> None:
        """Remove the entries of an open directory."""
        with os.scandir(opened) as entries:
            for entry in entries:
                if time.monotonic() >= self.until:
                    self.emptied.cut_short = _TIME_UP
                    return
                below = posixpath.join(path, entry.name)
                try:
                    reason = self._entry(opened, entry.name, path=below, depth=depth)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    reason = error.strerror or repr(error)
                if reason:
                    self.emptied.leave(below, reason=reason)

    def _entry(self, parent: int, name: str, *, path: str, depth: int) -> str:
        """Remove one entry; return why it was left."""
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if found.st_dev != self.device:
            return "is another file system"
        if found.st_ino not in self.there.inodes:
            return self._unknown()
        if stat.S_ISDIR(found.st_mode):
            return self._subdirectory(parent, name, path=path, depth=depth)
        if found.st_ino in self.users.inodes or (stat.S_ISSOCK(found.st_mode) and name in self.users.sockets):
            return "is in use"
        os.unlink(name, dir_fd=parent)
        self.emptied.removed += 1
        if found.st_nlink == 1:
            self.emptied.bytes += found.st_blocks * _BLOCK
        return ""

    def _unknown(self) -> str:
        if not self.there.more:
            return "is new"
        self.emptied.cut_short = f"there were more than {_MOST_FILES:,}"
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
            if not _is_empty(opened) or found.st_ino in self.users.inodes:
                return ""  # the remaining entries have been recorded
        finally:
            os.close(opened)
        os.rmdir(name, dir_fd=parent)
        return ""


def _open(directory: str, *, runtime: Path) -> int:
    """Open the directory. It must not be the node's own, by any path."""
    root = os.open(runtime / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = openat2.open_in_root(root, directory, flags=_READABLE)
        node = os.stat(shm.INSIDE.lstrip("/"), dir_fd=root)
    finally:
        os.close(root)
    if os.fstat(opened).st_dev == node.st_dev:
        os.close(opened)
        raise NotEmptiedError(f"{directory} is the node's own {shm.INSIDE}")
    return opened


def _is_empty(opened: int) -> bool:
    with os.scandir(opened) as entries:
        return next(entries, None) is None


def _entries(opened: int, *, device: int, depth: int = 0) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory and below."""
    with os.scandir(opened) as entries:
        for entry in entries:
            yield entry
            if depth < _DEEPEST and entry.is_dir(follow_symlinks=False):
                try:
                    below = os.open(entry.name, _READABLE, dir_fd=opened)
                except FileNotFoundError:
                    continue
                try:
                    if os.fstat(below).st_dev == device:
                        yield from _entries(below, device=device, depth=depth + 1)
                finally:
                    os.close(below)


def _users(there: _InitialEntries, cgroup: str, *, device: int, proc: Path, cgroup_root: Path, until: float) -> _Users:
    """Return the entries that are in use. Raises TimeoutError if the time is up, OSError, or NotEmptiedError."""
    groups = cgroupfs.directories(cgroup, mounted_at=cgroup_root)
    if not groups:
        raise NotEmptiedError(f"the users of its files are unknown: the pod's cgroup {cgroup} is not visible")
    inodes: set[int] = set()
    sockets: set[str] = set()
    for pid in cgroupfs.pids(groups):
        if time.monotonic() >= until:
            raise TimeoutError
        process = proc / str(pid)
        try:
            inodes.update(each for each in _open_files(process, device=device) if each in there.inodes)
            inodes.update(each for each in _mapped_files(process, device=device) if each in there.inodes)
            sockets.update(each for each in _bound_sockets(process) if each in there.sockets)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return _Users(frozenset(inodes), frozenset(sockets))


def _open_files(process: Path, *, device: int) -> Iterator[int]:
    for link in (process / "fd").iterdir():
        try:
            found = link.stat()
        except FileNotFoundError:
            continue  # closed in the meantime
        except OSError as error:
            if error.errno not in _NOT_IN_MEMORY:
                raise
            continue
        if found.st_dev == device:
            yield found.st_ino


def _mapped_files(process: Path, *, device: int) -> Iterator[int]:
    """Yield by proc_pid_maps(5): ``address perms offset dev inode path``."""
    number = f"{os.major(device):02x}:{os.minor(device):02x}".encode()
    for line in kernel_files.each_line(process / "maps", longest=_LONGEST_LINE):
        fields = line.split(maxsplit=5)
        if len(fields) <= _INODE or not _NUMBER.fullmatch(fields[_INODE]):
            raise NotEmptiedError(f"{process / 'maps'} does not have the form of proc_pid_maps(5)")
        if fields[_DEVICE] == number:
            yield int(fields[_INODE])


def _bound_sockets(process: Path) -> Iterator[str]:
    """Yield the names of unix(7) sockets in the process's network namespace. Their directories depend on the reader."""
    for line in kernel_files.each_line(process / "net" / "unix", longest=_LONGEST_LINE):
        _, _, path = line.removesuffix(b"\n").partition(b" /")
        if path:
            yield os.fsdecode(posixpath.basename(path))
