"""Copy paths of one container's writable layer to a successor whose root is mounted, and which runs nothing. Blocking.

Such a successor was started and is held, or CRI-O created it. An overlay does not expect changes behind its back, so
the copy goes through the mounted root. It is made aside, and one rename puts it into place: whole or not at all. The
old container wrote every name and every file. No link is followed and no mount is crossed, and nothing is opened but
directories and files.
"""

import contextlib
import errno
import os
import posixpath
import shutil
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubemend.agent.actuator import layer_moves
from kubemend.agent.actuator.layer_moves import ABSENT, DIRECTORY, KEPT, Access, NotMovedError
from kubemend.agent.restart import keep
from kubemend.common import kernel_files, openat2, unix_sockets

OF_IMAGE: Final = "the image has it, too, and only what the image lacks is copied"

_ASIDE: Final = ".kubemend-keep"
"""The directory in the successor's root in which a copy is made."""
_COPY: Final = "copy"
_CHUNK: Final = 8 << 20
_BLOCK: Final = 512  # the unit of st_blocks on every file system
_LOWER: Final = "lower"
_LONGEST_LOWER: Final = 1 << 16  # bytes; an overlay has 500 lower directories at most
_DEEPEST: Final = 64
_OF_LOWER: Final = ("trusted.overlay.redirect", "trusted.overlay.metacopy")
"""Attributes of files that are incomplete without the layers below (Documentation/filesystems/overlayfs.rst)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is copied at most: bytes of files, and directories, files and links."""

    size: int = 1 << 30
    entries: int = 100_000


class Budget:
    """What may still be copied, and until when (monotonic time)."""

    def __init__(self, limits: Limits, *, until: float) -> None:
        self._limits = limits
        self._until = until
        self._size = 0
        self._entries = 0

    def count(self, found: os.stat_result) -> None:
        """Count one entry, whose content is not copied yet. Raises NotMovedError."""
        self._entries += 1
        if stat.S_ISREG(found.st_mode):
            self._check_size(min(found.st_size, found.st_blocks * _BLOCK))  # a sparse file can claim any size
        if self._entries > self._limits.entries:
            raise NotMovedError(f"more than {self._limits.entries} files would have to be copied")
        self.check_time()

    def copied(self, size: int) -> None:
        """Count bytes of a file. Raises NotMovedError."""
        self._check_size(size)
        self._size += size
        self.check_time()

    def _check_size(self, size: int) -> None:
        if self._size + size > self._limits.size:
            raise NotMovedError(f"more than {self._limits.size >> 20} MiB would have to be copied")

    def check_time(self) -> None:
        """Raise NotMovedError if the time is up."""
        if time.monotonic() >= self._until:
            raise NotMovedError("it ran out of time")


def copy(
    access: Access,
    *,
    old: keep.Layer,
    new: keep.Layer,
    held: int | None,
    paths: Iterable[str],
    until: float,
    limits: Limits = Limits(),
) -> Mapping[str, str]:
    """Copy paths from the layer ``old`` to ``new``; return why each was not copied, ``KEPT`` if it was.

    The process ``held`` is at its first instruction, and its root is the layer ``new``; None: that is mounted at
    ``new.mounted_at``, for a container that was not started. ``limits`` are for all paths together. Raises OSError, or
    NotMovedError: nothing was copied.
    """
    runtime = access.proc / str(unix_sockets.listener(access.socket_path))
    if not old.mounted_at:
        layer_moves.wait_unmounted(runtime, (old.upper,), until=until)
    process, at = (runtime, new.mounted_at) if held is None else (access.proc / str(held), "/")
    budget = Budget(limits, until=until)
    with contextlib.ExitStack() as opened:
        source = layer_moves.kept(opened, _open(opened, runtime, old.upper))
        target = layer_moves.kept(opened, _open(opened, process, at))
        if not _is_mounted(target, process=process, at=at, upper=new.upper):
            raise NotMovedError("the new container's root was not found")
        return {path: copy_one(source, target, path, budget=budget) for path in paths}


def stored_layer(access: Access, *, root: str) -> keep.Layer | keep.NotKept:
    """Return the layer of a container of CRI-O's, which has its root mounted there. Raises OSError."""
    runtime = access.proc / str(unix_sockets.listener(access.socket_path))
    with contextlib.ExitStack() as opened:
        try:
            directory = layer_moves.kept(opened, _open(opened, runtime, posixpath.dirname(root)))
            lower = layer_moves.kept(opened, openat2.open_beneath(directory, _LOWER, flags=os.O_RDONLY | os.O_NOFOLLOW))
        except FileNotFoundError:
            return keep.NotKept(keep.NO_OVERLAY)
        text = kernel_files.read_open(lower, limit=_LONGEST_LOWER, name=_LOWER)
    return keep.stored_layer(root, lower=text.decode(errors="replace"))


def _open(opened: contextlib.ExitStack, process: Path, directory: str) -> int:
    """Open a directory as a process sees it."""
    root = layer_moves.kept(opened, os.open(process / "root", os.O_PATH | os.O_DIRECTORY))
    return openat2.open_in_root(root, directory, flags=DIRECTORY)


def copy_one(source: int, target: int, path: str, *, budget: Budget) -> str:
    """Copy one path from an upper directory to a root, given by descriptor; return why not, or ``KEPT``."""
    try:
        _copy(source, target, path.lstrip("/"), budget=budget)
    except NotMovedError as error:
        return str(error)
    except OSError as error:
        return layer_moves.reason(error)
    return KEPT


