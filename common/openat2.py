"""Open paths inside an untrusted tree, such as a container's root (openat2(2), Linux 5.6)."""

import ctypes
import errno
import os

_OPENAT2 = 437  # the same on x86-64 and arm64
_NO_XDEV, _NO_MAGIC_LINKS, _NO_SYMLINKS, _BENEATH, _IN_ROOT = 0x01, 0x02, 0x04, 0x08, 0x10  # linux/openat2.h
_TRIES = 16

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_in_root(root: int, path: str, *, flags: int) -> int:
    """Open ``path`` as a process would whose root is the directory ``root``; return the file descriptor.

    No link and no ``..`` leads out of the tree, even if its owner changes it during the call. With O_PATH nothing is
    opened that could block or have an effect (FIFOs, devices). A file system that hangs hangs the caller.

    Raises OSError; ENOSYS where the kernel is too old.
    """
    return _open(root, path, flags=flags, resolve=_IN_ROOT | _NO_MAGIC_LINKS)


def open_beneath(directory: int, path: str, *, flags: int) -> int:
    """Open ``path`` below the directory, through no link and onto no mount; return the file descriptor.

    Unlike the device of a file, this also recognises a bind mount of the same file system. Raises OSError: ELOOP for a
    link, EXDEV for a mount or a path that leads out; ENOSYS where the kernel is too old.
    """
    return _open(directory, path, flags=flags, resolve=_NO_XDEV | _NO_MAGIC_LINKS | _NO_SYMLINKS | _BENEATH)


def _open(directory: int, path: str, *, flags: int, resolve: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    for _ in range(_TRIES):
        opened = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(directory),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if opened >= 0:
            return int(opened)
        if (number := ctypes.get_errno()) != errno.EAGAIN:  # EAGAIN: something was renamed during the lookup
            break
    raise OSError(number, os.strerror(number), path)
