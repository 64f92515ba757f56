"""The kernel log source: resumes, counts its losses, and continues after any failure of the log."""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hack import kmsg
from kubemend.agent.health.state import evidence
from kubemend.agent.model.findings import Finding
from kubemend.agent.sources import kernel_log, kmsg_readers
from kubemend.common.components import ComponentState
from tests.unit.sources.kernel_logs import BOOT, BOOTED_AT, FakeDevice, Flood, Notes, running

MMU_FAULT = "NVRM: Xid (PCI:0000:41:00): 31, pid=4242, name=trainer, MMU Fault"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kmsg"


@pytest.fixture
def writer(path: Path) -> kmsg.KmsgWriter:
    return kmsg.KmsgWriter(path)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A FIFO that supports epoll, behind which a FakeDevice answers."""
    path = tmp_path / "device"
    os.mkfifo(path)
    return path


def xid_record(code: int, *, seq: int) -> bytes:
    return kmsg.record(f"NVRM: Xid (PCI:0000:41:00): {code}, text", seq=seq, usec=seq * 1000)


async def test_appended_record_becomes_a_finding(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes()
    async with running(path, notes):
        await notes.until(lambda: notes.state is ComponentState.READY)
        writer.write("usb 1-1: something else", usec=1_000_000)
        writer.write(MMU_FAULT, usec=2_500_000)
        await notes.until(lambda: bool(notes.findings))

    (finding,) = notes.findings
    assert (finding.title, finding.pid) == ("Xid 31", 4242)
    assert (finding.observed_at, finding.boot_seconds) == (BOOTED_AT + 2.5, 2.5)
    assert finding.key == "kmsg:1:2500000"
    assert evidence.LOOK_BACK not in finding.evidence
    assert (notes.lost_records, notes.malformed_records) == (0, 0)


async def test_records_before_first_agent_of_the_boot_are_marked(path: Path, writer: kmsg.KmsgWriter) -> None:
    writer.write_xid(79, pci="0000:41:00", usec=1_000_000)
    notes = Notes()
    async with running(path, notes, watched_since=1.5):
        await notes.until(lambda: len(notes.findings) == 1)
        writer.write_xid(31, pci="0000:41:00", usec=2_000_000)
        await notes.until(lambda: len(notes.findings) == 2)

    assert [finding.evidence.get(evidence.LOOK_BACK) for finding in notes.findings] == ["true", None]


async def test_restarted_agent_reads_no_record_twice_and_misses_none(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes()
    writer.write_xid(31, pci="0000:41:00", usec=1_000_000)
    async with running(path, notes):
        await notes.until(lambda: notes.titles == ["Xid 31"] and notes.cursor is not None)

    writer.write_xid(43, pci="0000:41:00", usec=2_000_000)
    async with running(path, notes):
        await notes.until(lambda: notes.titles == ["Xid 31", "Xid 43"])
        writer.write_xid(94, pci="0000:41:00", usec=3_000_000)
        await notes.until(lambda: len(notes.findings) == 3)

    assert notes.titles == ["Xid 31", "Xid 43", "Xid 94"]
    assert len({finding.key for finding in notes.findings}) == 3
    assert evidence.LOOK_BACK not in notes.findings[1].evidence
    assert notes.cursor == kernel_log.Cursor(BOOT, 2, 3_000_000)


async def test_reboot_restarts_the_log(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes(cursor=kernel_log.Cursor("another-boot", 10**6, 10**12))
    writer.write_xid(31, pci="0000:41:00", usec=1_000_000)
    async with running(path, notes):
        await notes.until(lambda: notes.cursor == kernel_log.Cursor(BOOT, 0, 1_000_000))

    assert notes.titles == ["Xid 31"]
    assert notes.lost_records == 0


async def test_records_overwritten_while_away_are_counted(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes(cursor=kernel_log.Cursor(BOOT, 4, 900_000))
    writer.write(MMU_FAULT, usec=1_000_000, seq=15)
    async with running(path, notes):
        await notes.until(lambda: bool(notes.findings))

    assert notes.lost_records == 10


async def test_overwritten_records_are_counted_and_reading_continues(fifo: Path) -> None:
    device = FakeDevice([xid_record(31, seq=1), errno.EPIPE, errno.EPIPE, xid_record(43, seq=101)])
    notes = Notes()
    async with running(fifo, notes, open_log=device.open):
        await notes.until(lambda: len(notes.findings) == 2 and notes.records == 2)

    assert notes.titles == ["Xid 31", "Xid 43"]
    assert notes.lost_records == 99
    assert notes.state is ComponentState.READY


async def test_record_beyond_the_buffer_is_counted_and_skipped(fifo: Path) -> None:
    device = FakeDevice([xid_record(31, seq=1), errno.EINVAL, xid_record(43, seq=3)])
    notes = Notes()
    async with running(fifo, notes, open_log=device.open):
        await notes.until(lambda: notes.records == 2)

    assert notes.titles == ["Xid 31", "Xid 43"]
    assert (notes.malformed_records, notes.lost_records) == (1, 1)


async def test_malformed_record_does_not_end_the_reading(fifo: Path) -> None:
    device = FakeDevice([b"\xff\x00garbage", b"\n", xid_record(79, seq=1)])
    notes = Notes()
    async with running(fifo, notes, open_log=device.open):
        await notes.until(lambda: notes.records == 3)

    assert notes.titles == ["Xid 79"]
    assert notes.malformed_records == 2


async def test_failing_device_is_reported_and_reopened(fifo: Path) -> None:
    device = FakeDevice([xid_record(31, seq=1), errno.EIO, xid_record(31, seq=1), xid_record(43, seq=2)])
    notes = Notes()
    async with running(fifo, notes, open_log=device.open):
        await notes.until(lambda: len(notes.findings) == 2)
        await notes.until(lambda: notes.state is ComponentState.READY)

    assert notes.titles == ["Xid 31", "Xid 43"]
    assert [status.state for status in notes.statuses].count(ComponentState.DEGRADED) == 1


async def test_file_with_an_end_is_not_a_kernel_log(tmp_path: Path) -> None:
    notes = Notes()
    async with running(Path("/dev/null"), notes):
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)

    assert "unexpected end of file: a kernel log has no end" in notes.statuses[-1].message


@pytest.mark.parametrize("accepted", [False, True])
async def test_user_space_records_are_accepted_only_by_option(
    path: Path, writer: kmsg.KmsgWriter, accepted: bool
) -> None:
    notes = Notes()
    writer.write(MMU_FAULT, facility=1)
    writer.write_xid(79, pci="0000:41:00")
    async with running(path, notes, accept_user_records=accepted):
        await notes.until(lambda: "Xid 79" in notes.titles)

    assert notes.titles == (["Xid 31", "Xid 79"] if accepted else ["Xid 79"])


async def test_packet_filter_line_with_driver_text_is_not_a_finding(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes()
    writer.write(f"{MMU_FAULT}, IN=eth0 OUT= MAC= SRC=192.0.2.1 DST=192.0.2.2 LEN=84")
    writer.write("nvidia 0000:41:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=x", dictionary={})
    writer.write_xid(79, pci="0000:41:00")
    async with running(path, notes):
        await notes.until(lambda: "Xid 79" in notes.titles)

    assert notes.titles == ["Xid 79"]


async def test_half_written_record_is_awaited(path: Path, writer: kmsg.KmsgWriter) -> None:
    raw = kmsg.record(MMU_FAULT, seq=0, usec=1, dictionary={"SUBSYSTEM": "pci"})
    notes = Notes()
    async with running(path, notes):
        with writer.path.open("ab", buffering=0) as log:
            for piece in (raw[:3], raw[3:20], raw[20:-15], raw[-15:]):
                log.write(piece)
                await notes.until(lambda: notes.state is ComponentState.READY)
        await notes.until(lambda: bool(notes.findings))

    assert notes.titles == ["Xid 31"]
    assert notes.malformed_records == 0


async def test_endless_line_is_skipped(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes()
    async with running(path, notes):
        with path.open("ab", buffering=0) as log:
            for _ in range(40):
                log.write(b"x" * 50_000)
            log.write(b"\n")
        writer.write_xid(79, pci="0000:41:00")
        await notes.until(lambda: bool(notes.findings))

    assert notes.titles == ["Xid 79"]
    assert notes.malformed_records == 1


async def test_truncation_is_tolerated(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes()
    writer.write("a long line to make the file longer than what follows: " + "x" * 500, usec=1)
    writer.write_xid(31, pci="0000:41:00", usec=2)
    async with running(path, notes):
        await notes.until(lambda: notes.titles == ["Xid 31"])
        os.truncate(path, 0)
        writer.write_xid(43, pci="0000:41:00", usec=3)
        await notes.until(lambda: len(notes.findings) == 2)

    assert notes.titles == ["Xid 31", "Xid 43"]
    assert len({finding.key for finding in notes.findings}) == 2
    assert notes.lost_records == 0


async def test_rotation_is_followed(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes()
    writer.write_xid(31, pci="0000:41:00", usec=1)
    async with running(path, notes):
        await notes.until(lambda: notes.titles == ["Xid 31"])
        fresh = path.with_suffix(".new")
        kmsg.KmsgWriter(fresh).write_xid(43, pci="0000:41:00", usec=2)
        fresh.rename(path)
        await notes.until(lambda: len(notes.findings) == 2)
        writer.write_xid(94, pci="0000:41:00", usec=3)
        await notes.until(lambda: len(notes.findings) == 3)

    assert notes.titles == ["Xid 31", "Xid 43", "Xid 94"]


async def test_deleted_log_is_reported_and_its_successor_read(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes()
    writer.write_xid(31, pci="0000:41:00", usec=1)
    async with running(path, notes):
        await notes.until(lambda: notes.titles == ["Xid 31"])
        writer.path.unlink()
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)
        kmsg.KmsgWriter(path).write_xid(43, pci="0000:41:00", usec=2)
        await notes.until(lambda: len(notes.findings) == 2 and notes.state is ComponentState.READY)

    assert notes.titles == ["Xid 31", "Xid 43"]


async def test_log_recreated_while_away_is_not_the_old_one(path: Path, writer: kmsg.KmsgWriter) -> None:
    notes = Notes(cursor=kernel_log.Cursor(BOOT, 500, 1_000_000))
    writer.write_xid(43, pci="0000:41:00", usec=9_000_000)
    async with running(path, notes):
        await notes.until(lambda: bool(notes.findings))

    assert notes.titles == ["Xid 43"]


async def test_log_that_appears_later_is_picked_up(path: Path) -> None:
    notes = Notes()
    async with running(path, notes):
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)
        kmsg.KmsgWriter(path).write_xid(79, pci="0000:41:00")
        await notes.until(lambda: bool(notes.findings))

    assert [status.state for status in notes.statuses] == [ComponentState.DEGRADED, ComponentState.READY]
    status = notes.statuses[0]
    assert str(path) in status.message
    assert "mount the host's /dev/kmsg" in status.hint
    assert "\n" not in status.message + status.hint


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
async def test_forbidden_log_is_reported_with_hint_and_retried(fifo: Path, number: int) -> None:
    device = FakeDevice([xid_record(79, seq=1)])
    refusals = [OSError(number, os.strerror(number)), OSError(number, os.strerror(number))]

    def open_log(path: Path) -> kmsg_readers.RecordReader:
        if refusals:
            raise refusals.pop()
        return device.open(path)

    notes = Notes()
    async with running(fifo, notes, open_log=open_log):
        await notes.until(lambda: bool(notes.findings))

    assert [status.state for status in notes.statuses] == [ComponentState.DEGRADED, ComponentState.READY]
    assert "SYSLOG" in notes.statuses[0].hint


async def test_directory_is_not_a_kernel_log(tmp_path: Path) -> None:
    notes = Notes()
    async with running(tmp_path, notes):
        await notes.until(lambda: notes.state is ComponentState.DEGRADED)

    assert "neither a device nor a regular file" in notes.statuses[-1].message
    assert "pass /dev/kmsg" in notes.statuses[-1].hint


async def test_flood_loses_nothing_and_saves_once_per_batch(path: Path, writer: kmsg.KmsgWriter) -> None:
    count = 20_000
    notes = Notes()
    async with running(path, notes):
        await notes.until(lambda: notes.state is ComponentState.READY)
        with path.open("ab") as log:
            for seq in range(count):
                text = MMU_FAULT if seq % 1000 == 0 else f"audit: type=1400 audit({seq}): apparmor=ALLOWED"
                log.write(kmsg.record(text, seq=seq, usec=seq))
        await notes.until(lambda: notes.cursor is not None and notes.cursor.seq == count - 1)

    assert notes.records == count
    assert len(notes.findings) == count // 1000
    assert (notes.lost_records, notes.malformed_records) == (0, 0)
    assert notes.saves < count / 100


async def test_log_is_not_read_on_while_findings_wait(fifo: Path) -> None:
    """The kernel keeps the lines; a finding that does not fit into the queue is lost."""
    device = Flood(count=5000, gap=(4000, 0), torn=0)
    notes, asked, handled = Notes(), asyncio.Event(), asyncio.Event()

    async def drained() -> None:
        if notes.findings:
            asked.set()
            await handled.wait()

    async with running(fifo, notes, open_log=device.open, drained=drained):
        async with asyncio.timeout(60):
            await asked.wait()
        assert notes.records <= 1000
        handled.set()
        await notes.until(lambda: notes.records == 5000)


async def test_hundred_thousand_records_are_read_or_counted_with_flat_memory(fifo: Path) -> None:
    """At full speed: the kernel overwrites some records in the meantime, some are torn, all are accounted for."""
    count, overwritten, torn = 100_000, 137, 11
    device = Flood(count=count, gap=(40_000, overwritten), torn=torn)
    notes = Notes()
    async with running(fifo, notes, open_log=device.open):
        await notes.until(lambda: notes.records >= count // 2)
        device.measuring.set()
        await notes.until(lambda: notes.cursor is not None and notes.cursor.seq == count - 1)

    assert (notes.lost_records, notes.malformed_records) == (overwritten + torn, torn)
    assert notes.records + overwritten == count
    assert len(notes.findings) == device.faults
    assert device.growth is not None
    assert device.growth < count // 20, f"{device.growth} blocks more after the second half"


async def test_error_of_a_port_concerns_the_gpu_below_it(tmp_path: Path, path: Path, writer: kmsg.KmsgWriter) -> None:
    devices = tmp_path / "sys" / "bus" / "pci" / "devices"
    for name, code in (("0000:40:01.1", "0x060400"), ("0000:40:01.1/0000:41:00.0", "0x030200")):
        (devices / name).mkdir(parents=True, exist_ok=True)
        (devices / name / "class").write_text(code)
    notes = Notes()
    async with running(path, notes, sysfs=tmp_path / "sys"):
        writer.write("pcieport 0000:40:01.1: DPC: containment event, status:0x1f01 source:0x0000")
        await notes.until(lambda: bool(notes.findings))

    (finding,) = notes.findings
    assert (finding.title, str(finding.device)) == ("AerFatal", "0000:41:00.0")
    assert finding.evidence[evidence.REPORTED_BY] == "0000:40:01.1"


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
async def test_kernel_log_of_this_machine_is_parsed() -> None:
    notes = Notes()
    async with running(Path("/dev/kmsg"), notes):
        await notes.until(lambda: bool(notes.statuses))
        if notes.state is ComponentState.READY:
            await notes.until(lambda: notes.cursor is not None)

    if notes.state is ComponentState.DEGRADED:
        pytest.skip(notes.statuses[-1].message)
    assert notes.records > 0
    assert notes.malformed_records == 0


async def test_log_with_clock_hours_late_dates_new_records_as_now(fifo: Path) -> None:
    old, new = await dates_of_two_records(fifo, since_boot=lambda: 7200.002)
    assert old.boot_seconds == 0.001
    assert new.boot_seconds == pytest.approx(7200.002)
    assert new.observed_at == pytest.approx(BOOTED_AT + 7200.002)


async def test_record_that_was_read_after_a_stop_of_the_agent_is_not_dated_later(fifo: Path) -> None:
    """Otherwise a container that replaced the faulty one in the meantime would be restarted for it."""
    was_empty, read_first, went_on = 0.001, 0.001, 3600.0
    times = iter([was_empty, read_first])
    _, new = await dates_of_two_records(fifo, since_boot=lambda: next(times, went_on))
    assert new.boot_seconds == 0.002


async def dates_of_two_records(fifo: Path, *, since_boot: Callable[[], float]) -> list[Finding]:
    """Return the findings of a record that was there before, and of one for which the reader waited."""
    device = FakeDevice([xid_record(31, seq=1), errno.EAGAIN, xid_record(43, seq=2)])
    notes = Notes()

    def open_log(path: Path) -> kmsg_readers.DeviceReader:
        return kmsg_readers.DeviceReader(path, read=device.read, since_boot=since_boot)

    async with running(fifo, notes, open_log=open_log):
        await notes.until(lambda: len(notes.findings) == 1)
        printed = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(printed, b"x")
            await notes.until(lambda: len(notes.findings) == 2)
        finally:
            os.close(printed)
    return notes.findings


def test_records_and_processes_are_dated_by_one_clock(monkeypatch: pytest.MonkeyPatch, fifo: Path) -> None:
    """CLOCK_BOOTTIME, in which processes' start times are: after a suspend CLOCK_MONOTONIC is hours behind."""
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7200.0, time.CLOCK_MONOTONIC: 60.0}.__getitem__)
    monkeypatch.setattr(time, "time", lambda: BOOTED_AT + 7200.0)
    assert kernel_log.wall_offset() == BOOTED_AT
    with contextlib.closing(kmsg_readers.DeviceReader(fifo, read=FakeDevice([]).read)) as reader:
        assert reader.read().read_at == 7200.0
