"""Links as reported by rtnetlink(7), decoded with pyroute2's codec.

The codec is imported when the first link is read: a node without NICs does not need it.
"""

import errno
import functools
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kubemend.agent.sources.network import sockets
from kubemend.common import footprint

_GROUP_LINK = 0x1  # RTMGRP_LINK
_ERROR, _DONE, _NEWLINK, _DELLINK, _GETLINK = 0x2, 0x3, 16, 17, 18
_REQUEST, _DUMP = 0x1, 0x300
_DUMP_INTERRUPTED = 0x10  # NLM_F_DUMP_INTR: links changed during the dump, so some may be missing
_UP, _RUNNING, _LOWER_UP = 0x1, 0x40, 0x1_0000  # netdevice(7)
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR_CODE = struct.Struct("=i")
_IFLA_IFNAME = 3
_BUFFER = 64 * 1024
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Link:
    """One netdev in the kernel's view.

    ``up`` is carrier and operational state together. ``losses`` counts lost carriers (Linux 4.16 and later): the kernel
    reports changes at most once a second, but counts all.
    """

    name: str
    index: int
    admin_up: bool
    up: bool
    losses: int | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class RawLink:
    """A message about one link, decoded only as far as needed to decide whether it matters."""

    data: bytes
    index: int
    name: str

    def decode(self) -> Link:
        """Decode the whole message."""
        message = _ifinfmsg()(self.data)
        message.decode()
        flags = int(message["flags"])
        losses = message.get_attr("IFLA_CARRIER_DOWN_COUNT")
        return Link(
            name=self.name,
            index=self.index,
            admin_up=bool(flags & _UP),
            up=bool(flags & _RUNNING and flags & _LOWER_UP),
            losses=int(losses) if losses is not None else None,
            gone=message["header"]["type"] == _DELLINK,
        )


class ListingError(Exception):
    """The kernel did not list the links; the message gives the reason."""


def listen(*, receive_buffer: int) -> sockets.Listener:
    """Open a socket that receives every link change in this thread's network namespace. Raises OSError."""
    return sockets.Listener(socket.NETLINK_ROUTE, groups=_GROUP_LINK, receive_buffer=receive_buffer)


def raw_links(data: bytes) -> Iterator[RawLink]:
    """Yield the links in one packet. Messages that are not about links are skipped."""
    for kind, _, message in _messages(data):
        if kind in (_NEWLINK, _DELLINK) and (link := _raw(message)) is not None:
            yield link


def links() -> tuple[RawLink, ...]:
    """List the links of this thread's network namespace. Blocks while the kernel waits for its lock on all links.

    Raises ListingError, and OSError.
    """
    for _ in range(_TRIES):
        try:
            return tuple(_dump())
        except _InterruptedDumpError:
            continue
    raise ListingError("links change faster than they can be listed")


class _InterruptedDumpError(Exception):
    """The list is incomplete."""


def _dump() -> list[RawLink]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as asking:
        asking.bind((0, 0))
        request = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        asking.send(_HEADER.pack(_HEADER.size + len(request), _GETLINK, _REQUEST | _DUMP, 1, 0) + request)
        return list(_answers(iter(lambda: asking.recv(_BUFFER), b"")))


def _answers(packets: Iterable[bytes]) -> Iterator[RawLink]:
    for packet in packets:
        for kind, flags, message in _messages(packet):
            if flags & _DUMP_INTERRUPTED:
                raise _InterruptedDumpError
            if kind == _DONE:
                return
            if kind == _ERROR:
                (number,) = _ERROR_CODE.unpack_from(message, _HEADER.size)
                raise ListingError(f"the kernel does not list its links: {os.strerror(-number)}")
            if kind == _NEWLINK and (link := _raw(message)) is not None:
                yield link
    raise OSError(errno.EPIPE, "the kernel's list of links ends early")


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (type, flags, message) for each message of a packet; a broken message ends it."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            return
        yield kind, flags, data[offset : offset + length]
        offset += -(-length // 4) * 4


def _raw(message: bytes) -> RawLink | None:
    """Return the link by its index and name; None for an incomplete message or one that is not about a link."""
    offset = _HEADER.size + _LINK.size
    if len(message) < offset:
        return None
    family, _, index, _, _ = _LINK.unpack_from(message, _HEADER.size)
    if family != socket.AF_UNSPEC:  # a bridge reports a removed port in the same way as a deleted link
        return None
    while offset + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, offset)
        if length < _ATTRIBUTE.size:
            return None
        if kind == _IFLA_IFNAME:  # the kernel writes it first
            name = message[offset + _ATTRIBUTE.size : offset + length].rstrip(b"\0")
            return RawLink(message, index, name.decode(errors="replace"))
        offset += -(-length // 4) * 4
    return None


@functools.cache
def _ifinfmsg() -> Any:
    """Return the codec without the rest of pyroute2: 1.2 MB instead of 6.1."""
    with footprint.import_without_package("pyroute2"):
        from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    return ifinfmsg
