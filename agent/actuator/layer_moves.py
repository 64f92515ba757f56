"""Move paths of one container's writable layer to its successor's. Blocking; works by file descriptor.

One rename moves a path with its content: whole or not at all, also if the agent dies. Both containers' roots must be
unmounted, because an overlay does not expect changes behind its back. The old container wrote every name and every
file, so no link is followed and no mount is crossed, and nothing is opened but directories.
"""

import contextlib
import errno
import os
import posixpath
import select
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubemend.agent.restart import keep
from kubemend.common import kernel_files, openat2, unix_sockets

KEPT: Final = ""
"""The result for a path that its successor has."""
ABSENT: Final = "the old container did not change it"
NO_KIND: Final = "it is neither a directory nor a file"

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
MOUNTS_LIMIT: Final = 64 << 20  # bytes; fs.mount-max is 100,000
_REPLACED: Final = tuple(f"{space}.overlay.{name}" for space in ("trusted", "user") for name in ("opaque", "redirect"))
"""Attributes of a directory that does not show the lower one of its name (Documentation/filesystems/overlayfs.rst)."""
_ACLS: Final = ("system.posix_acl_access", "system.posix_acl_default")


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the node's directories as the runtime behind a socket sees them; its process is in ``proc``."""

    socket_path: str
    proc: Path


class NotMovedError(Exception):
    """A path was not moved; the text is the reason."""


def move(access: Access, *, old: keep.Layer, new: keep.Layer, paths: Iterable[str], until: float) -> Mapping[str, str]:
    """Move paths from the layer ``old`` to ``new``; return why each was not moved, ``KEPT`` if it was.

    A path that an earlier call has moved is ``KEPT``. Nothing is moved after ``until``, a monotonic time, because the
    successor may run then. Raises OSError, or NotMovedError: nothing was moved.
    """
    runtime = access.proc / str(unix_sockets.listener(access.socket_path))
    wait_unmounted(runtime, (old.upper, new.upper), until=until)
    with contextlib.ExitStack() as opened:
        root = kept(opened, os.open(runtime / "root", os.O_PATH | os.O_DIRECTORY))
        source = kept(opened, openat2.open_in_root(root, old.upper, flags=DIRECTORY))
        target = kept(opened, openat2.open_in_root(root, new.upper, flags=DIRECTORY))
        return {path: move_one(source, target, path, until=until) for path in paths}


def move_one(source: int, target: int, path: str, *, until: float) -> str:
    """Move one path between two upper directories, given by descriptor; return why not, or ``KEPT``."""
    try:
        _move(source, target, path.lstrip("/"), until=until)
    except NotMovedError as error:
        return str(error)
    except OSError as error:
        return reason(error)
    return KEPT


def reason(error: OSError) -> str:
    """Return why a path was not moved, for people."""
    return {
        errno.ENOTDIR: "a link or a file is on the way to it",
        errno.EXDEV: "it lies on another file system",
    }.get(error.errno or 0, error.strerror or str(error))


def _move(source: int, target: int, path: str, *, until: float) -> None:
    parent, name = posixpath.split(path)
    with contextlib.ExitStack() as opened:
        olds = parents(opened, source, parent)
        old, found = olds[-1], lstat(olds[-1], name)
        if found is None:
            if exists(target, path):  # an earlier call has moved it: the new container has not run yet
                return
            raise NotMovedError(ABSENT)
        if not is_movable(found):
            raise NotMovedError(NO_KIND)
        new = made_like(opened, target, parent=parent, olds=olds)
        if lstat(new, name) is not None:
            raise NotMovedError("the new container has it already")
        if time.monotonic() >= until:
            raise NotMovedError("it ran out of time")
        os.rename(name, name, src_dir_fd=old, dst_dir_fd=new)


