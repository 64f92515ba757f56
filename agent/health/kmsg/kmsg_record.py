"""Parse one record of ``/dev/kmsg``. Accepts any bytes: invalid ones become ``Malformed``.

The format is the kernel's Documentation/ABI/testing/dev-kmsg::

    PRIO,SEQ,USEC,FLAGS[,more];text\\n
     KEY=value\\n

Non-printable characters and the backslash come escaped as ``\\xNN``. ``PRIO`` is ``facility << 3 | level``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

KERNEL_FACILITY = 0
"""The facility of the kernel's own messages; the kernel never lets user space write with it."""

# The bounds are the widths of the kernel's own integers: a longer number is not a record.
_HEADER = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),([^,;]{0,8})(?:,[^;\n]*)?;")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One kernel log record. ``usec`` is microseconds since boot, ``seq`` never repeats within a boot.

    ``text`` may contain line breaks, where the kernel printed several lines at once.
    """

    priority: int
    facility: int
    seq: int
    usec: int
    flags: str
    text: str
    dictionary: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are not a record, with the reason. Counted; reading continues."""

    reason: str
    raw: bytes


def parse(raw: bytes) -> KmsgRecord | Malformed:
    """Parse the result of one read of ``/dev/kmsg``. Never raises."""
    header = _HEADER.match(raw)
    if header is None:
        return Malformed(reason="no PRIO,SEQ,USEC,FLAGS; header", raw=raw)
    text, *continuation = raw[header.end() :].split(b"\n")
    priority = int(header[1])
    return KmsgRecord(
        priority=priority & 7,
        facility=priority >> 3,
        seq=int(header[2]),
        usec=int(header[3]),
        flags=header[4].decode("utf-8", "replace"),
        text=unescape(text),
        dictionary=MappingProxyType(_dictionary(continuation)),
    )


def position(raw: bytes) -> tuple[int, int] | None:
    """Return ``(seq, usec)`` of a record, or None where it is malformed. Cheap: it does not parse the text."""
    header = _HEADER.match(raw)
    return (int(header[2]), int(header[3])) if header is not None else None


def unescape(text: bytes) -> str:
    """Undo the kernel's ``\\xNN``; bytes that are not UTF-8 become U+FFFD."""
    if b"\\x" in text:
        text = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), text)
    return text.decode("utf-8", "replace")


def _dictionary(lines: list[bytes]) -> dict[str, str]:
    pairs = (line[1:].partition(b"=") for line in lines if line.startswith(b" "))
    return {unescape(key): unescape(value) for key, equals, value in pairs if equals}
