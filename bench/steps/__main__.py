"""Measure the time from a fault to the next training step, for each way to restart a trainer or a gang of trainers.

One pod after another runs the same trainer with JAX on the CPU, which compiles its step, saves a checkpoint every ten
steps, and fails several times. The ways: a Job, kubelet's restart, a loop in the container, kubemend's swap alone, with
kept paths and with the component ``caches``, kubemend's launcher with a warm spare, and the same launcher by order of
the agent, for an Xid that this program writes into the stand-in of the kernel log. A launcher's trainer fails when its
spare is ready; ``had_spare`` shows where none was after five minutes. Then one gang after another trains the same
model, of fewer layers, a part of the batch in each pod. One member fails, and all must be restarted: by upstream's
JobSet controller, in two ways, by loops in the containers, and by kubemend's round, without and with launchers that
keep a spare of each member.

``--fault hang``: the trainer stops without an end. kubemend sees that by its heartbeat file, a Job, kubelet and
upstream by a liveness probe that looks at the same file; what has neither sees no hang. ``--fault lost-node``, for
gangs only: the node of some members fails, and they come again on another one. It is marked as out of service at once,
or with ``--fault noticed-node`` half a minute after Kubernetes has noticed it, and the time counts from the mark.

Prints JSON. ``first_step_s`` is the median time from the fault to the first step that is finished after it,
``new_step_s`` to the first that had not been finished before, ``stages_s`` are the stages up to the first step.
``ratio`` is to the loop in the container, after hangs to kubelet's restart, and of gangs to kubemend's round, in the
same run. ``total_s`` is from the first step of all to the last new step. ``none`` is why there are no figures.

``--write docs/steps.json`` puts it in the place of earlier figures of the same fault there, and ``python -m
hack.steps_doc`` generates the page and the picture from that.
"""

import asyncio
import contextlib
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from bench import all as bench_all
from bench.peers import modules
from bench.steps import alone, arms, gangs
from hack.devnode import controlplane, kubernetes, node
from kubemend.common import logs
from kubemend.common.kube import client as kube

_BASES: Final = {arms.Fault.EXIT: "process", arms.Fault.HANG: "kubelet"}
_GANG_BASE: Final = "gang-kubemend"

Json = dict[str, Any]


async def measure(wanted: tuple[str, ...], plan: arms.Plan, gang: arms.Plan, *, members: int) -> Json:
    """Run the arms one after another, and return the figures."""
    report: Json = {
        "versions": {"Kubernetes": kubernetes.version(), "JobSet": modules.JOBSET.version},
        "layers": plan.layers,
        "steps_between_faults": plan.every,
    }
    with tempfile.TemporaryDirectory(prefix="kubemend-bench-") as directory:
        where = Path(directory)
        if set(wanted) & set(_ALONE):
            ways = await _measure_alone(wanted, plan, directory=_made(where / "alone"))
            report["ways"] = _with_ratios(ways, base=_BASES[plan.fault])
        if set(wanted) & set(_GANGS):
            ways = await gangs.measure(wanted, gang, members=members, directory=_made(where / "gangs"))
            report["gang"] = {"members": members, "layers": gang.layers, "ways": _with_ratios(ways, base=_GANG_BASE)}
    return report


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _with_ratios(ways: Json, *, base: str) -> Json:
    """Add the ratio of each measured way's first step to that of ``base``."""
    if base not in ways:
        return ways
    floor = ways[base]["first_step_s"]
    return {
        name: {**way, "ratio": round(way["first_step_s"] / floor, 3)} if "first_step_s" in way else way
        for name, way in ways.items()
    }


def with_run(known: Json, run: Json, *, fault: arms.Fault) -> Json:
    """Return the content of a file of figures with those of a run in place of earlier ones of the same fault.

    A run of gangs alone leaves the trainers that are alone as they are, and the other way round.
    """
    if fault is not arms.Fault.EXIT:
        return {**known, fault.value: run}
    if "ways" in known and "ways" not in run:
        return {**known, "gang": {**run["gang"], "machine": run["machine"]}}
    gang = {"gang": {"machine": known["machine"], **known["gang"]}} if "gang" in known else {}
    return {**gang, **run, **{name: known[name] for name in _OWN_RUNS if name in known}}


async def _measure_alone(wanted: tuple[str, ...], plan: arms.Plan, *, directory: Path) -> Json:
    found: Json = {}
    async with contextlib.AsyncExitStack() as stack:
        dev = await stack.enter_async_context(node.DevNode.named("bench-steps", options=node.Options(gpus=1)))
        await stack.enter_async_context(controlplane.on(dev.kubeconfig, directory / "control-plane"))
        api = await stack.enter_async_context(kube.connect(kubeconfig=dev.kubeconfig))
        await stack.enter_async_context(alone.ready_agent(dev))
        await alone.have_caches(api, plan, node_name=dev.name)
        for arm in arms.ARMS:
            if arm.name in wanted and (reason := arm.not_possible(plan)):
                found[arm.name] = {"what": arm.what, "fault": arm.fault(plan), "none": reason}
            elif arm.name in wanted:
                run = alone.Run(api, dev, arm, plan, _made(directory / arm.name))
                async with run.running():
                    await run.recoveries()
                found[arm.name] = {"what": arm.what, **run.figures()}
    return found


_ALONE: Final = tuple(arm.name for arm in arms.ARMS)
_GANGS: Final = tuple(arm.name for arm in arms.GANG_ARMS)
_OWN_RUNS: Final = ("prepared", *(each.value for each in arms.Fault if each is not arms.Fault.EXIT))


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(_ALONE + _GANGS), help="Only this way; may be repeated.")
@click.option(
    "--fault",
    default=arms.Fault.EXIT.value,
    show_default=True,
    type=click.Choice([each.value for each in arms.Fault]),
    help="The fault of the trainers.",
)
@click.option("--layers", default=32, show_default=True, help="Layers of the model: more take longer to compile.")
@click.option("--faults", default=3, show_default=True, help="Faults of each trainer, one after another.")
@click.option("--every", default=95, show_default=True, help="Steps between faults.")
@click.option("--spare-after", default="2s", show_default=True, help="When a trainer gets its spare.")
@click.option("--members", default=4, show_default=True, help="Members of the gangs.")
@click.option("--gang-layers", default=8, show_default=True, help="Layers of the gangs' model: all compile it at once.")
@click.option(
    "--python",
    default=sys.executable,
    show_default=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A Python that has flax, jax, optax and orbax-checkpoint (pip install '.[steps]').",
)
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON into this file.")
def main(
    only: tuple[str, ...],
    fault: str,
    python: Path,
    write: Path | None,
    *,
    layers: int,
    faults: int,
    every: int,
    spare_after: str,
    members: int,
    gang_layers: int,
) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    plan = arms.Plan(
        python, layers=layers, faults=faults, every=every, spare_after=spare_after, fault=arms.Fault(fault)
    )
    gang = dataclasses.replace(plan, layers=gang_layers)
    wanted = only or (_GANGS if plan.fault.loses_node else _ALONE + _GANGS)
    if plan.fault.loses_node and not set(wanted) <= set(_GANGS):
        raise click.BadParameter("only gangs lose a node", param_hint="--only")
    machine = bench_all.machine()
    figures = asyncio.run(measure(wanted, plan, gang, members=members))
    run = {"machine": machine, **figures}
    if write is not None:
        known = json.loads(write.read_text()) if write.exists() else {}
        write.write_text(f"{json.dumps(with_run(known, run, fault=plan.fault), indent=2)}\n")
    click.echo(json.dumps(run, indent=2))


if __name__ == "__main__":
    sys.exit(main())
