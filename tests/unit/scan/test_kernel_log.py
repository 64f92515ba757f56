"""The kernel log of a scan: its times are those of processes' starts."""

import errno
import time
from pathlib import Path

import pytest

from hack import kmsg
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.scan import kernel_log
from kubemend.agent.scan.report import LogFound
from kubemend.agent.sources import kmsg_readers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with one fault, half a minute after the boot by its own clock."""
    kmsg.KmsgWriter(tmp_path / "kmsg").write_xid(31, pci="0000:41:00", usec=30_000_000)
    return tmp_path / "kmsg"


@pytest.mark.parametrize("suspended", [0.0, 7200.0])
async def test_fault_after_a_suspend_is_dated_by_the_clock_of_processes(
    path: Path, monkeypatch: pytest.MonkeyPatch, suspended: float
) -> None:
    """Otherwise its process would seem to have begun later, and the fault to be over."""
    awake, clock_gettime = time.monotonic, time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: _after(suspended, clock, awake(), clock_gettime(clock)))
    found = await kernel_log.check(path, sysfs=Path("/nowhere"), catalog=catalog_file.builtin(), timeout=60.0)
    (fault,) = found.findings
    assert fault.boot_seconds == pytest.approx(30.0 + suspended, abs=0.5)
    booted_at = time.time() - awake() - suspended
    assert fault.observed_at == pytest.approx(booted_at + 30.0 + suspended, abs=5.0)


async def test_empty_log_is_neither_a_problem_nor_a_note(tmp_path: Path) -> None:
    log = kmsg.KmsgWriter(tmp_path / "kmsg")
    assert (
        await kernel_log.check(log.path, sysfs=Path("/nowhere"), catalog=catalog_file.builtin(), timeout=60.0)
        == LogFound()
    )


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), "cannot be read: No such file", "with --kernel-log"),
        (PermissionError(errno.EPERM, "Not permitted"), "cannot be read: Not permitted", "capability SYSLOG"),
        (PermissionError(errno.EACCES, "Denied"), "cannot be read: Denied", "capability SYSLOG"),
        (kmsg_readers.LogReplacedError(), "became another file", "scan again"),
        (TimeoutError(), "could not be read to its end within 60 s", "increase --timeout"),
    ],
    ids=["missing", "not-permitted", "denied", "replaced", "slow"],
)
async def test_log_that_cannot_be_read_is_reported_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, what: str, hint: str
) -> None:
    def fail(_: Path) -> None:
        raise error

    monkeypatch.setattr(kmsg_readers, "open_log", fail)
    path = tmp_path / "kmsg"
    found = await kernel_log.check(path, sysfs=Path("/nowhere"), catalog=catalog_file.builtin(), timeout=60.0)
    (problem,) = found.unseen
    assert problem.part == "kernel-log"
    assert problem.what.startswith(f"{path} {what}")
    assert hint in problem.hint


async def test_lines_of_user_space_and_broken_records_are_no_faults(path: Path) -> None:
    log = kmsg.KmsgWriter(path)
    log.write("NVRM: Xid (PCI:0000:42:00): 79, GPU has fallen off the bus.", facility=1)
    with path.open("ab") as file:
        file.write(b"4,x,y,-;NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus.\n")
    log.write_xid(79, pci="0000:44:00")
    found = await kernel_log.check(path, sysfs=Path("/nowhere"), catalog=catalog_file.builtin(), timeout=60.0)
    assert [each.code for each in found.findings] == ["31", "79"]
    assert str(found.findings[1].device.pci) == "0000:44:00.0"
    assert found.notes == ()


async def test_log_whose_oldest_records_are_gone_has_a_note(tmp_path: Path) -> None:
    log = kmsg.KmsgWriter(tmp_path / "kmsg")
    for hours in (2, 50):
        log.write("usb 1-1: new device", seq=7 * hours, usec=hours * 3_600_000_000)
    found = await kernel_log.check(log.path, sysfs=Path("/nowhere"), catalog=catalog_file.builtin(), timeout=60.0)
    assert found.notes == ("the kernel log begins 2.0 h after the boot: earlier records have been overwritten",)


def _after(suspended: float, clock: int, awake: float, other: float) -> float:
    return awake + suspended if clock == time.CLOCK_BOOTTIME else other
