"""Measure how fast a restart in place is, and how soon a fault is in the API.

Pairs of pods run on one node under kubelet. In turns, one is restarted by the product's swap (listing, decision
its spec, journal, calls, confirmation: everything but the wait for kubelet's consent), the other by the bare create,
start and stop calls with the same config: in this order kubelet sees no gap, into which it would create a container.
The same then with reruns of whole pods, and with restarts that kubelet carries out: resets and the pod's own rules.
Then one container that is swapped and one that is rerun fail many times in a row under a whole agent. Last an agent
reads kernel log lines, and the time from each line to the pod condition in the API is taken by a watch.

On CRI-O only the swaps and the log lines are measured: there a pod is never rerun.

Prints JSON. ``swap_ms`` and ``rerun_ms`` are from the first call to the confirmed new process, ``running_ms`` is until
everything runs again, ``prepare_ms`` is the time before that. Each ratio is to the bare calls of the same run.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import click

from bench import arrivals, bare, figures, kubelets, rig, rows
from bench import reruns as bench_reruns
from hack.devnode import node, runtime_config, trainer
from kubemend.agent.actuator.next_names import NextNames
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerRef, PodRef, PodUid
from kubemend.agent.restart import intents
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restarts import runtime_state
from kubemend.common import logs

_PAIRS = 3
_BY_KUBELET = (Strategy.RESET, Strategy.RULES)


@dataclass
class Samples:
    """Hold durations in seconds."""

    prepare: list[float] = field(default_factory=list)
    swap: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    condition: list[float] = field(default_factory=list)
    adopted: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Set how often each thing is measured; ``row`` is the length of a row of failures."""

    restarts: int
    reruns: int
    resets: int
    row: int
    lines: int


async def measure(counts: Counts, *, runtime: str = runtime_config.CONTAINERD) -> dict[str, Any]:
    """Run everything and return the figures."""
    samples = Samples()
    options = node.Options(runtime=runtime_config.RuntimeOptions(program=runtime))
    async with node.DevNode.named("bench", options=options) as dev:
        async with rig.on(dev) as made:
            await _swaps(dev, made, samples, count=counts.restarts)
            if runtime == runtime_config.CRIO:
                await _log_lines(dev, samples, lines=counts.lines)
                return _figures(samples, kinds=dev.kinds)
            whole_pods = await bench_reruns.measure(dev, made, count=counts.reruns)
            by_kubelet = await asyncio.gather(
                *(kubelets.measure(dev, made, strategy=strategy, count=counts.resets) for strategy in _BY_KUBELET)
            )
        in_a_row = await rows.measure(dev, count=counts.row)
        await _log_lines(dev, samples, lines=counts.lines)
        kinds = dev.kinds
    whole_pod = whole_pods.figures()
    return {
        **_figures(samples, kinds=kinds),
        "whole_pod": whole_pod,
        "by_kubelet": {
            strategy.value: each.figures(bare=whole_pod["bare_calls_ms"]["p50"])
            for strategy, each in zip(_BY_KUBELET, by_kubelet, strict=True)
            if each is not None
        },
        "failures_in_a_row": {name: row.figures() for name, row in in_a_row.items()},
    }


def _figures(samples: Samples, *, kinds: dict[str, str]) -> dict[str, Any]:
    swap, bare = figures.milliseconds(samples.swap), figures.milliseconds(samples.bare)
    return {
        "node": kinds,
        "restarts": len(samples.swap),
        "adopted": samples.adopted,
        "prepare_ms": figures.milliseconds(samples.prepare),
        "swap_ms": swap,
        "bare_calls_ms": bare,
        "ratio": round(swap["p50"] / bare["p50"], 3),
        "max_over_median": round(swap["max"] / swap["p50"], 2),
        "log_lines": len(samples.condition),
        "log_line_to_condition_ms": figures.milliseconds(samples.condition),
    }


async def _swaps(dev: node.DevNode, made: rig.Rig, samples: Samples, *, count: int) -> None:
    """Swap, and restart by bare calls, ``count`` times.

    Each pair of pods has its turn while kubelet processes the others.
    """
    for name in (f"{kind}-{pair}" for kind in ("swapped", "called") for pair in range(_PAIRS)):
        await made.observer.create(trainer.manifest(name, node=dev.name, gpus=0))
    names = NextNames(made.cri)
    reserved: dict[int, intents.Intent] = {}
    for number in range(count):
        restart, pair = divmod(number, _PAIRS)
        await made.running(f"swapped-{pair}", restart=restart)
        await made.running(f"called-{pair}", restart=restart)
        if pair in reserved:
            await names.give_back(reserved[pair])
        await _swap(made, f"swapped-{pair}", samples)
        reserved[pair] = await _bare_calls(made, f"called-{pair}", samples, names=names)


async def _target(made: rig.Rig, name: str) -> tuple[ContainerRef, runtime_state.RuntimeState]:
    seen = await made.observer.see(name)
    ref = ContainerRef(pod=PodRef("default", name, PodUid(seen.uid)), name="trainer")
    target = await runtime_state.find(made.cri, ref)
    assert target is not None
    return ref, target


async def _swap(made: rig.Rig, name: str, samples: Samples) -> None:
    ref, _ = await _target(made, name)
    began = time.perf_counter()
    target = await runtime_state.find(made.cri, ref)
    assert target is not None
    restart = await bare.prepared(made.cri, ref, target)
    await made.store.begin(restart.intent)
    kill = time.perf_counter()
    outcome = await made.swap.carry_out(restart.intent, successor_spec=restart.successor_spec, seen=target.siblings)
    done = time.perf_counter()
    assert outcome.result.restarted, outcome
    samples.adopted += outcome.result is Result.ADOPTED
    samples.prepare.append(kill - began)
    samples.swap.append(done - kill)
    await made.store.finish(restart.intent.id, outcome=outcome.result.value, now=time.time())


async def _bare_calls(made: rig.Rig, name: str, samples: Samples, *, names: NextNames) -> intents.Intent:
    """Make the bare calls; return the intent that the next name is reserved for: kubelet could create a copy."""
    ref, target = await _target(made, name)
    restart = await bare.prepared(made.cri, ref, target)
    successor = restart.successor_spec
    await names.reserve(restart.intent, successor.successor.config, sandbox_config=successor.sandbox_config)
    began = time.perf_counter()
    await bare.calls(made.cri, restart)
    samples.bare.append(time.perf_counter() - began)
    return restart.intent


async def _log_lines(dev: node.DevNode, samples: Samples, *, lines: int) -> None:
    """Toggle the driver's verdict by log lines (Xid 154); each toggle changes the pod's DevicesHealthy condition."""
    async with dev.agent(), arrivals.of_a_pod(dev) as conditions:
        toggle = arrivals.by_line(dev, gpu=conditions.gpu)
        samples.condition += await conditions.toggled(times=lines, toggle=toggle)


@click.command(help=__doc__)
@click.option("--restarts", default=100, show_default=True, help="Restarts of each kind.")
@click.option("--reruns", default=30, show_default=True, help="Reruns of each kind.")
@click.option("--resets", default=10, show_default=True, help="Resets, and as many restarts by rules.")
@click.option("--row", default=10, show_default=True, help="Failures in a row.")
@click.option("--lines", default=100, show_default=True, help="Kernel log lines.")
@click.option("--runtime", type=click.Choice(runtime_config.PROGRAMS), default=runtime_config.CONTAINERD)
def main(*, runtime: str, **counts: int) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    click.echo(json.dumps(asyncio.run(measure(Counts(**counts), runtime=runtime)), indent=2))


if __name__ == "__main__":
    sys.exit(main())
