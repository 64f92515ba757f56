"""Identify the peer of a unix socket (unix(7))."""

import socket
import struct

_SECONDS = 1.0


def listener(path: str) -> int:
    """Return the pid of the process that listens on the socket. Blocks for a second at most. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)
