"""The few inotify(7) calls needed to follow a regular file; the standard library has none.

epoll does not support regular files, and polling would cost power and time on every node.
"""

import ctypes
import os
from pathlib import Path

from kubemend.agent.sources import readiness

_IN_MODIFY = 0x002
_IN_ATTRIB = 0x004  # deletion of a file that is still open shows as this, by its link count
_IN_MOVE_SELF = 0x800
_EVENTS_BUFFER = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Reports that one file was written, truncated, moved or deleted. Raises OSError where it cannot be watched."""

    def __init__(self, path: Path) -> None:
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), path=path)
        try:
            events = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF
            _checked(_libc.inotify_add_watch(self._fd, os.fsencode(path), events), path=path)
        except OSError:
            self.close()
            raise

    async def changed(self) -> None:
        """Wait for a change of the file since the last call. The caller must find out what changed."""
        await readiness.readable(self._fd)
        os.read(self._fd, _EVENTS_BUFFER)

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)


def _checked(result: int, *, path: Path) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return result
