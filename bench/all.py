"""Does kubemend reach its numbers? Runs every benchmark, one after another, and prints one JSON.

``numbers`` has each number with what is to be reached, what was measured and whether it is reached; ``programs`` has
all that the benchmarks printed, ``machine`` on what. Exit code 0: all are reached; 1: one is not, or was not measured.

With the default of 500 kills it takes about an hour. ``--write docs/performance.json`` keeps it, and ``python -m
hack.performance_doc`` makes docs/performance.md of that.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from bench import goals

_PROGRAMS: Final = tuple(dict.fromkeys(goal.program for goal in goals.GOALS))
_LIMIT_SECONDS: Final = 2 * 3600.0
_CORES: Final = os.cpu_count()


def run(program: str, arguments: Sequence[str]) -> dict[str, Any] | str:
    """Run one benchmark; return what it printed, or in a line why it did not come to its end."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{program}", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_LIMIT_SECONDS,
        )
        told: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"not at its end after {_LIMIT_SECONDS:.0f} s"
    except json.JSONDecodeError:
        return f"ended with {done.returncode} and no figures; its last words are on stderr"
    return {**told, "seconds": round(time.monotonic() - began)}


def machine() -> dict[str, Any]:
    """Return on what it is measured."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": _CORES,
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(_PROGRAMS), help="Only this benchmark; may be repeated.")
@click.option("--kills", default=500, show_default=True, help="Kills of bench.crash.")
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON there, too.")
def main(only: tuple[str, ...], kills: int, write: Path | None) -> None:
    """Measure and print."""
    arguments = {"crash": ["--runs", str(kills)]}
    made_on = machine()
    told: dict[str, dict[str, Any] | str] = {}
    for program in only or _PROGRAMS:
        click.echo(f"bench.{program} …", err=True)
        told[program] = run(program, arguments.get(program, []))
    numbers = [each for each in goals.standings(told) if not only or each.goal.program in only]
    report = {
        "machine": made_on,
        "numbers": [each.figures() for each in numbers],
        "reached": all(each.reached for each in numbers),
        "programs": told,
    }
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    if write is not None:
        write.write_text(text)
    click.echo(text, nl=False)
    sys.exit(0 if report["reached"] else 1)


if __name__ == "__main__":
    main()
