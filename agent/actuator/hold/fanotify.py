"""The fanotify calls that holds need (fanotify(7)): permission events before a file is executed or opened."""

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CLASS_NOTIF, _CLASS_CONTENT, _CLOEXEC = 0x0, 0x4, 0x1  # linux/fanotify.h
_MARK_ADD, _MARK_FLUSH, _MARK_FILESYSTEM = 0x1, 0x80, 0x100
_MARK_MOUNT = 0x10
_OPEN_PERM = 0x10000
_OPEN_EXEC, _OPEN_EXEC_PERM = 0x1000, 0x40000
_ALLOW, _DENY = 0x1, 0x2
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata
_ANSWER = struct.Struct("=iI")  # struct fanotify_response
_MOST_READ = 4096
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class PermissionEvent:
    """A process that is blocked until it is answered. ``file`` is an open descriptor of the file to execute."""

    file: int
    pid: int


def new_group() -> int:
    """Return the descriptor of a new group for permission events. Raises OSError."""
    return _new_group(_CLASS_CONTENT)


def new_listener() -> int:
    """Return the descriptor of a new group for notifications, which block no process. Raises OSError."""
    return _new_group(_CLASS_NOTIF)


def _new_group(kind: int) -> int:
    group: int = _libc.fanotify_init(kind | _CLOEXEC, os.O_RDONLY | os.O_CLOEXEC)
    if group < 0:
        raise _error("fanotify_init")
    os.set_blocking(group, False)
    return group


def mark(group: int, root: Path) -> None:
    """Request a permission event for every execution on the filesystem mounted at ``root``. Raises OSError."""
    path = os.fsencode(root)
    how = _MARK_ADD | _MARK_FILESYSTEM
    if _libc.fanotify_mark(group, how, ctypes.c_uint64(_OPEN_EXEC_PERM), ctypes.c_int(_AT_FDCWD), path) < 0:
        raise _error(str(root))


def mark_file(group: int, file: Path) -> None:
    """Request a permission event for every execution of one file. Raises OSError."""
    _mark_file(group, file, _OPEN_EXEC_PERM)


def report_file(group: int, file: Path) -> None:
    """Request a notification for every execution of one file. Raises OSError."""
    _mark_file(group, file, _OPEN_EXEC)


def hold_mount(group: int, file: int) -> None:
    """Request a permission event for every opening on the mount on which an open file lies. Raises OSError.

    The same file on another mount of the file system is not held. O_PATH is enough for ``file``.
    """
    _mark_file(group, Path(f"/proc/self/fd/{file}"), _OPEN_PERM, how=_MARK_MOUNT)


def hold_file(group: int, file: int) -> None:
    """Request a permission event for every opening of a file, given as it is open. Raises OSError."""
    _mark_file(group, Path(f"/proc/self/fd/{file}"), _OPEN_PERM)


def _mark_file(group: int, file: Path, events: int, *, how: int = 0) -> None:
    path = os.fsencode(file)
    if _libc.fanotify_mark(group, _MARK_ADD | how, ctypes.c_uint64(events), ctypes.c_int(_AT_FDCWD), path) < 0:
        raise _error(str(file))


def flush(group: int) -> None:
    """Remove all marks of a group. Waits some 10 ms for the kernel."""
    _libc.fanotify_mark(group, _MARK_FLUSH | _MARK_FILESYSTEM, ctypes.c_uint64(0), ctypes.c_int(_AT_FDCWD), None)


def permission_events(group: int) -> Iterator[PermissionEvent]:
    """Yield the pending permission events. Raises BlockingIOError if there are none."""
    for size, _, _, _, _, file, pid in _EVENT.iter_unpack(os.read(group, _MOST_READ)):
        assert size == _EVENT.size
        yield PermissionEvent(file, pid)


def notified(group: int) -> Iterator[int]:
    """Yield the processes of pending notifications. Raises BlockingIOError if there are none."""
    while True:
        for size, _, _, _, _, file, pid in _EVENT.iter_unpack(os.read(group, _MOST_READ)):
            assert size == _EVENT.size
            if file >= 0:  # below 0: the queue overflowed and events were dropped
                os.close(file)
                yield pid


def allow(group: int, file: int) -> None:
    """Allow an execution, and close the file. Raises FileNotFoundError if the process was killed in the meantime."""
    _answer(group, file, _ALLOW)


def deny(group: int, file: int) -> None:
    """Have an execution fail with EPERM, and close the file. Raises FileNotFoundError as ``allow`` does."""
    _answer(group, file, _DENY)


def _answer(group: int, file: int, answer: int) -> None:
    try:
        os.write(group, _ANSWER.pack(file, answer))
    finally:
        os.close(file)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
