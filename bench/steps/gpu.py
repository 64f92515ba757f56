"""Measure the time from a fault to the next training step on a real GPU, for each way to restart a trainer.

One pod after another trains the same transformer with PyTorch on this machine's GPU: by default 1.2 billion parameters,
whose checkpoint has 7 GB. First the steps run as they are, then the model is compiled, which begins, except for the
first way, with the compile cache of that one. Each trainer fails some times, five steps after a checkpoint; it ends by
itself, but in ``agent-process``: there a kernel writes to an address that does not exist, the program continues, and
the driver reports Xid 31.

The ways and the figures are those of ``python -m bench.steps``; ``second_step_s`` is the time from the fault to the
second step that is finished after it. Ways that do not fit into ``--limit`` are not measured, and each way is written
when it is over. ``--simulated`` rehearses all of it without a GPU.

``--write docs/steps-gpu.json`` saves it, and ``python -m hack.steps_doc`` generates the page from that.
"""

import asyncio
import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click

from bench import all as bench_all
from bench.steps import alone, arms, records
from hack.devnode import kubernetes, node, realgpus
from hack.devnode.observer import Observer
from kubemend.common import logs
from kubemend.common.kube import client as kube

_SEED: Final = f"{arms.RECORDS}/seed"
_COMPILERS: Final = {"TORCHINDUCTOR_CACHE_DIR": "/root/.cache/inductor", "TRITON_CACHE_DIR": "/root/.cache/triton"}
_FIRST: Final = "".join(
    f'if [ -d {_SEED}/{name} ]; then mkdir -p "${name}"; cp -r {_SEED}/{name}/. "${name}"; fi; ' for name in _COMPILERS
)
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TRITON_LIBCUDA_PATH": realgpus.LIBRARIES,
    # The shared Python has its compiled modules next to the sources. With a cache of them Python would ignore these.
    "PYTHONPYCACHEPREFIX": "",
}
_BASE: Final = "process"
_COMPILED: Final = "-compiled"
_CLEAN_UP: Final = 15.0
"""Seconds that are left of the limit for the end of the node."""
_LEAST: Final = 20.0
"""Seconds without which a way is not begun."""

Json = dict[str, Any]


_ARMS: Final = {arm.name: arm for arm in arms.ARMS}


@dataclass(frozen=True, slots=True)
class Way:
    """A way to restart the trainer: the arm of that name."""

    arm: str
    compiled: bool = False
    most_faults: int = 100

    @property
    def name(self) -> str:
        """Return its name."""
        return self.arm + (_COMPILED if self.compiled else "")

    def of(self, plan: arms.Plan) -> tuple[arms.Arm, arms.Plan]:
        """Return its arm, and its part of a plan."""
        compiled = {"STEPS_COMPILED": "1"} if self.compiled else {}
        program = dataclasses.replace(plan.program, environment={**plan.program.environment, **compiled})
        arm = dataclasses.replace(_ARMS[self.arm], name=self.name)
        return arm, dataclasses.replace(plan, faults=min(plan.faults, self.most_faults), program=program)


WAYS: Final = (
    Way("process"),
    Way("agent-process"),
    Way("spare"),
    Way("swap-caches", compiled=True),
    Way("agent-process", compiled=True),
    Way("process", compiled=True),
    Way("swap"),
    Way("swap-keep", compiled=True, most_faults=1),
    Way("kubelet", most_faults=1),
    Way("swap", compiled=True, most_faults=1),
    Way("swap-caches", most_faults=1),
)
"""In an order that has the most important ones first, and the longest of all as the first one with a compiler."""

_HAS_TORCH: Final = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_LONGEST_WAY: Final = 180.0
"""Seconds for one way, of which the compiler takes up to two minutes on an empty cache."""
_LONGEST: Final = 500


def plan(python: Path, sizes: Mapping[str, int], *, faults: int, every: int) -> arms.Plan:
    """Return what all trainers do. ``sizes`` are those of the model and its steps."""
    environment = {**_ENVIRONMENT, **{f"STEPS_{name}": str(value) for name, value in sizes.items()}}
    program = arms.Program("train_torch.py", environment, own_cache=_COMPILERS, first=_FIRST, gpus=1)
    return arms.Plan(
        python, layers=sizes["LAYERS"], faults=faults, every=every, spare_after="1s", spare_cpu=100, program=program
    )


