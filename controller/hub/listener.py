"""The hub's TCP port: accept or close connections, and forward their bytes to gRPC unchanged.

gRPC limits connections in all, but neither those of one address, nor the time until a connection is authenticated. A
connection that is refused here has cost neither a TLS session nor gRPC's buffers. gRPC listens behind it on an abstract
Unix socket (unix(7)). Each connection is bound to a name of its own there, by which a stream's peer is matched with its
connection here.
"""

import asyncio
import itertools
import secrets
import socket
from typing import Any, Final

import structlog

from kubemend.common import fair_room, process
from kubemend.common.web import ListenError
from kubemend.controller.hub.metrics import ConnectionEnd
from kubemend.controller.hub.unauthenticated import Visitors

log = structlog.get_logger(__name__)

_CHUNK: Final = 16 * 1024
_WAITING_BYTES: Final = 16 * 1024
"""Bytes buffered per connection and direction before reading from its other end pauses."""
_BACKLOG: Final = 1024
_FILES_EACH: Final = 3
"""The peer's socket, and the two ends of the one behind it."""
_OTHER_FILES: Final = 512
_buffer: Final = memoryview(bytearray(_CHUNK))
"""Shared by all connections: data read into it is forwarded before anything else is read."""


class _End(asyncio.BufferedProtocol):
    """One end of a pair of sockets. Data received here is sent to ``other``, at the speed at which that takes it."""

    other: "_End | None" = None
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=_WAITING_BYTES)

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def get_buffer(self, _: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received(bytes(_buffer[:nbytes]))

    def received(self, data: bytes) -> None:
        """Forward data that was read."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()


class _Outer(_End):
    """The end that a peer has connected to: an ``unauthenticated.Visit``.

    It is connected to gRPC at its first bytes.
    """

    def __init__(self, front: "Front", name: str) -> None:
        self.name = f"unix-abstract:{name}"
        self.address = ""
        self.bound_to = f"\0{name}"
        self._front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = fair_room.address_of(transport.get_extra_info("peername"))
        if not self._front.visitors.come(self):
            self.end()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._front.visitors.gone(self)

    def received(self, data: bytes) -> None:
        if self.other is not None:
            super().received(data)
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._front.transfer_to(self, first=data)

    def end(self) -> None:
        """Close it at once and drop pending data."""
        if self.transport is not None:
            self.transport.abort()


class _Inner(_End):
    """The end that gRPC has; ``first`` are the bytes that the peer has already sent."""

    def __init__(self, outer: _Outer, first: bytes) -> None:
        self.other = outer
        self._first = first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        outer = self.other
        if outer is None or outer.transport is None or outer.transport.is_closing():
            transport.close()
            return
        outer.other = self
        assert self.transport is not None
        self.transport.write(self._first)
        self._first = b""
        outer.transport.resume_reading()


class Front:
    """Listen for the hub. ``behind`` is the address on which gRPC must listen."""

    def __init__(self, visitors: Visitors) -> None:
        self.visitors = visitors
        self._name = f"kubemend-hub-{secrets.token_hex(8)}"
        self.behind = f"unix-abstract:{self._name}"
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._dialling: set[asyncio.Task[Any]] = set()

    async def start(self, host: str, port: int) -> int:
        """Begin to listen; return the port. Raises ListenError."""
        try:
            listening = _listening(host, port)
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --hub-address"
            ) from error
        wanted = self.visitors.caps.connections * _FILES_EACH + _OTHER_FILES
        if (files := process.open_many_files()) < wanted:
            log.warning("hub.file_limit_low", limit=files, wanted=wanted)
        self._server = await asyncio.get_running_loop().create_server(self._outer, sock=listening, backlog=_BACKLOG)
        return int(listening.getsockname()[1])

    async def stop(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._dialling:
            task.cancel()
        self.visitors.end_all()

    def transfer_to(self, outer: _Outer, *, first: bytes) -> None:
        """Connect a peer to gRPC."""
        task = asyncio.get_running_loop().create_task(self._connect(outer, first), name="hub-front")
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def _outer(self) -> _Outer:
        return _Outer(self, f"{self._name}-{next(self._numbers)}")

    async def _connect(self, outer: _Outer, first: bytes) -> None:
        behind = socket.socket(socket.AF_UNIX)
        try:
            behind.settimeout(0)
            behind.bind(outer.bound_to)
            behind.connect(f"\0{self._name}")  # it succeeds at once or fails: a full queue is EAGAIN (unix(7))
            await asyncio.get_running_loop().create_unix_connection(lambda: _Inner(outer, first), sock=behind)
        except OSError as error:
            behind.close()
            outer.end()
            self.visitors.metrics.connection_ended(ConnectionEnd.FAILED)
            log.debug("hub.forward_failed", peer=outer.address, error=error.strerror or str(error))
        except asyncio.CancelledError:
            behind.close()
            raise


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; one for both address families if the host is any address."""
    if host in ("", "::") and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, address = found[0][0], found[0][4]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
