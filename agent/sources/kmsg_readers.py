"""Read raw kernel log records: from the kernel's device, or from a regular file in the same format.

Both readers return records as bytes in batches, never block, and do not parse records.

A regular file is followed by inotify(7), with the few calls that the standard library does not have: epoll does not
support regular files, and polling would cost power and time on every node.
"""

import asyncio
import ctypes
import errno
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubemend.agent.sources import readiness

_BATCH = 1000
"""Records per batch. A batch is processed without a pause: 2 ms for ordinary lines, 26 ms if every line is an Xid."""

_RECORD_MAX = 16 * 1024
"""Twice the largest record that any kernel writes (CONSOLE_EXT_LOG_MAX, 8192 bytes)."""

_WAIT = 10.0
"""Seconds after which a wait is begun again. One that takes twice as long shows that the agent did not run."""

_CHUNK = 64 * 1024
_RECORD_END = re.compile(rb"\n(?! )")  # a line that begins with a blank continues the previous record


class LogReplacedError(Exception):
    """The file was truncated, moved or deleted: the path now leads to another log with its own numbering."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Complete records in order.

    ``at_end``: there were no more. ``broken``: number of records that were too large to be read. ``read_at`` is
    CLOCK_BOOTTIME in seconds at the end of the read, where the stamps are those of this kernel's clock. ``awaited``:
    the last record was printed while the reader waited, less than two ``_WAIT`` ago.
    """

    records: list[bytes]
    at_end: bool
    broken: int = 0
    read_at: float | None = None
    awaited: bool = False


class RecordReader(Protocol):
    """A source of records. Raises OSError or LogReplacedError: the log must then be reopened."""

    async def wait(self) -> None:
        """Wait until there may be something to read; returns immediately before the first read."""

    def read(self) -> Batch:
        """Return the available records, at most one batch, possibly empty. Never blocks."""

    def close(self) -> None:
        """Close the log."""


def open_log(path: Path) -> RecordReader:
    """Open a kernel log: the device ``/dev/kmsg``, or a regular file in its format. Raises OSError."""
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode):
        return DeviceReader(path)
    if stat.S_ISREG(mode):
        return FileReader(path)
    raise OSError(errno.EINVAL, "neither a device nor a regular file", str(path))


class DeviceReader:
    """``/dev/kmsg``: each read returns one record, oldest first."""

    def __init__(
        self,
        path: Path,
        *,
        read: Callable[[int, int], bytes] = os.read,
        since_boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._path = path
        self._read = read
        self._since_boot = since_boot
        self._at_end = False
        self._empty_at = 0.0  # by ``since_boot``: when the log was last known to have no further record
        self._awaited = False
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    async def wait(self) -> None:
        """Wait for the next record."""
        self._awaited = False
        while self._at_end:
            try:
                async with asyncio.timeout(_WAIT):
                    await readiness.readable(self._fd)
            except TimeoutError:
                self._empty_at = self._since_boot()
            else:
                self._awaited = self._since_boot() - self._empty_at < 2 * _WAIT
                return

    def read(self) -> Batch:
        """Read up to one batch. Overwritten records are skipped; the gap in the sequence numbers gives their count."""
        records: list[bytes] = []
        broken = 0
        self._at_end = False
        for _ in range(_BATCH):
            try:
                record = self._read(self._fd, _RECORD_MAX)
            except BlockingIOError:
                self._at_end, self._empty_at = True, self._since_boot()
                break
            except OSError as error:
                if error.errno == errno.EINVAL:  # larger than the buffer; the kernel has skipped it
                    broken += 1
                elif error.errno != errno.EPIPE:  # EPIPE: overwritten; the kernel continues at the oldest record left
                    raise
            else:
                if not record:
                    raise OSError(errno.ENODATA, "unexpected end of file: a kernel log has no end", str(self._path))
                records.append(record.removesuffix(b"\n"))
        return Batch(
            records=records,
            at_end=self._at_end,
            broken=broken,
            read_at=self._since_boot(),
            awaited=self._awaited and self._at_end,
        )

    def close(self) -> None:
        """Close the device."""
        os.close(self._fd)


class FileReader:
    """A regular file to which records are appended. Waits for the rest of a half-written record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._skipping = False
        self._at_end = False
        self._watch = FileWatch(path)  # before the first read, so that no write is missed
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._watch.close()
            raise

    async def wait(self) -> None:
        """Wait for a change of the file, unless more data is available."""
        if self._at_end:
            await self._watch.changed()

    def read(self) -> Batch:
        """Read the next chunk of the file."""
        chunk = os.read(self._fd, _CHUNK)
        self._at_end = len(chunk) < _CHUNK
        if not chunk and self._replaced():
            raise LogReplacedError(str(self._path))
        *records, rest = _RECORD_END.split(self._rest + chunk)
        broken = self._keep(rest, records)
        return Batch(records=[record for record in records if record], at_end=self._at_end, broken=broken)

    def _keep(self, rest: bytes, records: list[bytes]) -> int:
        """Keep the unfinished record for the next read; skip one larger than any record. Return the number skipped."""
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
        """Return whether the path leads to another or no file, or the file is shorter than the part already read."""
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


_IN_MODIFY = 0x002
_IN_ATTRIB = 0x004  # deletion of a file that is still open shows as this, by its link count
_IN_MOVE_SELF = 0x800
_EVENTS_BUFFER = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Reports that one file was written, truncated, moved or deleted. Raises OSError where it cannot be watched."""

    def __init__(self, path: Path) -> None:
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), path=path)
        try:
            events = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF
            _checked(_libc.inotify_add_watch(self._fd, os.fsencode(path), events), path=path)
        except OSError:
            self.close()
            raise

    async def changed(self) -> None:
        """Wait for a change of the file since the last call. The caller must find out what changed."""
        await readiness.readable(self._fd)
        os.read(self._fd, _EVENTS_BUFFER)

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)


def _checked(result: int, *, path: Path) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return result
