"""Measure the time from a fault to the next training step inside one pod, on any node, without an agent.

The same transformer is trained with PyTorch twice, on the first GPU: once a loop in the shell starts the process again,
as torchrun --max-restarts does, and once kubemend's launcher does, with a warm spare. Each trainer fails some times,
five steps after a checkpoint. With the launcher each fault waits until a spare is ready, for a minute at most.

It needs only this directory, the launcher, and a Python from 3.11 on with torch (examples/bench/steps.yaml). The
figures are those of ``python -m bench.steps.gpu``, which measures more ways, on a node of its own.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.steps import records, recovery

_HERE: Final = Path(__file__).resolve().parent
_READY: Final = b"kubemend-run: the spare is ready"
_SPARE_SECONDS: Final = 60.0
_CHUNK: Final = 65536
_WAYS: Final = {
    "process": "a loop in the container starts the process again, as torchrun --max-restarts does",
    "spare": "kubemend's launcher with a warm spare",
}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Set what each trainer does: it fails ``faults`` times, at least ``every`` steps apart."""

    train: Path
    launcher: Path
    directory: Path
    faults: int
    every: int
    spare_after: str


def command(way: str, plan: Plan) -> Sequence[str]:
    """Return the command that runs a way's trainer."""
    if way == "process":
        return ("/bin/sh", "-c", 'until "$0" "$1"; do :; done', sys.executable, str(plan.train))
    options = ("--max-restarts", "100", "--spare-after", plan.spare_after, "--spare-cpu", "100")
    return (sys.executable, str(plan.launcher), *options, "--", sys.executable, str(plan.train))


@dataclass(slots=True)
class _Run:
    """One way's trainer, with its records in ``where``. ``spares`` has for each fault whether a spare was ready."""

    way: str
    plan: Plan
    where: Path
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    spares: list[bool] = field(default_factory=list)

    @property
    def records(self) -> Path:
        return self.where / "0.records"

    async def measure(self) -> Json:
        async with self._running() as process, asyncio.TaskGroup() as tasks:
            watching = [
                tasks.create_task(records.until_unexpected_end(self.records), name="watch"),
                tasks.create_task(_until_ended(process), name="end"),
            ]
            if self.way == "spare":
                watching.append(tasks.create_task(self._allow_faults(), name="faults"))
            found = await records.with_recoveries(self.records, count=self.plan.faults, what=self.way)
            for each in watching:
                each.cancel()
        return {
            "what": _WAYS[self.way],
            **recovery.figures(found),
            **({"had_spare": self.spares} if self.spares else {}),
        }

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run the trainer; at the end kill it, and wait until all that it has started is dead."""
        ours = {
            "STEPS_RECORDS": str(self.where),
            "STEPS_FAULTS": str(self.plan.faults),
            "STEPS_FAULT_EVERY": str(self.plan.every),
            "KUBEMEND_CACHE": str(self.where / "cache"),
            **({"STEPS_TRIGGER": "1"} if self.way == "spare" else {}),
        }
        process = await asyncio.create_subprocess_exec(
            *command(self.way, self.plan),
            env={**os.environ, **ours},
            stdout=sys.stderr,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        reading = asyncio.create_task(self._read(process))
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the kernel kills what the launcher has started
            await process.wait()
            await reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Pass on what launcher and trainer write, until none of them is left."""
        assert process.stderr is not None
        line = b""
        while chunk := await process.stderr.read(_CHUNK):
            sys.stderr.write(chunk.decode("utf-8", "replace"))
            *lines, line = (line + chunk).split(b"\n")
            if any(each.startswith(_READY) for each in lines):
                self.ready.set()
            line = line[:_CHUNK]

    async def _allow_faults(self) -> None:
        """Allow each fault once a spare is ready, or has not become ready in a minute."""
        for number in range(self.plan.faults):
            await records.until_recovered(self.records, count=number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SPARE_SECONDS):
                    await self.ready.wait()
            self.spares.append(self.ready.is_set())
            self.ready.clear()
            (self.where / f"fail-{number}").touch()


async def _until_ended(process: asyncio.subprocess.Process) -> None:
    raise RuntimeError(f"the trainer's main process has ended with exit code {await process.wait()}")


async def measure(plan: Plan) -> Json:
    """Return the figures of all ways. Raises ExceptionGroup, or TimeoutError, if a trainer does not run or recover."""
    report: Json = {"trainer": {}, "ways": {}}
    for way in _WAYS:
        where = plan.directory / way
        where.mkdir(parents=True)
        report["ways"][way] = await _Run(way, plan, where).measure()
        report["trainer"] = json.loads((where / "about.json").read_text())
        shutil.rmtree(where)  # a checkpoint for each way would fill the volume
    return report


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps.pod", description=_first_line())
    parser.add_argument("--directory", type=Path, required=True, help="for records and checkpoints; must be empty")
    parser.add_argument("--faults", type=int, default=3, help="faults of each trainer (default 3)")
    parser.add_argument("--every", type=int, default=25, help="steps between faults, at least (default 25)")
    parser.add_argument("--spare-after", default="1s", help="as of the launcher (default 1s)")
    parser.add_argument("--train", type=Path, default=_HERE / "train_torch.py", help="the trainer")
    parser.add_argument(
        "--launcher", type=Path, default=_HERE.parents[1] / "launcher" / "kubemend_run.py", help="the launcher"
    )
    given = parser.parse_args(arguments)
    plan = Plan(given.train, given.launcher, given.directory, given.faults, given.every, given.spare_after)
    print(json.dumps(asyncio.run(measure(plan)), indent=2))


def _first_line() -> str:
    return (__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    main()
