"""Prepare unix sockets that a process of the dev node serves, and the one on which a daemon reports its start."""

import asyncio
import contextlib
import socket as sockets
from collections.abc import Iterator
from pathlib import Path


def clear_way(socket: Path) -> None:
    """Create the socket's directory and remove the socket file of a process that was killed."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)


@contextlib.contextmanager
def notify_socket(path: Path) -> Iterator[sockets.socket]:
    """Listen where systemd would, while a daemon starts (sd_notify(3))."""
    path.unlink(missing_ok=True)
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as listener:
        listener.settimeout(0)
        listener.bind(str(path))
        yield listener
    path.unlink()


async def until_ready(notified: sockets.socket) -> None:
    """Return once the daemon has sent READY=1; other messages (status, reloading) are ignored."""
    loop = asyncio.get_running_loop()
    while b"READY=1" not in (await loop.sock_recv(notified, 4096)).splitlines():
        pass
