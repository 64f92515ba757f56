"""Empty a container's compile cache: move its directory aside, then remove that. Blocking; works by file descriptor.

The rename takes one call, so the successor never waits for a large cache. The moved directory stays in the pod's
volume, counts for its size, and is deleted with the pod at the latest.

The pod controls the content: links, mounts, names in any encoding, millions of files, any depth, and other containers
that write in the meantime. So nothing is opened through a link or across a mount, each call is bounded in time and
entries, and deep directories are moved to the top of the tree instead of being followed down.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kubemend.agent.restart import cache
from kubemend.common import openat2, unix_sockets

ASIDE = ".kubemend-emptied-"
"""Prefix of the names of directories that were moved aside."""
_DEEPEST = 32
_REASONS_SHOWN = 3
_READABLE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_PATH_ONLY = os.O_PATH | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the node's directories as the runtime behind a socket sees them; its process is in ``proc``."""

    socket_path: str
    proc: Path


@dataclass(slots=True)
class Removed:
    """The result of a removal.

    ``entries`` counts the removed files and directories; ``left`` are reasons why some remain. ``cut_short`` is
    True if the bounds were reached before the end.
    """

    entries: int = 0
    left: list[str] = field(default_factory=list)
    cut_short: bool = False

    @property
    def is_complete(self) -> bool:
        """Return whether nothing remains."""
        return not (self.left or self.cut_short)

    def leave(self, name: str, error: OSError) -> None:
        """Record an entry that cannot be removed."""
        if len(self.left) < _REASONS_SHOWN:
            self.left.append(f"{name!r}: {error.strerror or error}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one call: a monotonic time, which all processes of a node share, and a number of entries."""

    until: float
    entries: int = 100_000

    def reached(self, removed: Removed) -> bool:
        """Return whether to stop."""
        return removed.entries >= self.entries or time.monotonic() >= self.until


def empty(access: Access, place: cache.Place, *, bounds: Bounds) -> Removed | None:
    """Move a container's directory aside and remove what can be removed at once; None if there is no directory.

    No container of that name may run. Nothing is moved after ``bounds.until``, because the directory may be the
    successor's then. Raises OSError, or TimeoutError; both mean that the directory is still in its place.
    """
    with _opened(access, place.volume) as volume:
        if time.monotonic() >= bounds.until:
            raise TimeoutError("it ran out of time")
        aside = f"{ASIDE}{secrets.token_hex(8)}"
        try:
            os.rename(place.container, aside, src_dir_fd=volume, dst_dir_fd=volume)
        except FileNotFoundError:
            return None
        return _remove(volume, [aside], bounds=bounds)


def remove(access: Access, volume: cache.Volume, *, bounds: Bounds) -> Removed:
    """Remove what was moved aside in a volume, within bounds. Raises OSError."""
    try:
        with _opened(access, volume) as opened, os.scandir(opened) as entries:
            return _remove(opened, (each.name for each in entries), bounds=bounds)
    except FileNotFoundError:
        return Removed()  # the pod has gone


@contextlib.contextmanager
def _opened(access: Access, volume: cache.Volume) -> Iterator[int]:
    """Yield the descriptor of the volume. Raises OSError.

    Kubelet's own directories may lie behind links and on file systems of their own. Below them nothing may: a volume of
    another kind is a mount.
    """
    with contextlib.ExitStack() as opened:

        def kept(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        runtime = access.proc / str(unix_sockets.listener(access.socket_path))
        root = kept(os.open(runtime / "root", _PATH_ONLY))
        pods = kept(openat2.open_in_root(root, volume.pods, flags=_PATH_ONLY))
        yield kept(openat2.open_beneath(pods, volume.path, flags=_READABLE))


def _remove(volume: int, names: Iterable[str], *, bounds: Bounds) -> Removed:
    """Remove those of the volume's entries that were moved aside."""
    removed = Removed()
    for name in names:
        if bounds.reached(removed):
            removed.cut_short = True
            break
        if not name.startswith(ASIDE):
            continue
        try:
            _tree(volume, name, removed=removed, bounds=bounds)
        except FileNotFoundError:
            continue  # kubelet, or another container
        except OSError as error:
            removed.leave(name, error)
    return removed


def _tree(volume: int, name: str, *, removed: Removed, bounds: Bounds) -> None:
    """Remove an entry of the volume, and all below it. Raises OSError."""
    if _unlinked(volume, name):
        removed.entries += 1
        return
    top = openat2.open_beneath(volume, name, flags=_READABLE)
    try:
        there = len(removed.left)
        emptier = _Emptier(top, removed=removed, bounds=bounds)
        while emptier.goes_on:
            del removed.left[there:]  # what remains is tried once more
            emptier.pass_over()
        if removed.cut_short or len(removed.left) > there:
            return
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=volume)
    removed.entries += 1


class _Emptier:
    """Empties a directory in passes. Each pass moves too deep directories to the top, for the next pass."""

    def __init__(self, top: int, *, removed: Removed, bounds: Bounds) -> None:
        self._top = top
        self._removed = removed
        self._bounds = bounds
        self._moved = False
        self.goes_on = True

    def pass_over(self) -> None:
        """Remove what can be removed. ``goes_on`` is whether another pass may remove more."""
        self._moved = False
        self._directory(self._top, depth=0)
        self.goes_on = self._moved and not self._removed.cut_short

    def _directory(self, opened: int, *, depth: int) -> None:
        with os.scandir(opened) as entries:
            for entry in entries:
                if self._bounds.reached(self._removed):
                    self._removed.cut_short = True
                    return
                try:
                    self._entry(opened, entry.name, depth=depth)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._removed.leave(entry.name, error)

    def _entry(self, parent: int, name: str, *, depth: int) -> None:
        if not _unlinked(parent, name):
            if depth >= _DEEPEST:
                os.rename(name, secrets.token_hex(8), src_dir_fd=parent, dst_dir_fd=self._top)
                self._moved = True
                return
            below = openat2.open_beneath(parent, name, flags=_READABLE)
            try:
                self._directory(below, depth=depth + 1)
            finally:
                os.close(below)
            if self._removed.cut_short:
                return
            os.rmdir(name, dir_fd=parent)
        self._removed.entries += 1


def _unlinked(parent: int, name: str) -> bool:
    """Remove an entry unless it is a directory. Raises OSError."""
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        return False
    return True
