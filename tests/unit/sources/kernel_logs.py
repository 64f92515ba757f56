"""Fakes of the kernel log source's environment, and a source that a test can follow event by event."""

import asyncio
import contextlib
import errno
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hack import kmsg
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.model.findings import Finding
from kubemend.agent.sources import kernel_log, kmsg_readers
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus

BOOT = "34eb48e2-270a-4075-b5a4-94aac223f2dd"
BOOTED_AT = 1_700_000_000.0


@dataclass
class Notes:
    """Everything that the source reported, and the state that it would find again after a restart."""

    findings: list[Finding] = field(default_factory=list)
    statuses: list[ComponentStatus] = field(default_factory=list)
    cursor: kernel_log.Cursor | None = None
    saves: int = 0
    records: int = 0
    lost_records: int = 0
    malformed_records: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def emit(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.changed.set()

    def report(self, status: ComponentStatus) -> None:
        self.statuses.append(status)
        self.changed.set()

    async def load(self) -> kernel_log.Cursor | None:
        return self.cursor

    def save(self, cursor: kernel_log.Cursor) -> None:
        self.cursor = cursor
        self.saves += 1
        self.changed.set()

    def read(self, count: int) -> None:
        self.records += count
        self.changed.set()

    def lost(self, count: int) -> None:
        self.lost_records += count

    def malformed(self, count: int) -> None:
        self.malformed_records += count

    @property
    def titles(self) -> list[str]:
        return [finding.title for finding in self.findings]

    @property
    def state(self) -> ComponentState | None:
        return self.statuses[-1].state if self.statuses else None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the recorded state fulfils the condition."""
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def at_once() -> None:
    """Do not wait."""


@contextlib.asynccontextmanager
async def running(
    path: Path,
    notes: Notes,
    *,
    boot_id: str = BOOT,
    watched_since: float = 0.0,
    accept_user_records: bool = False,
    sysfs: Path = Path("/nonexistent"),
    open_log: Callable[[Path], kmsg_readers.RecordReader] = kmsg_readers.open_log,
    drained: Callable[[], Awaitable[None]] = at_once,
) -> AsyncIterator[None]:
    """Run a source on the path as one life of the agent; a failure in it fails the test."""
    source = kernel_log.KernelLogSource(
        path,
        boot_id=boot_id,
        watched_since=watched_since,
        catalog=catalog_file.builtin(),
        emit=notes.emit,
        report=notes.report,
        cursors=notes,
        meter=notes,
        sysfs=sysfs,
        accept_user_records=accept_user_records,
        drained=drained,
        open_log=open_log,
        offset=lambda: BOOTED_AT,
        backoff=aio.Backoff(first=0.001, limit=0.01),
    )
    task = asyncio.create_task(source.run())
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class FakeDevice:
    """A script for read(2) of /dev/kmsg: bytes are records, an errno is that error, the end is EAGAIN."""

    def __init__(self, script: list[bytes | int]) -> None:
        self.script = script

    def read(self, _fd: int, size: int) -> bytes:
        if not self.script:
            raise BlockingIOError(errno.EAGAIN, "again")
        step = self.script.pop(0)
        if isinstance(step, int):
            raise OSError(step, "scripted")
        assert len(step) <= size
        return step

    def open(self, path: Path) -> kmsg_readers.RecordReader:
        """Open as the source does; the path must be a FIFO or device, so that it supports epoll."""
        return kmsg_readers.DeviceReader(path, read=self.read)


class Flood:
    """A /dev/kmsg with a flood of records, one in a thousand a fault, that never holds more than one of them.

    ``gap`` is the number of the first overwritten record, and their count. ``torn`` records are garbage. ``growth``,
    known at the end, is the increase of allocated memory blocks since ``measuring`` was set.
    """

    def __init__(self, *, count: int, gap: tuple[int, int], torn: int) -> None:
        self.measuring = asyncio.Event()
        self.growth: int | None = None
        self.faults = 0
        self._records = self._all(count, gap=gap, torn=torn)

    def open(self, path: Path) -> kmsg_readers.RecordReader:
        """Open as the source does; the path must be a FIFO or device, so that it supports epoll."""
        return kmsg_readers.DeviceReader(path, read=self._read)

    def _read(self, _fd: int, _size: int) -> bytes:
        for record in self._records:
            if isinstance(record, int):
                raise OSError(record, "scripted")
            return record
        raise BlockingIOError(errno.EAGAIN, "again")

    def _all(self, count: int, *, gap: tuple[int, int], torn: int) -> Iterator[bytes | int]:
        first, overwritten = gap
        begun = None
        for seq in range(count):
            if begun is None and self.measuring.is_set():
                begun = _blocks_in_use()
            if seq == first:
                yield errno.EPIPE
            if first <= seq < first + overwritten:
                continue
            yield self._record(seq, torn=seq % 9000 == 1 and seq // 9000 < torn)
        if begun is not None:
            self.growth = _blocks_in_use() - begun

    def _record(self, seq: int, *, torn: bool) -> bytes:
        if torn:
            return b"\xff torn \x00\n"
        if seq % 1000 == 0:
            self.faults += 1
            return kmsg.record(f"NVRM: Xid (PCI:0000:41:00): 31, pid={seq + 1}, name=a, MMU Fault", seq=seq, usec=seq)
        return kmsg.record(f"audit: type=1400 audit({seq}): apparmor=ALLOWED operation=open", seq=seq, usec=seq)


def _blocks_in_use() -> int:
    gc.collect()
    return sys.getallocatedblocks()
