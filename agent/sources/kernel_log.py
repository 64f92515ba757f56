"""The kernel log as a source of findings.

It resumes where it left off (boot id and sequence number), counts what it lost, and survives whatever the log holds.
Clocks: a record's time is the kernel's ``local_clock()``, which is not corrected by NTP as CLOCK_MONOTONIC is, and
stands still in suspend; over weeks of uptime it may be far off. By how much is learnt from records that are read as
they are printed (``log_clock``), and added: ``Finding.boot_seconds`` is CLOCK_MONOTONIC, by which processes are told,
and ``observed_at`` Unix time.
"""

import asyncio
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from agent.health import evidence, kernel_lines, kmsg_record, log_clock, provenance
from agent.health.catalog import Catalog
from agent.health.line_findings import Seen
from agent.model.findings import Finding
from agent.sources import kmsg_readers, pci_tree
from common import aio, contained
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)

_CLOCK_SLACK = 1_000_000
"""Microseconds. Records of different CPUs may be stamped out of order, but not by as much as a second."""

_LOOK_BACK = ((evidence.LOOK_BACK, "true"),)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last record that was read. ``usec`` tells a log that began anew (a stand-in) from one read before."""

    boot_id: str
    seq: int
    usec: int


class CursorStore(Protocol):
    """Where the cursor outlives the agent."""

    async def load(self) -> Cursor | None:
        """Return the cursor that was saved last, or None on the first start."""

    def save(self, cursor: Cursor) -> None:
        """Note the cursor; must not block. Called once for each batch, so writing it out may be coalesced."""


class Meter(Protocol):
    """Counters of the kernel log. All of them only grow."""

    def read(self, count: int) -> None:
        """Records were read."""

    def lost(self, count: int) -> None:
        """Records were overwritten, or skipped by the kernel, before they could be read."""

    def malformed(self, count: int) -> None:
        """Records could not be understood."""


def wall_offset() -> float:
    """Return the Unix time, in seconds, at which the kernel's clock was zero."""
    return time.time() - time.monotonic()


