"""Check that a restart survives an agent killed at a random step, many times over.

Pods of every policy and shape run on one node under kubelet. Faults are injected repeatedly into one to three of them,
the agent is killed with SIGKILL at a random moment and started again. When the node is quiet, everything is checked
from outside the agent: no pod may ever have ended or moved, of each name exactly one container runs and no old one ever
ran concurrently with it, every fault has led to younger containers and was not refused, nothing else was restarted, and
kubelet agrees.

Prints JSON, after Ctrl-C that of the runs so far, and exits with 1 when a violation was found. Budgets are bypassed:
past restarts are moved back in time.
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
from hack.devnode import node
from kubemend.common import logs

_ROUNDS = 3


async def crash(*, runs: int, seed: int, names: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """Make that many runs on a node of their own; return the figures, and whether there was no violation."""
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
@click.option("--seed", type=int, help="Seed of the plans, to repeat them; random by default.")
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
