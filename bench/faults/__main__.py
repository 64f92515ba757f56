"""Check what the product loses when its dependencies fail, on real processes.

Agents and controllers run as processes, on two nodes with a real API server, kubelets and containerds. Faults are tried
one after another. For each the output has the promise of docs/operations.md ("What it withstands"), the actions, the
figures, and the losses: verdicts, restarts, rounds, conditions, decisions, or restarts without a cause.

Prints JSON (and each fault on stderr when it has been tried), and exits with 1 when anything was lost.
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
from hack.devnode import node
from kubemend.common import logs


async def _withstand(faults: Sequence[Fault], *, scale: Scale) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kubemend-faults-") as directory:
        async with Stage.on(Path(directory)) as stage:
            return await suite.run(stage, faults, scale=scale, directory=Path(directory), done=_report)


def _report(figures: dict[str, Any]) -> None:
    """Print the result of a fault on stderr: all of them together take a quarter of an hour."""
    click.echo(json.dumps(figures), err=True)


@click.command(help=__doc__)
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([fault.name for fault in suite.FAULTS]),
    help="Only this fault; may be repeated.",
)
@click.option("--short", is_flag=True, help="Try a little of most faults, without judging times.")
@click.option(
    "--away", type=click.FloatRange(min=1.0), help="Seconds for which the API server is unavailable; 300 by default."
)
def main(names: tuple[str, ...], *, short: bool, away: float | None) -> None:
    """Try and print."""
    logs.configure(level="error", log_format="json")
    scale = SHORT if short else Scale()
    if away is not None:
        scale = dataclasses.replace(scale, away=away)
    node.setup()
    reported = asyncio.run(_withstand(suite.chosen(names, short=short), scale=scale))
    click.echo(json.dumps(reported, indent=2))
    sys.exit(1 if reported["lost"] else 0)


if __name__ == "__main__":
    main()