class KernelLogSource:
    """Reads kernel log records from a path and hands on what they mean.

    Findings from before the first start on this boot are handed on, too, marked ``evidence.LOOK_BACK``: a GPU that
    died earlier is dead now. Each finding's ``key`` is unique per record, so reading one twice is harmless.
    """

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        watched_since: float,
        catalog: Catalog,
        emit: Callable[[Finding], None],
        report: Callable[[PartStatus], None],
        cursors: CursorStore,
        meter: Meter,
        sysfs: Path = Path("/sys"),
        accept_user_records: bool = False,
        open_log: Callable[[Path], kmsg_readers.RecordReader] = kmsg_readers.open_log,
        offset: Callable[[], float] = wall_offset,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """Prepare the source.

        ``watched_since`` is when an agent first ran on this boot, in seconds since boot: what is older was there
        before anybody looked. (Whether a cursor was saved says less: an agent can die before it saves its first.)
        ``sysfs`` is the node's ``/sys``: an error of a PCIe port is told of the devices below it.
        ``accept_user_records`` also believes what user space wrote into the kernel log (``echo … > /dev/kmsg``): for
        drills only, since any root process could then have containers restarted.
        """
        self._path = path
        self._boot_id = boot_id
        self._tree = pci_tree.PciTree(sysfs)
        self._lines = kernel_lines.LineReader(catalog, below=self._tree.below)
        self._emit = emit
        self._report = report
        self._cursors = cursors
        self._meter = meter
        self._accept_user_records = accept_user_records
        self._open_log = open_log
        self._offset = offset
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.1, limit=5.0)
        self._clock = log_clock.LogClock()
        self._cursor: Cursor | None = None
        self._watched_since = watched_since
        self._status: PartStatus | None = None

    async def run(self) -> None:
        """Read for ever. A log that is missing, forbidden or breaks is reported and opened again when it can be."""
        stored = await self._cursors.load()
        if stored is not None and stored.boot_id == self._boot_id:
            self._cursor = stored
        while True:
            try:
                reader = self._open_log(self._path)
            except OSError as error:
                self._degraded(error)
                await self._backoff.wait()
            else:
                await self._follow(reader)

    async def _follow(self, reader: kmsg_readers.RecordReader) -> None:
        """Read until the log breaks or another one takes its place."""
        log.info("kernel_log.opened", path=str(self._path), after_seq=self._cursor.seq if self._cursor else None)
        try:
            while True:
                await reader.wait()
                batch = reader.read()
                self._backoff.reset()
                self._say(PartStatus(PartState.READY))
                self._take(batch)
                await asyncio.sleep(0)  # a flood must not starve the rest of the agent
        except kmsg_readers.LogReplacedError:
            log.warning("kernel_log.replaced", path=str(self._path))
            self._cursor = None
        except OSError as error:
            self._degraded(error)
            await self._backoff.wait()
        finally:
            reader.close()

    def _take(self, batch: kmsg_readers.Batch) -> None:
        """Go through one batch. The hot path: most records are looked at only for their number."""
        self._learn(batch)
        offset = self._offset()
        self._tree.forget()
        last = self._cursor
        malformed = batch.broken
        lost = 0
        for raw in batch.records:
            at = kmsg_record.position(raw)
            if at is None:
                malformed += not raw.startswith(b" ")  # the rest of a record whose beginning was read before
                continue
            seq, usec = at
            if last is not None:
                if seq <= last.seq and usec <= last.usec + _CLOCK_SLACK:
                    continue
                lost += max(seq - last.seq - 1, 0)
            last = Cursor(self._boot_id, seq, usec)
            if kernel_lines.may_matter(raw):
                with contained.within(contained.Part.RECORD, f"kernel log record {seq}"):
                    self._read(raw, offset=offset)
        self._account(read=len(batch.records), lost=lost, malformed=malformed)
        if last is not None and last != self._cursor:
            self._cursor = last
            self._cursors.save(last)

    def _learn(self, batch: kmsg_readers.Batch) -> None:
        """Learn from the newest record what the log's clock is worth."""
        at = kmsg_record.position(batch.records[-1]) if batch.records else None
        if at is None or batch.read_at is None:
            return
        before = self._clock.late
        self._clock.learn(stamp=at[1] / 1e6, now=batch.read_at, live=batch.awaited)
        if self._clock.late != before:
            log.info("kernel_log.clock_late", path=str(self._path), seconds=round(self._clock.late, 1))

    def _read(self, raw: bytes, *, offset: float) -> None:
        record = kmsg_record.parse(raw)
        if isinstance(record, kmsg_record.Malformed):
            return
        if not self._believes(record):
            return
        boot_seconds = record.usec / 1e6 + self._clock.late
        seen = Seen(
            observed_at=offset + boot_seconds,
            boot_seconds=boot_seconds,
            key=f"kmsg:{record.seq}:{record.usec}",
            evidence=_LOOK_BACK if boot_seconds < self._watched_since else (),
        )
        for finding in self._lines.read(record.text, seen=seen):
            self._emit(finding)

    def _believes(self, record: kmsg_record.KmsgRecord) -> bool:
        if record.facility != kmsg_record.KERNEL_FACILITY:
            return self._accept_user_records
        return provenance.is_genuine(record)

    def _account(self, *, read: int, lost: int, malformed: int) -> None:
        self._meter.read(read)
        if lost:
            self._meter.lost(lost)
            log.warning("kernel_log.records_lost", path=str(self._path), count=lost)
        if malformed:
            self._meter.malformed(malformed)
            log.warning("kernel_log.malformed", path=str(self._path), count=malformed)

    def _degraded(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        self._say(
            PartStatus(
                PartState.DEGRADED,
                message=f"the kernel log {self._path} cannot be read: {reason}; Xids are not seen there",
                mend=_mend(error),
            )
        )

    def _say(self, status: PartStatus) -> None:
        if status == self._status:
            return
        self._status = status
        self._report(status)


def _mend(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "run the agent privileged, or as root with the capability SYSLOG and /dev/kmsg among its devices"
    if error.errno == errno.ENOENT:
        return "mount the host's /dev/kmsg into the agent's container, or name the right path"
    return "name /dev/kmsg, or a regular file of records in its format"
