"""Stand in for /dev/kmsg: a regular file of records in its format, and the driver's messages to write into it.

The agent follows such a file as it follows the device. Several writers may share one file.
"""

import fcntl
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

_TAIL = 64 * 1024
_SEQ = re.compile(rb"^\d+,(\d+),\d+,", re.MULTILINE)
_ABOUT_DEVICE = re.compile(r"[\w.-]+ (?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[: ]")
_WARNING = 4
_RECOVERY_WORDS = {0: "None", 1: "GPU Reset Required", 2: "Node Reboot Required", 3: "Drain P2P", 4: "Drain and Reset"}


class KmsgWriter:
    """Append records to a file, numbered on from its last one, stamped with this machine's boot clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def write(
        self,
        text: str,
        *,
        level: int = _WARNING,
        facility: int = 0,
        usec: int | None = None,
        seq: int | None = None,
        dictionary: Mapping[str, str] | None = None,
    ) -> int:
        """Append one record in one write and return its number. ``usec`` is microseconds since boot (default: now).

        A given ``seq`` beyond the next one makes a gap, as records that the kernel has overwritten do.
        """
        stamp = usec if usec is not None else time.monotonic_ns() // 1000
        with self.path.open("r+b", buffering=0) as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            number = seq if seq is not None else self._next_seq(log.fileno())
            log.seek(0, os.SEEK_END)
            log.write(record(text, seq=number, usec=stamp, priority=facility << 3 | level, dictionary=dictionary))
        return number

    def flood(self, text: str, *, count: int) -> None:
        """Append the same text ``count`` times, in one write."""
        stamp = time.monotonic_ns() // 1000
        with self.path.open("r+b", buffering=0) as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            first = self._next_seq(log.fileno())
            log.seek(0, os.SEEK_END)
            log.write(b"".join(record(text, seq=first + number, usec=stamp) for number in range(count)))

    def clear(self) -> None:
        """Empty the file; a reader takes it for another log."""
        with self.path.open("r+b", buffering=0) as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            log.truncate(0)

    def write_xid(
        self,
        code: int,
        *,
        pci: str,
        pid: int | None = None,
        name: str | None = None,
        text: str = "",
        gpu_instance: int | None = None,
        compute_instance: int | None = None,
        usec: int | None = None,
    ) -> int:
        """Append an Xid as current drivers print it. ``pci`` is as in ``0000:41:00``."""
        where = f"PCI:{pci}"
        where += f" GPU-I:{gpu_instance:02}" if gpu_instance is not None else ""
        where += f" GPU-CI:{compute_instance:02}" if compute_instance is not None else ""
        who = f"pid={pid}, name={name}" if pid is not None else "pid='<unknown>', name=<unknown>"
        return self.write(f"NVRM: Xid ({where}): {code}, {who}, {text}".rstrip(", "), usec=usec)

    def write_recovery_action(self, value: int, *, pci: str, old: int = 0, usec: int | None = None) -> int:
        """Append an Xid 154 that announces the driver's verdict, by NVML's number of it."""
        return self.write(
            f"NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from {_recovery(old)} to {_recovery(value)}",
            usec=usec,
        )

    def _next_seq(self, fd: int) -> int:
        size = os.fstat(fd).st_size
        numbers = _SEQ.findall(os.pread(fd, _TAIL, max(size - _TAIL, 0)))
        return int(numbers[-1]) + 1 if numbers else 0


def record(
    text: str, *, seq: int, usec: int, priority: int = _WARNING, dictionary: Mapping[str, str] | None = None
) -> bytes:
    """Return one record as /dev/kmsg shows it: with the first PCI device that it names as a field."""
    if dictionary is None and (about := _ABOUT_DEVICE.match(text)) is not None:
        dictionary = {"SUBSYSTEM": "pci", "DEVICE": f"+pci:{about['device']}"}
    lines = [b"%d,%d,%d,-;%s" % (priority, seq, usec, _escaped(text))]
    lines += [b" %s=%s" % (_escaped(key), _escaped(value)) for key, value in (dictionary or {}).items()]
    return b"\n".join(lines) + b"\n"


def _escaped(text: str) -> bytes:
    """Escape as the kernel does: control characters, the backslash, and every byte beyond ASCII."""
    return b"".join(
        bytes((byte,)) if 0x20 <= byte < 0x7F and byte != ord("\\") else b"\\x%02x" % byte
        for byte in text.encode("utf-8", "surrogatepass")
    )


def _recovery(value: int) -> str:
    return f"{value:#x} ({_RECOVERY_WORDS.get(value, 'Unknown')})"
