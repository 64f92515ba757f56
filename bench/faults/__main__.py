"""What does the product lose when what surrounds it fails? Each fault is tried on real processes.

Agents and controllers run as processes, on two nodes with a real containerd; API server and kubelet are real where
`make kubernetes` has built them. One fault after another is tried: what docs/operations.md promises about it is printed
("What it withstands"), what was tried, what was measured, and what was lost: verdicts, restarts, rounds, conditions,
decisions, or restarts that nothing asked for.

Prints JSON, and exits with 1 when anything was lost.
"""

import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench.faults import suite
from bench.faults.scale import SHORT, Scale
from bench.faults.stage import Stage
from bench.faults.suite import Fault
from common import logs
from hack.devnode import node


async def _withstand(faults: Sequence[Fault], *, scale: Scale) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kubemend-faults-") as directory:
        async with Stage.on(Path(directory)) as stage:
            return await suite.run(stage, faults, scale=scale, directory=Path(directory))


@click.command(help=__doc__)
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([fault.name for fault in suite.FAULTS]),
    help="Only this fault; may be repeated.",
)
@click.option("--short", is_flag=True, help="A little of most, and without a word on how long it took.")
@click.option(
    "--away", type=click.FloatRange(min=1.0), help="Seconds for which the API server is away; 300 by default."
)
def main(names: tuple[str, ...], *, short: bool, away: float | None) -> None:
    """Try and print."""
    logs.configure(level="error", log_format="json")
    scale = SHORT if short else Scale()
    if away is not None:
        scale = dataclasses.replace(scale, away=away)
    node.setup()
    told = asyncio.run(_withstand(suite.chosen(names, short=short), scale=scale))
    click.echo(json.dumps(told, indent=2))
    sys.exit(1 if told["lost"] else 0)


if __name__ == "__main__":
    main()
