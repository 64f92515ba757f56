"""Identify the peer of a unix socket (unix(7))."""

import os
import select
import socket
import struct
from dataclasses import dataclass
from typing import Final

_SECONDS = 1.0
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred
_SO_PEERPIDFD: Final = 77  # Linux 6.5; Python has no name for it


@dataclass(frozen=True, slots=True)
class Credentials:
    """The process that has connected, or listens, and its effective user and group at that time."""

    pid: int
    uid: int
    gid: int


def credentials(connection: socket.socket) -> Credentials:
    """Return the peer of a connected socket. Its process may have ended, or passed the socket on. Raises OSError."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(raw))


def peer_has_ended(connection: socket.socket) -> bool | None:
    """Return whether the process that has connected has ended, so that its pid may be another's by now.

    None before Linux 6.5, where that is unknown.
    """
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i"))
    except ProcessLookupError:
        return True
    except OSError:
        return None
    (descriptor,) = struct.unpack("i", raw)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(descriptor)


def listener(path: str) -> int:
    """Return the pid of the process that listens on the socket. Blocks for a second at most. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        return credentials(connection).pid
