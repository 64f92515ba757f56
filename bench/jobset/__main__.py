"""``python -m bench.jobset``."""

import asyncio
import json
import os
import sys
from typing import Any

import click

import bench.jobset
from bench.jobset import sizes, workers
from kubemend.common import logs


async def measure(*, jobs: tuple[int, ...], looks: int, members: int, failures: int) -> dict[str, Any]:
    """Run everything and return the figures."""
    load = round(os.getloadavg()[0], 2)  # the figures include the other load on these cores
    measured = [await sizes.measure(each, looks=looks) for each in sorted(jobs)]
    reported = await workers.measure(members=members, failures=failures) if failures else None
    return {
        "cores": os.cpu_count(),
        "load_before": load,
        "by_jobs": {str(each["jobs"]): each for each in measured},
        "growth": sizes.growth(measured[0], measured[-1]),
        "failures_in_a_row": reported,
    }


@click.command(help=bench.jobset.__doc__)
@click.option("--jobs", multiple=True, default=(10, 100, 1000), show_default=True, help="Child Jobs of a JobSet.")
@click.option("--looks", default=20, show_default=True, help="Reconciles of each JobSet.")
@click.option("--workers", "members", default=20, show_default=True, help="Workers of the JobSet of real containers.")
@click.option("--failures", default=5, show_default=True, help="Failures in a row of these; 0: run no containers.")
def main(jobs: tuple[int, ...], looks: int, members: int, failures: int) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    reported = asyncio.run(measure(jobs=jobs, looks=looks, members=members, failures=failures))
    click.echo(json.dumps(reported, indent=2))


if __name__ == "__main__":
    sys.exit(main())
