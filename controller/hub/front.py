"""The hub's TCP port. It lets connections in or closes them, and hands their bytes on to gRPC as they are.

gRPC bounds connections in all, but not those of one address, and not the time until one is somebody's. What is refused
here has cost neither a TLS session nor gRPC's buffers. gRPC listens behind it on an abstract Unix socket (unix(7)):
each connection is bound to a name of its own there, by which a stream's peer is found again among the visitors.
"""

import asyncio
import itertools
import secrets
import socket
from typing import Any, Final

import structlog

from common import crowds, process
from controller.hub.metrics import ConnectionEnd
from controller.hub.visitors import Visitors

log = structlog.get_logger(__name__)

_CHUNK: Final = 16 * 1024
_WAITING_BYTES: Final = 16 * 1024
"""What is kept of one connection, each way, before its other end is read no further."""
_BACKLOG: Final = 1024
_FILES_EACH: Final = 3
"""The visitor's socket, and the two ends of the one behind it."""
_OTHER_FILES: Final = 512
_buffer: Final = memoryview(bytearray(_CHUNK))
"""For all: what is read into it is passed on before anything else is read."""


class _End(asyncio.BufferedProtocol):
    """One end of a pair of sockets. What comes in here goes out at the ``other`` one, no faster than that takes it."""

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
        self.heard(bytes(_buffer[:nbytes]))

    def heard(self, data: bytes) -> None:
        """Pass on what has been read."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()


class _Outer(_End):
    """The end that a peer has connected to: a ``visitors.Visit``. gRPC hears of it with its first bytes."""

    def __init__(self, front: "Front", name: str) -> None:
        self.name = f"unix-abstract:{name}"
        self.address = ""
        self.bound_to = f"\0{name}"
        self._front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = crowds.address_of(transport.get_extra_info("peername"))
        if not self._front.visitors.come(self):
            self.end()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._front.visitors.gone(self)

    def heard(self, data: bytes) -> None:
        if self.other is not None:
            super().heard(data)
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
            self._front.hand_on(self, first=data)

    def end(self) -> None:
        """Close it at once, whatever is on its way."""
        if self.transport is not None:
            self.transport.abort()


class _Inner(_End):
    """The end that gRPC has; ``first`` is what the peer has said already."""

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
    """Listens for the hub. ``behind`` is where gRPC has to listen."""

    def __init__(self, visitors: Visitors) -> None:
        self.visitors = visitors
        self._name = f"kubemend-hub-{secrets.token_hex(8)}"
        self.behind = f"unix-abstract:{self._name}"
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._dialling: set[asyncio.Task[Any]] = set()

    async def start(self, host: str, port: int) -> int:
        """Begin to listen; return the port. Raises RuntimeError when that cannot be."""
        try:
            listening = _listening(host, port)
        except OSError as error:
            raise RuntimeError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        wanted = self.visitors.caps.connections * _FILES_EACH + _OTHER_FILES
        if (files := process.open_many_files()) < wanted:
            log.warning("hub.few_files", limit=files, wanted=wanted)
        self._server = await asyncio.get_running_loop().create_server(self._outer, sock=listening, backlog=_BACKLOG)
        return int(listening.getsockname()[1])

    async def stop(self) -> None:
        """Listen no more, and close what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._dialling:
            task.cancel()
        self.visitors.end_all()

    def hand_on(self, outer: _Outer, *, first: bytes) -> None:
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
            behind.connect(f"\0{self._name}")  # at once, or not at all: a full queue is EAGAIN (unix(7))
            await asyncio.get_running_loop().create_unix_connection(lambda: _Inner(outer, first), sock=behind)
        except OSError as error:
            behind.close()
            outer.end()
            self.visitors.metrics.connection_ended(ConnectionEnd.FAILED)
            log.debug("hub.not_handed_on", peer=outer.address, error=error.strerror or str(error))
        except asyncio.CancelledError:
            behind.close()
            raise


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; one for both families where the host is any address."""
    if host in ("", "::") and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, address = found[0][0], found[0][4]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
