"""Netlink sockets that only listen (netlink(7)), and uevents, which one of them receives.

Messages dropped by the kernel raise an error of their own. Uevents are the kernel's messages when devices come and go
(``lib/kobject_uevent.c``).
"""

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubemend.agent.sources import readiness

KERNEL = 0
"""The kernel's port; messages from other senders are ignored."""

_SO_RCVBUFFORCE = 33
_MESSAGE_MAX = 64 * 1024
_BATCH = 64
_CLONE_NEWNET = 0x4000_0000

_libc = ctypes.CDLL(None, use_errno=True)


class OverflowedError(Exception):
    """An unknown number of messages was lost: the state that they described must be read again."""


class Listener:
    """A netlink socket that is a member of multicast groups, read on the event loop."""

    def __init__(self, protocol: int, *, groups: int, receive_buffer: int) -> None:
        """Open the socket with a buffer of ``receive_buffer`` bytes. Raises OSError."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, protocol)
        try:
            self._make_room(receive_buffer)
            self._socket.bind((0, groups))
        except OSError:
            self.close()
            raise

    def _make_room(self, size: int) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
        except PermissionError:  # without NET_ADMIN the kernel's general limit applies
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    async def wait(self) -> None:
        """Wait until there is something to read."""
        await readiness.readable(self._socket.fileno())

    def read(self) -> Iterator[bytes]:
        """Yield received messages, at most a batch. Raises OverflowedError, and OSError if the socket fails."""
        for _ in range(_BATCH):
            try:
                message, sender = self._socket.recvfrom(_MESSAGE_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    raise OverflowedError from error
                raise
            if sender[0] == KERNEL:
                yield message

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def enter_network_namespace(path: Path) -> None:
    """Move this thread permanently into a network namespace: sockets that it opens belong there. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(fd, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(fd)


_NETLINK_KOBJECT_UEVENT = 15
_GROUP_KERNEL = 0x1  # udevd's own messages, in group 2, come later and contain no more


@dataclass(frozen=True, slots=True)
class Uevent:
    """One message: ``remove`` of ``/devices/pci0000:00/0000:00:03.0``, in the subsystem ``pci``."""

    action: str
    path: str
    subsystem: str


def listen_uevents(*, receive_buffer: int) -> Listener:
    """Open a socket that receives every uevent of the host. Raises OSError."""
    return Listener(_NETLINK_KOBJECT_UEVENT, groups=_GROUP_KERNEL, receive_buffer=receive_buffer)


def parse_uevent(message: bytes) -> Uevent | None:
    """Return the uevent, or None if the message is not one."""
    head, *lines = message.decode(errors="replace").split("\0")
    action, at, path = head.partition("@")
    if not at:
        return None
    values = dict(line.partition("=")[::2] for line in lines)
    return Uevent(action=action, path=path, subsystem=values.get("SUBSYSTEM", ""))