def _is_mounted(root: int, *, process: Path, at: str, upper: str) -> bool:
    """Return whether a descriptor is on a mount at that place of a process, an overlay with this upper directory."""
    opened = (kernel_files.read_bytes(f"/proc/self/fdinfo/{root}") or b"").split(b"\n")
    mount = next((line.split()[1] for line in opened if line.startswith(b"mnt_id:")), b"")
    needle = b"upperdir=" + os.fsencode(upper)
    mounts = kernel_files.read_bytes(process / "mountinfo", limit=layer_moves.MOUNTS_LIMIT) or b""
    for line in mounts.split(b"\n"):  # the kernel escapes no other end of a line in the paths of a pod's volumes
        fields = line.split(b" ")  # proc_pid_mountinfo(5)
        if fields[0] == mount and fields[4:5] == [os.fsencode(at)]:
            return layer_moves.is_mounted(needle, line + b"\n")
    return False


def _copy(source: int, target: int, path: str, *, budget: Budget) -> None:
    parent, name = posixpath.split(path)
    with contextlib.ExitStack() as opened:
        olds = layer_moves.parents(opened, source, parent)
        found = layer_moves.lstat(olds[-1], name)
        if found is None:
            raise NotMovedError(ABSENT)
        if not layer_moves.is_movable(found):
            raise NotMovedError(layer_moves.NO_KIND)
        if stat.S_ISCHR(found.st_mode) or layer_moves.exists(target, path):
            raise NotMovedError(OF_IMAGE)
        _make_aside(target)
        try:
            aside = layer_moves.kept(opened, openat2.open_beneath(target, _ASIDE, flags=DIRECTORY))
            _copy_entry(olds[-1], name, aside, _COPY, budget=budget, depth=0)
            new = layer_moves.made_like(opened, target, parent=parent, olds=olds)
            budget.check_time()
            os.rename(_COPY, name, src_dir_fd=aside, dst_dir_fd=new)
        finally:
            shutil.rmtree(_ASIDE, ignore_errors=True, dir_fd=target)


def _make_aside(target: int) -> None:
    try:
        os.mkdir(_ASIDE, 0o700, dir_fd=target)
    except FileExistsError:  # an agent was killed in the middle; the container has run nothing since
        shutil.rmtree(_ASIDE, ignore_errors=True, dir_fd=target)
        os.mkdir(_ASIDE, 0o700, dir_fd=target)


def _copy_entry(old: int, name: str, new: int, new_name: str, *, budget: Budget, depth: int) -> None:
    """Copy the file or directory of this name from the directory ``old`` into ``new``."""
    found = os.stat(name, dir_fd=old, follow_symlinks=False)
    budget.count(found)
    if stat.S_ISDIR(found.st_mode):
        _copy_directory(old, name, new, new_name, budget=budget, depth=depth)
    elif stat.S_ISREG(found.st_mode):
        _copy_file(old, name, new, new_name, budget=budget)
    elif stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=old), new_name, dir_fd=new)
        os.chown(new_name, found.st_uid, found.st_gid, dir_fd=new, follow_symlinks=False)
    else:
        raise NotMovedError(f"{name!r} in it is neither a directory, a file nor a link")


def _copy_directory(old: int, name: str, new: int, new_name: str, *, budget: Budget, depth: int) -> None:
    if depth >= _DEEPEST:
        raise NotMovedError(f"it is more than {_DEEPEST} directories deep")
    with contextlib.ExitStack() as opened:
        source = layer_moves.kept(opened, openat2.open_beneath(old, name, flags=DIRECTORY))
        _check_complete(source, name)
        os.mkdir(new_name, 0o700, dir_fd=new)
        target = layer_moves.kept(opened, openat2.open_beneath(new, new_name, flags=DIRECTORY))
        with os.scandir(source) as entries:
            for entry in entries:
                _copy_entry(source, entry.name, target, entry.name, budget=budget, depth=depth + 1)
        layer_moves.make_like(target, source)
        _keep_times(target, source)


def _copy_file(old: int, name: str, new: int, new_name: str, *, budget: Budget) -> None:
    with contextlib.ExitStack() as opened:
        reading = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
        source = layer_moves.kept(opened, openat2.open_beneath(old, name, flags=reading))
        _check_complete(source, name)
        writing = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        target = layer_moves.kept(opened, os.open(new_name, writing, 0o600, dir_fd=new))
        end = 0
        while (at := _data_after(source, end)) is not None:
            end = os.lseek(source, at, os.SEEK_HOLE)
            os.lseek(target, at, os.SEEK_SET)
            while sent := os.sendfile(target, source, at, min(_CHUNK, end - at)):
                at += sent
                budget.copied(sent)
        os.ftruncate(target, os.fstat(source).st_size)
        layer_moves.make_like(target, source)
        _keep_times(target, source)


def _data_after(source: int, at: int) -> int | None:
    """Return where the next data of a file begins; None if only a hole is left, or nothing (lseek(2))."""
    try:
        return os.lseek(source, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def _check_complete(source: int, name: str) -> None:
    if any(layer_moves.has(source, attribute) for attribute in _OF_LOWER):
        raise NotMovedError(f"the old container moved {name!r} of the image there")


def _keep_times(target: int, source: int) -> None:
    """Set the times of the original: caches compare them."""
    found = os.fstat(source)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
