"""Implement as much of HTTP/2 and gRPC as agents' streams need (RFC 9113; gRPC's PROTOCOL-HTTP2.md), on a TLS
socket.

A real client, but a cheap one: simulated agents take their CPU time from the hub on the same cores. A thousand of
gRPC's own clients cost as much as the hub under measurement.
"""

import enum
import socket
import ssl
import struct
from collections.abc import Callable, Iterator

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_ACK = 0x1
_END_HEADERS = 0x4
_INITIAL_WINDOW_SIZE = 0x4
_HEAD = 9
_PREFIX = 5
"""Bytes before each message: whether it is compressed, and its length."""
_READ = 16384
DEFAULT_WINDOW = 65535
WIDE_WINDOW = 2**30
"""So large that no window must ever be granted."""


class Frame(enum.IntEnum):
    """Name the frame types."""

    DATA = 0x0
    HEADERS = 0x1
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8


class Stream:
    """Represent one stream of messages on a connection; ``hear`` takes each message that is received."""

    def __init__(self, connection: "Connection", number: int, hear: Callable[[bytes], None]) -> None:
        self.hear = hear
        self.credit = DEFAULT_WINDOW
        self._connection = connection
        self._number = number
        self._messages = b""

    def send(self, message: bytes) -> None:
        """Send a message. Raises RuntimeError when the server has granted too little: it never should have."""
        self._connection.send(self._number, b"\0" + struct.pack(">I", len(message)) + message)

    def grant(self, count: int) -> None:
        """Let the server send ``count`` more bytes."""
        self._connection.grant(self._number, count)

    def take(self, data: bytes) -> None:
        """Process received bytes."""
        self._messages += data
        while len(self._messages) >= _PREFIX:
            end = _PREFIX + int.from_bytes(self._messages[1:_PREFIX], "big")
            if len(self._messages) < end:
                return
            message, self._messages = self._messages[_PREFIX:end], self._messages[end:]
            self.hear(message)


class Connection:
    """Hold one connection with its streams.

    ``window`` is the number of bytes the server may send ungranted on each. The socket does not block: call ``read``
    whenever it is readable.
    """

    def __init__(self, address: tuple[str, int], *, tls: ssl.SSLContext, window: int = WIDE_WINDOW) -> None:
        plain = socket.create_connection(address)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(0)
        self._socket = tls.wrap_socket(plain, server_hostname=address[0], do_handshake_on_connect=False)
        self._authority = address[0]
        self._open = False
        self._in = b""
        self._credit = DEFAULT_WINDOW
        self._streams: dict[int, Stream] = {}
        self._out = bytearray(_PREFACE + _frame(Frame.SETTINGS, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window)))
        self._out += _frame(Frame.WINDOW_UPDATE, struct.pack(">I", WIDE_WINDOW))
        self.ended = False
        self._shake_hands()

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self.ended = True
        self._socket.close()

    def open(self, *, path: str, token: str, hear: Callable[[bytes], None]) -> Stream:
        """Open a stream."""
        number = 2 * len(self._streams) + 1
        self._streams[number] = made = Stream(self, number, hear)
        headers = _headers(path=path, authority=self._authority, token=token)
        self._out += _frame(Frame.HEADERS, headers, flags=_END_HEADERS, stream=number)
        self._flush()
        return made

    def send(self, stream: int, data: bytes) -> None:
        """Send data on a stream. Raises RuntimeError when the server has granted too little."""
        self._credit -= len(data)
        self._streams[stream].credit -= len(data)
        if min(self._credit, self._streams[stream].credit) < 0:
            raise RuntimeError("the hub grants too little to send a few bytes")
        self._out += _frame(Frame.DATA, data, stream=stream)
        self._flush()

    def grant(self, stream: int, count: int) -> None:
        """Let the server send ``count`` more bytes on a stream."""
        self._out += _frame(Frame.WINDOW_UPDATE, struct.pack(">I", count), stream=stream)
        self._flush()

    def read(self) -> None:
        """Process everything received. Sets ``ended`` when the server has ended a stream."""
        if not self._open and not self._shake_hands():
            return
        for kind, flags, stream, payload in self._frames():
            match kind:
                case Frame.DATA:
                    self._streams[stream].take(payload)
                case Frame.SETTINGS if not flags & _ACK:
                    self._out += _frame(Frame.SETTINGS, b"", flags=_ACK)
                case Frame.PING if not flags & _ACK:
                    self._out += _frame(Frame.PING, payload, flags=_ACK)
                case Frame.WINDOW_UPDATE if stream:
                    self._streams[stream].credit += int.from_bytes(payload, "big")
                case Frame.WINDOW_UPDATE:
                    self._credit += int.from_bytes(payload, "big")
                case Frame.RST_STREAM | Frame.GOAWAY:
                    self.ended = True
        self._flush()

    def _shake_hands(self) -> bool:
        try:
            self._socket.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        self._open = True
        self._flush()
        return True

    def _flush(self) -> None:
        """Send pending bytes. A full socket buffer keeps the rest until the next call: agents send little."""
        while self._open and self._out and not self.ended:
            try:
                sent = self._socket.send(self._out)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                self.ended = True
                return
            del self._out[:sent]

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield each frame's type, flags, stream and payload."""
        while data := self._received():
            self._in += data
            at = 0
            while len(self._in) - at >= _HEAD:
                length = int.from_bytes(self._in[at : at + 3], "big")
                if len(self._in) - at < _HEAD + length:
                    break
                stream = int.from_bytes(self._in[at + 5 : at + _HEAD], "big")
                yield self._in[at + 3], self._in[at + 4], stream, self._in[at + _HEAD : at + _HEAD + length]
                at += _HEAD + length
            self._in = self._in[at:]
            if not self._socket.pending():
                return

    def _received(self) -> bytes:
        try:
            data = self._socket.recv(_READ)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError:
            data = b""
        self.ended = self.ended or not data
        return data


def tls(bundle: str) -> ssl.SSLContext:
    """Return a client's TLS settings that trust these CAs only."""
    context = ssl.create_default_context(cadata=bundle)
    context.set_alpn_protocols(["h2"])
    return context


def _frame(kind: Frame, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _headers(*, path: str, authority: str, token: str) -> bytes:
    """Return a request's header block: every field literal, none indexed (RFC 7541, 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
        "authorization": f"Bearer {token}",
    }
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields.items())


def _string(text: str) -> bytes:
    """Return a string literal without Huffman's code; its length as an integer with a prefix of 7 bits."""
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, digits = len(data) - 127, bytearray((127,))
    while rest >= 128:
        digits.append(rest % 128 + 128)
        rest //= 128
    digits.append(rest)
    return bytes(digits) + data
