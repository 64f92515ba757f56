"""Prove a real GPU: the kernels compile and run, and a GPU that works gives no false alarm.

The command itself proves nothing outside the node's initial PID namespace, so its test is skipped there.
"""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from tests.contract.nvml import real
from tests.gpu.records import RECORDS

pytestmark = pytest.mark.gpu

RUNS = 200
SECONDS = 150.0
"""All of ``make test-gpu`` takes ten minutes: a slower GPU is proved less often."""
PATIENCE = 300.0


@pytest.fixture(autouse=True)
def _with_cuda() -> None:
    if (reason := real.missing()) is not None:
        pytest.skip(reason)
    if (reason := real.cuda_unusable()) is not None:
        pytest.skip(reason)


async def run(*command: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", *command]
    env = {**os.environ, "CUDA_CACHE_DISABLE": "1"}
    return await asyncio.to_thread(
        subprocess.run, argv, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


async def test_idle_gpus_pass_and_their_rates_are_recorded() -> None:
    if (reason := real.cuda_missing()) is not None:
        pytest.skip(reason)

    done = await run("kubemend.agent.cli", "prove", "--json")

    report = json.loads(done.stdout)
    RECORDS.measured["prove"] = report
    outcomes = {row["outcome"] for row in (*report["gpus"], *report["pairs"])}
    assert report["gpus"]
    assert outcomes <= {"Passed", "Skipped"}, report


@pytest.mark.timeout(PATIENCE)
async def test_two_hundred_proofs_give_no_false_alarm() -> None:
    done = await run("bench.proofs", "--driver=real", "--full", f"--runs={RUNS}", f"--seconds={SECONDS}")

    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    RECORDS.measured["proofs"] = figures
    assert figures["passed"] == figures["runs"] > 0
