"""Make each kind of CUDA fault outside of pods, and record what the kernel, NVML and CUDA report, and when."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.nvml import real
from tests.gpu import faulty
from tests.gpu.records import RECORDS
from tests.gpu.witnesses import KernelLog, nvml_events

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

SECONDS = 15.0
QUIET = 1.0
"""Seconds after the error within which the last line and event come: NVML's are up to 120 ms late."""
SPINS = 1.5
XID_EVENT = "0x8"


@pytest.fixture(autouse=True)
def _with_cuda() -> None:
    if (reason := real.missing()) is not None:
        pytest.skip(reason)
    if (reason := real.cuda_unusable()) is not None:
        pytest.skip(reason)


def lives(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the program's events by name, the last of each."""
    path = directory / "lives"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["event"]: row for row in rows}


async def until(directory: Path, event: str, *, seconds: float = SECONDS) -> dict[str, Any]:
    """Wait for an event of the program."""
    async with asyncio.timeout(seconds):
        while event not in (found := lives(directory)):  # noqa: ASYNC110 - another process's file
            await asyncio.sleep(0.005)
    return found[event]


def after(launched: float, at: float) -> float:
    return round(1000 * (at - launched), 2)


@pytest.mark.parametrize("name", faulty.KERNELS)
async def test_fault_is_reported_by_the_kernel_as_it_was_recorded(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.faulty", f"--directory={tmp_path}", "--stays"]
    child = await asyncio.to_thread(subprocess.Popen, command, env={**os.environ, "CUDA_CACHE_DISABLE": "1"})
    try:
        with nvml_events() as events:
            async with KernelLog.followed() as log:
                await until(tmp_path, "ready")
                (tmp_path / "fault").write_text(name)
                launched = (await until(tmp_path, "launched"))["at"]
                error = None
                if name == "spin":
                    await asyncio.sleep(SPINS)
                else:
                    with contextlib.suppress(TimeoutError):  # what came instead is recorded, too
                        error = await until(tmp_path, "error")
                    await asyncio.sleep(QUIET)
                killed = time.perf_counter()
                child.kill()
                await asyncio.to_thread(child.wait)
                reaped = time.perf_counter() - killed
                await asyncio.sleep(QUIET)
    finally:
        child.kill()
        child.wait()

    RECORDS.kernel_log += [record for _, record in log.records]
    RECORDS.faults[name] = {
        "pid": child.pid,
        "cuda": f"{error['code']} {error['name']}" if error is not None else "",
        "cuda_error_ms": after(launched, error["at"]) if error is not None else None,
        "nvml": [[after(launched, at), data] for at, kind, data in events if kind == XID_EVENT],
        "other_events": [[after(launched, at), kind] for at, kind, _ in events if kind != XID_EVENT],
        "kernel": [[after(launched, at), record] for at, record in log.records],
        "kill_to_reaped_ms": round(1000 * reaped, 2),
    }
    assert log.codes() == faulty.XIDS[name]
    assert names_the_process([record for _, record in log.xids()], child.pid) == bool(faulty.XIDS[name])


def names_the_process(records: Sequence[str], pid: int) -> bool:
    """Return whether one of the lines has the pid."""
    return any(f"pid={pid}," in record for record in records)
