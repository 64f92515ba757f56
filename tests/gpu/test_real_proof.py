"""Prove a real GPU: the kernels compile and run, and a GPU that works gives no false alarm."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from tests.contract.nvml import real

pytestmark = pytest.mark.gpu

RUNS = 200
PATIENCE = 900.0  # seconds


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


async def test_idle_gpus_pass_and_their_rates_are_printed() -> None:
    done = await run("kubemend.agent.cli", "prove", "--json")

    print(done.stdout)  # noqa: T201 - the test exists to print the record, too
    report = json.loads(done.stdout)
    outcomes = {row["outcome"] for row in (*report["gpus"], *report["pairs"])}
    assert report["gpus"]
    assert outcomes <= {"Passed", "Skipped"}, report


@pytest.mark.timeout(PATIENCE)
async def test_two_hundred_proofs_give_no_false_alarm() -> None:
    done = await run("bench.proofs", "--driver=real", "--full", f"--runs={RUNS}")

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["passed"] == RUNS