@dataclass(slots=True)
class _Bench:
    """Hold what all ways share. ``seed`` has the compile cache of an earlier way, once there is one."""

    api: kube.KubeClient
    dev: node.DevNode
    plan: arms.Plan
    directory: Path
    keep_logs: Path | None
    report: Json

    @property
    def seed(self) -> Path:
        return self.directory / "seed"

    async def measure(self, way: Way, *, until: float) -> Json:
        """Run one way. Raises TimeoutError if it has not recovered once before ``until``."""
        if time.monotonic() + _LEAST > until:
            raise TimeoutError("no time was left")
        run = self._run(way)
        try:
            async with run.running() as observer:
                try:
                    limit = min(_LONGEST_WAY, until - time.monotonic())
                    async with asyncio.timeout(limit), asyncio.TaskGroup() as tasks:
                        watching = tasks.create_task(records.until_unexpected_end(run.records), name="watch")
                        await self._follow(run, way, observer)
                        watching.cancel()
                finally:
                    await self._keep_logs(way, run)
        except TimeoutError:
            if not run.is_measured():
                raise
        found = {"what": run.arm.what, **run.figures()}
        await asyncio.to_thread(shutil.rmtree, run.where)  # a checkpoint for each way would fill the disk
        return found

    def _run(self, way: Way) -> alone.Run:
        arm, plan = way.of(self.plan)
        where = self.directory / way.name
        where.mkdir()
        if way.compiled and self.seed.exists():
            shutil.copytree(self.seed, where / "seed")
        return alone.Run(self.api, self.dev, arm, plan, where)

    async def _follow(self, run: alone.Run, way: Way, observer: Observer) -> None:
        await records.until_recovered(run.records, count=0)
        await asyncio.to_thread(shutil.rmtree, run.where / "seed", ignore_errors=True)
        if way.compiled and not self.seed.exists():
            await self._keep_seed(way, observer)
        await run.recoveries()
        self.report["trainer"] = json.loads((run.where / "about.json").read_text())

    async def _keep_seed(self, way: Way, observer: Observer) -> None:
        """Copy the compile cache out of a running container."""
        (container,) = (await observer.see(way.name)).running["trainer"]
        process = Path("/proc") / str(await observer.pid(container))
        pairs = (each.partition("=") for each in (process / "environ").read_text().split("\0"))
        for name, _, path in pairs:
            if name in _COMPILERS:
                await asyncio.to_thread(shutil.copytree, f"{process}/root{path}", self.seed / name, dirs_exist_ok=True)

    async def _keep_logs(self, way: Way, run: alone.Run) -> None:
        """Copy the logs of a way's containers and of the agent, and its records, where that is wanted."""
        if self.keep_logs is None:
            return
        kept = self.keep_logs / way.name
        kept.mkdir(parents=True, exist_ok=True)
        logs_of_pod = self.dev.layout.pod_logs.glob(f"*_{way.name}_*/*/*.log")
        for path in (*logs_of_pod, run.records, self.dev.layout.log_file("agent")):
            with contextlib.suppress(OSError):
                await asyncio.to_thread(shutil.copy, path, kept)


async def measure(
    ways: tuple[Way, ...],
    plan: arms.Plan,
    report: Json,
    *,
    until: float,
    files: Mapping[str, Path | None],
    gpus: int | Literal["real"],
) -> None:
    """Add the figures of the ways to the report, and write it after each. ``until`` is on the monotonic clock."""
    with tempfile.TemporaryDirectory(prefix="kubemend-bench-") as directory:
        async with contextlib.AsyncExitStack() as stack:
            named = node.DevNode.named("bench-steps-gpu", options=node.Options(gpus=gpus))
            dev = await stack.enter_async_context(named)
            api = await stack.enter_async_context(kube.connect(kubeconfig=dev.kubeconfig))
            await stack.enter_async_context(alone.ready_agent(dev))
            await alone.have_caches(api, plan, node_name=dev.name)
            _say("the node is ready")
            bench = _Bench(api, dev, plan, Path(directory), files["logs"], report)
            for way in ways:
                try:
                    report["ways"][way.name] = await bench.measure(way, until=until)
                    _say(f"{way.name}: {json.dumps(report['ways'][way.name])}")
                except Exception as error:  # noqa: BLE001 - the other ways are measured all the same
                    cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
                    report["missing"][way.name] = f"{type(cause).__name__}: {cause}"[:_LONGEST]
                    _say(f"{way.name} is missing: {report['missing'][way.name]}")
                write(report, files["write"])


def write(report: Json, path: Path | None) -> None:
    """Write the report as far as it is, if that is wanted."""
    if path is not None:
        path.write_text(f"{json.dumps(report, indent=2)}\n")


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice([way.name for way in WAYS]), help="Only this way; repeat it.")
@click.option("--layers", default=22, show_default=True, help="Layers of the model.")
@click.option("--width", default=2048, show_default=True, help="Width of the model.")
@click.option("--batch", default=4, show_default=True, help="Sequences in each step.")
@click.option("--length", default=1024, show_default=True, help="Words in each sequence.")
@click.option("--words", default=32768, show_default=True, help="Words that the model knows.")
@click.option("--faults", default=2, show_default=True, help="Faults of each trainer, of two of the ways only one.")
@click.option("--every", default=25, show_default=True, help="Steps between faults, at least.")
@click.option("--limit", default=570.0, show_default=True, help="Seconds for all of it.")
@click.option("--simulated", is_flag=True, help="A rehearsal: with a simulated GPU and the trainer on the CPU.")
@click.option(
    "--python",
    default=sys.executable,
    show_default=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A Python that has torch.",
)
@click.option("--logs", "keep_logs", type=click.Path(path_type=Path, file_okay=False), help="Keep all logs here.")
@click.option(
    "--write", "written", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON to this file."
)
def main(
    only: tuple[str, ...],
    python: Path,
    written: Path | None,
    keep_logs: Path | None,
    *,
    layers: int,
    width: int,
    batch: int,
    length: int,
    words: int,
    faults: int,
    every: int,
    limit: float,
    simulated: bool,
) -> None:
    """Measure and print."""
    if subprocess.run([python, "-c", _HAS_TORCH], check=False).returncode:
        raise click.BadParameter(f"{python} has no torch", param_hint="--python")
    until = time.monotonic() + limit - _CLEAN_UP
    logs.configure(level="error", log_format="console")
    sizes = {"LAYERS": layers, "WIDTH": width, "BATCH": batch, "LENGTH": length, "WORDS": words}
    report: Json = {
        "machine": bench_all.machine(),
        "versions": {"Kubernetes": kubernetes.version()},
        "sizes": sizes,
        "trainer": {},
        "ways": {},
        "missing": {},
    }
    ways = tuple(way for way in WAYS if way.name in only or not only)
    files = {"write": written, "logs": keep_logs}
    chosen = plan(python, sizes, faults=faults, every=every)
    asyncio.run(measure(ways, chosen, report, until=until, files=files, gpus=1 if simulated else node.REAL))
    click.echo(json.dumps(report, indent=2))
    if report["missing"]:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
