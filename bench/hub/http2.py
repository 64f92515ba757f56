"""Implement as much of HTTP/2 and gRPC as one agent's stream needs (RFC 9113; gRPC's PROTOCOL-HTTP2.md), on a TLS
socket.

A real client, but a cheap one: simulated agents take their CPU time from the hub on the same cores. A thousand of
gRPC's own clients cost as much as the hub under measurement.
"""

import enum
import socket
import ssl
import struct
from collections.abc import Iterator

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_STREAM = 1
_ACK = 0x1
_END_HEADERS = 0x4
_INITIAL_WINDOW_SIZE = 0x4
_HEAD = 9
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


class Connection:
    """Hold one stream of messages on a connection of its own.

    ``window`` is the number of bytes the server may send ungranted. The socket does not block: call ``read`` whenever
    it is readable.
    """

    def __init__(
        self, address: tuple[str, int], *, tls: ssl.SSLContext, path: str, token: str, window: int = WIDE_WINDOW
    ) -> None:
        plain = socket.create_connection(address)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(0)
        self._socket = tls.wrap_socket(plain, server_hostname=address[0], do_handshake_on_connect=False)
        self._open = False
        self._in = b""
        self._messages = b""
        self._credit = DEFAULT_WINDOW
        self._out = bytearray(_PREFACE + _frame(Frame.SETTINGS, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window)))
        self._out += _frame(Frame.WINDOW_UPDATE, struct.pack(">I", WIDE_WINDOW))
        headers = _headers(path=path, authority=address[0], token=token)
        self._out += _frame(Frame.HEADERS, headers, flags=_END_HEADERS, stream=_STREAM)
        self.ended = False
        self._shake_hands()

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self.ended = True
        self._socket.close()

    def send(self, message: bytes) -> None:
        """Send a message. Raises RuntimeError when the server has granted too little: it never should have."""
        frame = _frame(Frame.DATA, b"\0" + struct.pack(">I", len(message)) + message, stream=_STREAM)
        self._credit -= len(frame) - _HEAD
        if self._credit < 0:
            raise RuntimeError("the hub grants too little to send a few bytes")
        self._out += frame
        self._flush()

    def grant(self, count: int) -> None:
        """Let the server send ``count`` more bytes."""
        self._out += _frame(Frame.WINDOW_UPDATE, struct.pack(">I", count), stream=_STREAM)
        self._flush()

    def read(self) -> Iterator[bytes]:
        """Yield the messages that are complete. Sets ``ended`` when the server has ended the stream."""
        if not self._open and not self._shake_hands():
            return
        for kind, flags, payload in self._frames():
            match kind:
                case Frame.DATA:
                    yield from self._whole(payload)
                case Frame.SETTINGS if not flags & _ACK:
                    self._out += _frame(Frame.SETTINGS, b"", flags=_ACK)
                case Frame.PING if not flags & _ACK:
                    self._out += _frame(Frame.PING, payload, flags=_ACK)
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

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        while data := self._received():
            self._in += data
            at = 0
            while len(self._in) - at >= _HEAD:
                length = int.from_bytes(self._in[at : at + 3], "big")
                if len(self._in) - at < _HEAD + length:
                    break
                yield self._in[at + 3], self._in[at + 4], self._in[at + _HEAD : at + _HEAD + length]
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

    def _whole(self, data: bytes) -> Iterator[bytes]:
        self._messages += data
        while len(self._messages) >= 5:
            end = 5 + int.from_bytes(self._messages[1:5], "big")
            if len(self._messages) < end:
                return
            message, self._messages = self._messages[5:end], self._messages[end:]
            yield message


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
