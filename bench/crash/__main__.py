"""Is a restart safe whatever happens to the agent? It is killed at random steps of restarts, many times over.

Pods of every policy and shape run on one node under kubelet's eyes. Again and again faults are injected into one to
three of them, the agent is killed with SIGKILL at a random moment and started again. When the node is quiet,
everything is looked at from outside the agent: no pod may ever have ended or moved, of each name exactly one container
is at work and no old one ever ran beside it, every fault has led to younger containers and was refused nowhere, nothing
else was restarted, kubelet agrees.

Prints JSON, and exits with 1 when anything was wrong. Budgets are kept out of it: past restarts are moved back in time.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from bench.crash import subjects
from bench.crash.scene import Scene
from bench.crash.trials import Trials
from common import logs
from hack.devnode import node

_ROUNDS = 3


async def crash(*, runs: int, seed: int, names: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """Make so many runs on a node of their own; return the figures, and whether nothing was wrong."""
    began = time.monotonic()
    chosen = [subject for subject in subjects.ALL if not names or subject.name in names]
    async with node.DevNode.named("crash", options=node.Options(gpus=len(chosen))) as dev:
        async with Scene.on(dev, subjects=chosen, state_dir=dev.layout.agent_state) as scene:
            trials = Trials(scene)
            await trials.run(count=runs, seed=seed, rounds=_ROUNDS)
        kinds = dev.kinds
    made = {"node": kinds, "seed": seed, **trials.figures(), "seconds": round(time.monotonic() - began)}
    return made, trials.tally.flawless


@click.command(help=__doc__)
@click.option(
    "--runs", type=click.IntRange(min=1), default=500, show_default=True, help="Kills, each with 1 to 3 faults."
)
@click.option("--seed", type=int, help="For the same plans again; random by default.")
@click.option(
    "--pod",
    "names",
    multiple=True,
    type=click.Choice([subject.name for subject in subjects.ALL]),
    help="Only this pod; may be repeated.",
)
def main(runs: int, seed: int | None, names: tuple[str, ...]) -> None:
    """Run and print."""
    logs.configure(level="error", log_format="json")
    chosen = seed if seed is not None else random.randrange(2**32)
    click.echo(f"seed {chosen}", err=True)
    made, flawless = asyncio.run(crash(runs=runs, seed=chosen, names=names))
    click.echo(json.dumps(made, indent=2))
    sys.exit(0 if flawless else 1)


if __name__ == "__main__":
    main()
