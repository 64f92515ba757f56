"""Measure and record the cost of watching a real GPU, with bounds for defects only."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.sources.nvml.protocol import Condition, DevicesAnswer
from kubemend.agent.sources.nvml.source import NvmlSource
from kubemend.common.components import ComponentState, ComponentStatus
from tests.contract.nvml import probing, real
from tests.gpu.records import RECORDS

pytestmark = pytest.mark.gpu

PATIENCE = 45.0
QUERIES = 50
POLLS = 100
_TIMEOUT = 10  # NVML_ERROR_TIMEOUT
_WAIT = """
import json, time, pynvml as nvml
from kubemend.agent.sources.nvml.events import WANTED
nvml.nvmlInit()
events = nvml.nvmlEventSetCreate()
for index in range(nvml.nvmlDeviceGetCount()):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlDeviceGetSupportedEventTypes(handle) & WANTED, events)
wall, work = time.perf_counter(), time.process_time()
try:
    nvml.nvmlEventSetWait(events, 500)
    result = 0
except nvml.NVMLError as error:
    result = error.value
wall, work = time.perf_counter() - wall, time.process_time() - work
print(json.dumps({"result": result, "wait_500_ms_took_ms": round(1000 * wall, 2), "cpu_ms": round(1000 * work, 3)}))
"""
AT_REST = 10.0  # seconds of watching the worker do its normal work


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


async def test_the_cost_of_watching_is_measured() -> None:
    if (reason := real.missing()) is not None:
        pytest.skip(reason)
    findings: list[Finding] = []
    statuses: asyncio.Queue[ComponentStatus] = asyncio.Queue()
    source = NvmlSource(emit=findings.append, classify=lambda kind, code: ActionClass.NONE, report=statuses.put_nowait)
    begun = time.perf_counter()
    task = asyncio.create_task(source.run())
    async with asyncio.timeout(PATIENCE):
        while (await statuses.get()).state is not ComponentState.READY:
            pass
    ready = time.perf_counter() - begun
    pid = source.worker_pid
    assert pid is not None
    uuids = [gpu.uuid for gpu in source.inventory.gpus]
    took = []
    for _ in range(QUERIES):
        asked = time.perf_counter()
        answer = await source.query(uuids, timeout=PATIENCE)
        took.append(1000 * (time.perf_counter() - asked))
        assert isinstance(answer, DevicesAnswer)
        assert all(device.condition is Condition.ANSWERS for device in answer.devices)
    used = cpu_seconds(pid)
    await asyncio.sleep(AT_REST)  # the measurement itself: the cost of polls and waits while nothing happens
    used = cpu_seconds(pid) - used
    rss = rss_mib(pid)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    polls = (await asyncio.to_thread(probing.look, os.environ, rounds=20))["polls"]

    RECORDS.measured["watching"] = {
        "gpus": len(uuids),
        "spawn_to_ready_s": round(ready, 2),
        "query_ms_p50": round(statistics.median(took), 2),
        "query_ms_max": round(max(took), 2),
        "worker_cpu_percent": round(100 * used / AT_REST, 2),
        "worker_rss_mib": round(rss, 1),
        "full_poll": polls["full"],
        "cheap_poll": polls["cheap"],
    }
    assert [finding for finding in findings if finding.kind is not FindingKind.FAULT_OVER] == []
    assert rss < 200


async def test_a_wait_for_events_ends_at_its_timeout_and_is_measured() -> None:
    if (reason := real.missing()) is not None:
        pytest.skip(reason)

    output = await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", _WAIT], timeout=PATIENCE)

    RECORDS.measured["wait"] = json.loads(output)
    assert RECORDS.measured["wait"]["result"] == _TIMEOUT


async def test_each_call_of_a_poll_is_timed() -> None:
    if (reason := real.missing()) is not None:
        pytest.skip(reason)

    line = [sys.executable, "-m", "bench.poll_cost", str(POLLS)]
    output = await asyncio.to_thread(subprocess.check_output, line, timeout=PATIENCE)

    RECORDS.measured["poll"] = json.loads(output)
    assert RECORDS.measured["poll"]["calls"]


async def test_what_a_real_gpu_answers_is_recorded() -> None:
    """One line of the worker's output is test data for developers without such a GPU."""
    if (reason := real.missing()) is not None:
        pytest.skip(reason)

    looked = await asyncio.to_thread(probing.look, os.environ)

    RECORDS.measured["snapshot"] = json.loads(looked["full"])
    assert RECORDS.measured["snapshot"]["slots"]