def parents(opened: contextlib.ExitStack, upper: int, parent: str) -> list[int]:
    """Return an upper directory and the directories on the way to ``parent`` in it. Raises NotMovedError and OSError.

    Each has been changed by the old container, or has changed contents.
    """
    found = [upper]
    for part in parent.split("/") if parent else []:
        try:
            found.append(kept(opened, openat2.open_beneath(found[-1], part, flags=DIRECTORY)))
        except FileNotFoundError:
            raise NotMovedError(ABSENT) from None
        if any(has(found[-1], attribute) for attribute in _REPLACED):
            raise NotMovedError(f"the old container replaced the image's directory {part!r} on the way to it")
    return found


def made_like(opened: contextlib.ExitStack, target: int, *, parent: str, olds: list[int]) -> int:
    """Return the directory ``parent`` below ``target``, created like those of ``parents``. Raises OSError."""
    new = target
    for part, like in zip(parent.split("/") if parent else [], olds[1:], strict=True):
        new = kept(opened, _like(like, parent=new, name=part))
    return new


def exists(root: int, path: str) -> bool:
    """Return whether there is something of this path below a directory. Raises OSError."""
    try:
        os.close(openat2.open_beneath(root, path, flags=os.O_PATH | os.O_NOFOLLOW))
    except FileNotFoundError:
        return False
    return True


def _like(old: int, *, parent: int, name: str) -> int:
    """Return the directory of that name, with the owner, mode and access list of ``old``; create it if needed.

    They are set again if it exists: the agent may have died in between. The new container has not run yet.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    made = openat2.open_beneath(parent, name, flags=DIRECTORY)
    try:
        make_like(made, old)
    except OSError:
        os.close(made)
        raise
    return made


def make_like(made: int, old: int) -> None:
    """Give a file or directory the owner, mode and access list of another one. Raises OSError."""
    wanted = os.fstat(old)
    os.fchown(made, wanted.st_uid, wanted.st_gid)
    os.fchmod(made, stat.S_IMODE(wanted.st_mode))
    for attribute in _ACLS:
        if has(old, attribute):
            os.setxattr(made, attribute, os.getxattr(old, attribute))


def is_movable(found: os.stat_result) -> bool:
    """Return whether it is a directory, a file, or an overlay's record that one was deleted (a whiteout)."""
    is_whiteout = stat.S_ISCHR(found.st_mode) and found.st_rdev == 0
    return stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) or is_whiteout


def lstat(directory: int, name: str) -> os.stat_result | None:
    """Return the entry of this name in a directory; None if there is none."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def has(file: int, attribute: str) -> bool:
    """Return whether a file or directory has an extended attribute."""
    try:
        os.getxattr(file, attribute)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return False
        raise
    return True


def kept(opened: contextlib.ExitStack, descriptor: int) -> int:
    """Return a descriptor that is closed with ``opened``."""
    opened.callback(os.close, descriptor)
    return descriptor


def wait_unmounted(runtime: Path, uppers: Iterable[str], *, until: float) -> None:
    """Wait until no overlay with these upper directories is mounted. Raises NotMovedError at ``until``, or OSError."""
    needles = [b"upperdir=" + os.fsencode(upper) for upper in uppers]
    with (runtime / "mountinfo").open("rb", buffering=0) as mounts:
        poll = select.poll()
        poll.register(mounts, select.POLLPRI | select.POLLERR)  # proc_pid_mountinfo(5): on every change
        while True:
            mounts.seek(0)
            text = kernel_files.read_open(mounts.fileno(), limit=MOUNTS_LIMIT, name="mountinfo")
            if not any(is_mounted(needle, text) for needle in needles):
                return
            left = until - time.monotonic()
            if left <= 0:
                raise NotMovedError("the root of one of the containers is still mounted")
            poll.poll(left * 1000)


def is_mounted(needle: bytes, mountinfo: bytes) -> bool:
    """Return whether an option is among those of a mount, in the text of ``/proc/<pid>/mountinfo``."""
    return any(needle + end in mountinfo for end in (b",", b"\n", b" "))
