"""Identify the client on the control socket (unix(7), SO_PEERCRED)."""

import socket
import struct
from typing import Final

from aiohttp import web

_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


def uid(http: web.Request) -> int:
    """Return the user id of the client process."""
    assert http.transport is not None, "the request has just been read"
    peer = http.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(peer)
    return int(user)


def name(http: web.Request) -> str:
    """Return the client's name for conditions and logs."""
    return f"uid {uid(http)}"
