"""The kernel log of a scan: its times are those of processes' starts."""

import time
from pathlib import Path

import pytest

from hack import kmsg
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.scan import kernel_log


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


async def test_log_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    found = await kernel_log.check(
        tmp_path / "none", sysfs=Path("/nowhere"), catalog=catalog_file.builtin(), timeout=60.0
    )
    assert not found.findings
    assert [each.part for each in found.unseen] == ["kernel-log"]


def _after(suspended: float, clock: int, awake: float, other: float) -> float:
    return awake + suspended if clock == time.CLOCK_BOOTTIME else other
