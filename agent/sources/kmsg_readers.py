"""Raw kernel log records from where they are kept: the kernel's device, or a file that stands in for it.

Both give records as bytes in batches and never block; neither looks into them.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.sources import inotify, readiness

_BATCH = 1000
"""Records per batch. A batch is worked through at one go: 2 ms of common lines, 26 ms if every one is an Xid."""

_RECORD_MAX = 16 * 1024
"""Twice the largest record that any kernel writes (CONSOLE_EXT_LOG_MAX, 8192 bytes)."""

_CHUNK = 64 * 1024
_RECORD_END = re.compile(rb"\n(?! )")  # a line that begins with a blank continues the record before it


class LogReplacedError(Exception):
    """The file was truncated, moved or deleted: what its path leads to next is another log, numbered anew."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole records in order. ``at_end``: there were no more. ``broken``: how many were too large to be read.

    ``read_at`` is CLOCK_MONOTONIC in seconds at the end of the reading, where the kernel's own clock is in the stamps;
    ``awaited``: the last record had not been printed yet when the reader began to wait.
    """

    records: list[bytes]
    at_end: bool
    broken: int = 0
    read_at: float | None = None
    awaited: bool = False


class RecordReader(Protocol):
    """Where records come from. Raises OSError or LogReplacedError: the log must then be opened again."""

    async def wait(self) -> None:
        """Wait until there may be something to read: at once, before the first read."""

    def read(self) -> Batch:
        """Return what there is, at most one batch, possibly empty. Never blocks."""

    def close(self) -> None:
        """Let go of the log."""


def open_log(path: Path) -> RecordReader:
    """Open a kernel log: the device ``/dev/kmsg``, or a regular file of such records. Raises OSError."""
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode):
        return DeviceReader(path)
    if stat.S_ISREG(mode):
        return FileReader(path)
    raise OSError(errno.EINVAL, "neither a device nor a regular file", str(path))


class DeviceReader:
    """``/dev/kmsg``: each read gives one record, the oldest one first."""

    def __init__(
        self,
        path: Path,
        *,
        read: Callable[[int, int], bytes] = os.read,
        since_boot: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._read = read
        self._since_boot = since_boot
        self._at_end = False
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    async def wait(self) -> None:
        """Wait for the next record."""
        if self._at_end:
            await readiness.readable(self._fd)

    def read(self) -> Batch:
        """Read up to one batch. Overwritten records are passed over; the gap in the numbers tells how many."""
        records: list[bytes] = []
        broken = 0
        awaited, self._at_end = self._at_end, False
        for _ in range(_BATCH):
            try:
                record = self._read(self._fd, _RECORD_MAX)
            except BlockingIOError:
                self._at_end = True
                break
            except OSError as error:
                if error.errno == errno.EINVAL:  # larger than the buffer; the kernel has moved us past it
                    broken += 1
                elif error.errno != errno.EPIPE:  # EPIPE: overwritten; the kernel has moved us to the oldest left
                    raise
            else:
                if not record:
                    raise OSError(errno.ENODATA, "it ends, as no kernel log does", str(self._path))
                records.append(record.removesuffix(b"\n"))
        return Batch(
            records=records,
            at_end=self._at_end,
            broken=broken,
            read_at=self._since_boot(),
            awaited=awaited and self._at_end,
        )

    def close(self) -> None:
        """Close the device."""
        os.close(self._fd)


class FileReader:
    """A regular file to which records are appended. A half-written record is awaited."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._skipping = False
        self._at_end = False
        self._watch = inotify.FileWatch(path)  # before the first read, so that no write is missed
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._watch.close()
            raise

    async def wait(self) -> None:
        """Wait for a change of the file, unless there is more to read already."""
        if self._at_end:
            await self._watch.changed()

    def read(self) -> Batch:
        """Read the next piece of the file."""
        chunk = os.read(self._fd, _CHUNK)
        self._at_end = len(chunk) < _CHUNK
        if not chunk and self._replaced():
            raise LogReplacedError(str(self._path))
        *records, rest = _RECORD_END.split(self._rest + chunk)
        broken = self._keep(rest, records)
        return Batch(records=[record for record in records if record], at_end=self._at_end, broken=broken)

    def _keep(self, rest: bytes, records: list[bytes]) -> int:
        """Keep the unfinished record for the next read; pass over one that outgrows any record. Returns how many."""
        self._rest = b""
        if self._skipping and not records:
            return 0
        if self._skipping:
            del records[0]
        self._skipping = len(rest) > _RECORD_MAX
        if self._skipping:
            return 1
        self._rest = rest
        return 0

    def _replaced(self) -> bool:
        """Whether the path leads to another file now, or to none, or the file has become shorter than what was read."""
        followed = os.fstat(self._fd)
        if followed.st_size < os.lseek(self._fd, 0, os.SEEK_CUR):
            return True
        try:
            return not os.path.samestat(self._path.stat(), followed)
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Close the file and stop watching it."""
        os.close(self._fd)
        self._watch.close()
