"""The kernel log as a source of findings.

It resumes at the stored cursor (boot id and sequence number), counts lost records, and tolerates any content of the
log.

Clocks: a record's time is the kernel's ``local_clock()``. Unlike CLOCK_BOOTTIME it is not corrected by NTP, and it
stops in suspend; over weeks of uptime it may be far off. ``log_clock`` measures the offset from records that are read
as they are printed, and the offset is added: ``Finding.boot_seconds`` is CLOCK_BOOTTIME, which process start times
use, and ``observed_at`` is Unix time. Until the offset is known, a fault is dated too early rather than too late: a
container that replaced the faulty one is not restarted for it.
"""

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.health.kmsg import kmsg_record, line_reader, log_clock, provenance, record_key
from kubemend.agent.health.kmsg.line_findings import LineContext
from kubemend.agent.health.state import evidence
from kubemend.agent.model.findings import Finding
from kubemend.agent.sources import kmsg_readers, pci_tree
from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus

log = structlog.get_logger(__name__)

_LOOK_BACK = ((evidence.LOOK_BACK, "true"),)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last record that was read.

    ``usec`` distinguishes a restarted log (a stand-in file) from the one read before.
    """

    boot_id: str
    seq: int
    usec: int


class CursorStore(Protocol):
    """Persists the cursor across agent restarts."""

    async def load(self) -> Cursor | None:
        """Return the last saved cursor, or None on the first start."""

    def save(self, cursor: Cursor) -> None:
        """Save the cursor; must not block. Called once per batch, so writes may be coalesced."""


class Meter(Protocol):
    """Monotonic counters of the kernel log."""

    def read(self, count: int) -> None:
        """Count records that were read."""

    def lost(self, count: int) -> None:
        """Count records that were overwritten, or skipped by the kernel, before they were read."""

    def malformed(self, count: int) -> None:
        """Count records that could not be parsed."""


async def _at_once() -> None:
    return


def wall_offset() -> float:
    """Return the Unix time, in seconds, at which the kernel's clock was zero."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class KernelLogSource:
    """Reads kernel log records from a path and emits their findings.

    Findings from before the first start on this boot are emitted too, marked ``evidence.LOOK_BACK``: a GPU that died
    earlier is still dead. Each finding's ``key`` is unique, so reading a record twice is harmless.
    """

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        watched_since: float,
        catalog: Catalog,
        emit: Callable[[Finding], None],
        report: Callable[[ComponentStatus], None],
        cursors: CursorStore,
        meter: Meter,
        sysfs: Path = Path("/sys"),
        accept_user_records: bool = False,
        drained: Callable[[], Awaitable[None]] = _at_once,
        open_log: Callable[[Path], kmsg_readers.RecordReader] = kmsg_readers.open_log,
        offset: Callable[[], float] = wall_offset,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """Create the source.

        ``watched_since`` is when an agent first ran on this boot, in seconds since boot: older records were written
        before any agent ran. (A saved cursor is weaker evidence: an agent can die before it saves its first.) ``sysfs``
        is the node's ``/sys``: an error of a PCIe port is attributed to the devices below it. ``accept_user_records``
        also accepts records that user space wrote into the kernel log (``echo … > /dev/kmsg``). Use it for drills only,
        because any root process could then cause container restarts. ``drained`` waits until there
        is room for more findings.
        """
        self._path = path
        self._boot_id = boot_id
        self._tree = pci_tree.PciTree(sysfs)
        self._lines = line_reader.LineReader(catalog, below=self._tree.below)
        self._emit = emit
        self._report = report
        self._cursors = cursors
        self._meter = meter
        self._accept_user_records = accept_user_records
        self._drained = drained
        self._open_log = open_log
        self._offset = offset
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.1, limit=5.0)
        self._clock = log_clock.LogClock()
        self._cursor: Cursor | None = None
        self._watched_since = watched_since
        self._status: ComponentStatus | None = None

    async def run(self) -> None:
        """Read indefinitely. A log that is missing, forbidden or fails is reported and reopened when possible."""
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
        """Read until the log fails or is replaced."""
        log.info("kernel_log.opened", path=str(self._path), after_seq=self._cursor.seq if self._cursor else None)
        try:
            while True:
                await self._drained()
                await reader.wait()
                batch = reader.read()
                self._backoff.reset()
                self._set_status(ComponentStatus(ComponentState.READY))
                self._process(batch)
                await asyncio.sleep(0)  # let other tasks run during a flood of records
        except kmsg_readers.LogReplacedError:
            log.warning("kernel_log.replaced", path=str(self._path))
            self._cursor = None
        except OSError as error:
            self._degraded(error)
            await self._backoff.wait()
        finally:
            reader.close()

    def _process(self, batch: kmsg_readers.Batch) -> None:
        """Process one batch. Hot path: of most records only the sequence number is read."""
        self._measure_clock(batch)
        offset = self._offset()
        self._tree.forget()
        last = self._cursor
        malformed = batch.broken
        lost = 0
        for raw in batch.records:
            at = kmsg_record.position(raw)
            if at is None:
                malformed += not raw.startswith(b" ")  # the rest of a record whose beginning was already read
                continue
            seq, usec = at
            if last is not None:
                if record_key.was_read(at, up_to=(last.seq, last.usec)):
                    continue
                lost += max(seq - last.seq - 1, 0)
            last = Cursor(self._boot_id, seq, usec)
            if line_reader.may_matter(raw):
                with contained.within(contained.Part.RECORD, f"kernel log record {seq}"):
                    self._read(raw, offset=offset)
        self._account(read=len(batch.records), lost=lost, malformed=malformed)
        if last is not None and last != self._cursor:
            self._cursor = last
            self._cursors.save(last)

    def _measure_clock(self, batch: kmsg_readers.Batch) -> None:
        """Measure the offset of the log's clock from the newest record."""
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
        if not self._accepts(record):
            return
        boot_seconds = record.usec / 1e6 + self._clock.late
        seen = LineContext(
            observed_at=offset + boot_seconds,
            boot_seconds=boot_seconds,
            key=record_key.of(record.seq, record.usec),
            evidence=_LOOK_BACK if boot_seconds < self._watched_since else (),
        )
        for finding in self._lines.read(record.text, seen=seen):
            self._emit(finding)

    def _accepts(self, record: kmsg_record.KmsgRecord) -> bool:
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
        self._set_status(
            ComponentStatus(
                ComponentState.DEGRADED,
                message=f"the kernel log {self._path} cannot be read: {reason}; Xids in it are not detected",
                hint=_hint(error),
            )
        )

    def _set_status(self, status: ComponentStatus) -> None:
        if status == self._status:
            return
        self._status = status
        self._report(status)


def _hint(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "run the agent privileged, or as root with the capability SYSLOG and /dev/kmsg among its devices"
    if error.errno == errno.ENOENT:
        return "mount the host's /dev/kmsg into the agent's container, or pass its path with --kernel-log"
    return "pass /dev/kmsg, or a regular file of records in its format, with --kernel-log"
