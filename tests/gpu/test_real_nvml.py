"""What watching a real GPU costs: printed as one JSON line (run with ``-s``), with bounds that only a defect breaks."""

import asyncio
import json
import os
import statistics
import time
from pathlib import Path

import pytest

from agent.model.actions import ActionClass
from agent.model.findings import Finding
from agent.model.parts import PartState, PartStatus
from agent.sources.nvml.protocol import DevicesAnswer
from agent.sources.nvml.source import NvmlSource
from tests.contract.nvml import real

pytestmark = pytest.mark.gpu

PATIENCE = 45.0
QUERIES = 50
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
    statuses: asyncio.Queue[PartStatus] = asyncio.Queue()
    source = NvmlSource(emit=findings.append, classify=lambda kind, code: ActionClass.NONE, report=statuses.put_nowait)
    begun = time.perf_counter()
    task = asyncio.create_task(source.run())
    async with asyncio.timeout(PATIENCE):
        while (await statuses.get()).state is not PartState.READY:
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
        assert answer.all_answer
    used = cpu_seconds(pid)
    await asyncio.sleep(AT_REST)  # the measurement itself: what polls and waits cost while nothing happens
    used = cpu_seconds(pid) - used
    rss = rss_mib(pid)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    measured = {
        "gpus": len(uuids),
        "spawn_to_ready_s": round(ready, 2),
        "query_ms_p50": round(statistics.median(took), 2),
        "query_ms_max": round(max(took), 2),
        "worker_cpu_percent": round(100 * used / AT_REST, 2),
        "worker_rss_mib": round(rss, 1),
    }
    print(json.dumps(measured))  # noqa: T201 - the figures are what the test is for
    assert findings == []
    assert rss < 200
