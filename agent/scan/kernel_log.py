"""Read the kernel log of this boot, from its oldest record to its end."""

import errno
import time
from collections.abc import Iterator
from pathlib import Path

from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.health.kmsg import kmsg_record, line_reader, provenance, record_key
from kubemend.agent.health.kmsg.line_findings import LineContext
from kubemend.agent.health.state import evidence
from kubemend.agent.model.findings import Finding
from kubemend.agent.scan.report import LogFound, Unseen
from kubemend.agent.sources import kmsg_readers, pci_tree
from kubemend.agent.sources.kernel_log import wall_offset
from kubemend.common import blocking

PART = "kernel-log"

_LOOK_BACK = ((evidence.LOOK_BACK, "true"),)


async def check(path: Path, *, sysfs: Path, catalog: Catalog, timeout: float) -> LogFound:
    """Read it once. It takes ``timeout`` seconds at most."""
    try:
        return await blocking.once(
            lambda: _read(path, sysfs=sysfs, catalog=catalog), name="kernel-log", timeout=timeout
        )
    except TimeoutError:
        what, hint = f"{path} could not be read to its end within {timeout:g} s", "increase --timeout"
    except kmsg_readers.LogReplacedError:
        what, hint = f"{path} became another file while it was read", "scan again"
    except OSError as error:
        what, hint = f"{path} cannot be read: {error.strerror or error}; Xids in it are not detected", _hint(error)
    return LogFound(unseen=(Unseen(PART, what, hint),))


def _read(path: Path, *, sysfs: Path, catalog: Catalog) -> LogFound:
    """Read to the end. Raises OSError and LogReplacedError."""
    lines = line_reader.LineReader(catalog, below=pci_tree.PciTree(sysfs).below)
    findings: list[Finding] = []
    first: tuple[int, int] | None = None
    reader = kmsg_readers.open_log(path)
    try:
        at_end = False
        while not at_end:
            batch = reader.read()
            at_end = batch.at_end
            if first is None:
                first = next(filter(None, map(kmsg_record.position, batch.records)), None)
            findings += _findings(batch.records, lines=lines)
    finally:
        reader.close()
    return LogFound(findings=tuple(findings), notes=_forgotten(*first) if first is not None else ())


def _findings(records: list[bytes], *, lines: line_reader.LineReader) -> Iterator[Finding]:
    offset = wall_offset()
    suspended = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()  # the records' clock stood still in it
    for raw in filter(line_reader.may_matter, records):
        record = kmsg_record.parse(raw)
        if isinstance(record, kmsg_record.Malformed) or not provenance.is_genuine(record):
            continue  # user space may write those
        boot_seconds = record.usec / 1e6 + suspended  # of a record before a suspend too late rather than too early
        seen = LineContext(
            observed_at=offset + boot_seconds,
            boot_seconds=boot_seconds,
            key=record_key.of(record.seq, record.usec),
            evidence=_LOOK_BACK,
        )
        yield from lines.read(record.text, seen=seen)


def _forgotten(seq: int, usec: int) -> tuple[str, ...]:
    if seq == 0:
        return ()
    hours = usec / 3.6e9
    return (f"the kernel log begins {hours:.1f} h after the boot: earlier records have been overwritten",)


def _hint(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "run it as root, in a container with the capability SYSLOG and /dev/kmsg among its devices"
    return "pass /dev/kmsg, or a regular file of records in its format, with --kernel-log"
