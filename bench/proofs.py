"""Prove a GPU many times, and count the false alarms: a GPU that works must never fail.

``--driver fake`` starts a fake CUDA driver whose GPU answers right; ``--driver real`` uses this machine's first GPU,
which must be idle. Each run has its own patterns. Prints JSON; the exit code is 1 if any run did not pass. Goal: no
false alarm in 10,000 runs on the fake, and in 200 on a real GPU.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from hack.fakecuda import control
from hack.fakecuda.control import MIB, FakeCuda
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.prove import judging, measurements, measuring
from kubemend.agent.prove.cuda import Cuda, CudaError
from kubemend.agent.prove.measurements import CudaFailure, Facts, Message
from kubemend.agent.prove.verdicts import Outcome, Verdict
from kubemend.agent.sources.nvml.calls import Calls

_CHEAP: Final = {"copy_size": 4096, "least_memory": 65536, "depth": 16, "rounds": 3, "samples": 2}
_CHEAP_MEMORY: Final = MIB // 4
_MOST_SHOWN: Final = 20


def once(cuda: Cuda, plan: measuring.Plan) -> Verdict:
    """Prove the first visible GPU once, in this process."""
    messages: list[Message] = []
    try:
        measuring.one_gpu(cuda, messages.append, plan=plan)
    except CudaError as error:
        messages.append(CudaFailure(call=error.call, code=error.code, name=error.name, test=cuda.test))
    uuid = next((each.uuid for each in messages if isinstance(each, Facts)), "")
    return judging.judge(DeviceId(uuid), measurements.gathered(messages))


def many(runs: int, *, cheap: bool, seconds: float = math.inf) -> dict[str, Any]:
    """Prove ``runs`` times, or as often as the seconds allow, on the driver that this process loads.

    Return the figures.
    """
    cuda = Cuda(Calls(deadline=60.0, announce=lambda _: None, came_back=lambda: None))
    began, others = time.monotonic(), []
    longest, made = 0.0, 0
    for number in range(runs):
        if (now := time.monotonic()) - began + longest > seconds:
            break
        verdict = once(cuda, measuring.Plan(**(_CHEAP if cheap else {}), seed=number * 0x1234567))
        if verdict.outcome is not Outcome.PASSED:
            others.append({"run": number, "outcome": verdict.outcome.value, "message": verdict.message})
        longest, made = max(longest, time.monotonic() - now), made + 1
    return {
        "runs": made,
        "passed": made - len(others),
        "falseAlarms": sum(each["outcome"] == Outcome.FAILED.value for each in others),
        "notPassed": others[:_MOST_SHOWN],
        "seconds": round(time.monotonic() - began, 1),
        "longest": round(longest, 2),
    }


def _make_small(cuda: FakeCuda) -> None:
    with cuda.gpu(0) as gpu:
        gpu.memory_total = _CHEAP_MEMORY


@contextlib.contextmanager
def _fake(*, cheap: bool) -> Iterator[dict[str, str]]:
    """Provide an environment in which a process has a GPU that answers right."""
    with tempfile.TemporaryDirectory() as directory:
        library = control.build(Path(directory) / "library")
        with FakeCuda(Path(directory) / "state", library.parent, gpus=1) as cuda:
            if cheap:
                _make_small(cuda)
            yield cuda.env()


@click.command()
@click.option("--runs", default=10_000, show_default=True, type=click.IntRange(min=1))
@click.option("--driver", default="fake", show_default=True, type=click.Choice(["fake", "real"]))
@click.option("--seconds", default=math.inf, help="Make no more runs than fit into them; by default all.")
@click.option("--full", is_flag=True, help="As large as kubemend prove. Without it: small, as for the fake driver.")
def main(*, runs: int, driver: str, seconds: float, full: bool) -> None:
    """Prove a GPU many times and print the figures."""
    if driver == "fake":  # the loader reads its path when a process starts
        command = [
            sys.executable,
            "-m",
            "bench.proofs",
            "--driver=real",
            f"--runs={runs}",
            f"--seconds={seconds}",
            *(["--full"] if full else []),
        ]
        with _fake(cheap=not full) as environment:
            done = subprocess.run(command, env={**os.environ, **environment}, check=False)
        sys.exit(done.returncode)
    figures = many(runs, cheap=not full, seconds=seconds)
    click.echo(json.dumps(figures, indent=2))
    sys.exit(int(figures["passed"] != figures["runs"]))


if __name__ == "__main__":
    main()
