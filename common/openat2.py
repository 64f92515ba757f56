"""Open paths inside an untrusted tree, such as a container's root (openat2(2), Linux 5.6)."""

import ctypes
import errno
import os

_OPENAT2 = 437  # the same on x86-64 and arm64
_NO_MAGIC_LINKS, _IN_ROOT = 0x02, 0x10  # linux/openat2.h
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
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _IN_ROOT | _NO_MAGIC_LINKS)
    for _ in range(_TRIES):
        opened = _libc.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if opened >= 0:
            return int(opened)
        if (number := ctypes.get_errno()) != errno.EAGAIN:  # EAGAIN: something was renamed during the lookup
            break
    raise OSError(number, os.strerror(number), path)
