"""Parse one record of ``/dev/kmsg``, or one line as log tools print it. Invalid bytes become ``Malformed``.

The format of a record is the kernel's Documentation/ABI/testing/dev-kmsg::

    PRIO,SEQ,USEC,FLAGS[,more];text\\n
     KEY=value\\n

Non-printable characters and the backslash come escaped as ``\\xNN``. ``PRIO`` is ``facility << 3 | level``.

dmesg, journalctl, syslog and pstore each add their own prefix to a line. Only prefixes of kernel messages are stripped:
a line of another program that quotes a kernel message keeps its prefix, and so matches no grammar.
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


_PREFIX = re.compile(
    r"""
    \s*
    (?:<\d{1,4}>)?                                                      # pstore, dmesg --raw
    (?:kern\s*:[a-z]{2,8}\s*:\s*)?                                     # dmesg --decode; user space has `user  :`
    (?:
        \[\s*(?P<first>\d{1,12}\.\d{1,9})(?:\s+<[^>\]]{0,20}>)?\]\s*    # dmesg, journalctl -o short-monotonic
      | \[\s*\+\d{1,12}\.\d{1,9}\]\s*                                   # dmesg --reltime
      | \[[A-Z][a-z]{2}[A-Za-z\d\s]{2,12}\d\d:\d\d(?::\d\d\s\d{4})?\]\s*  # -T `[Sun Feb 23 16:24:18 2025]`, -e
      | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s+   # ISO: dmesg, rsyslog, journalctl
      | \w{3}\s+\d{1,2}\s\d\d:\d\d:\d\d(?:\.\d{1,9})?\s+                # syslog, journalctl -o short, short-precise
      | (?:\w{3}\s+)?\d{4}-\d\d-\d\d\s\d\d:\d\d:\d\d(?:\.\d{1,9})?\s\S{1,6}\s+   # journalctl -o short-full
      | \d{9,11}\.\d{1,9}\s+                                            # journalctl -o short-unix
    )?
    (?:(?:\S{1,255}\s)?kernel:\s+)?                                     # syslog and journal: `host kernel: `
    (?:\[\s*(?P<second>\d{1,12}\.\d{1,9})\]\s*)?                        # syslog with printk.time
    (?:\[\s*[TC]\d{1,10}\]\s*)?                                         # CONFIG_PRINTK_CALLER
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """The kernel's own text, and its clock (seconds since boot) where the line shows it."""

    text: str
    boot_seconds: float | None = None


def parse_printed(line: str) -> LogLine:
    """Strip the prefix of a log tool. Never raises."""
    record = parse(line.encode("utf-8", "replace")) if line[:1].isdigit() else None
    if isinstance(record, KmsgRecord):
        return LogLine(text=record.text, boot_seconds=record.usec / 1e6)
    line = line.rstrip("\r\n")
    prefix = _PREFIX.match(line)
    assert prefix is not None, "every part of the prefix is optional"
    seconds = prefix["first"] or prefix["second"]
    return LogLine(text=line[prefix.end() :], boot_seconds=float(seconds) if seconds is not None else None)
