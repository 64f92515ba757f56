"""Check whether kubemend reaches its numbers: run every benchmark, one after another, and print one JSON.

``numbers`` has each number with its goal, the measured value and whether the goal is reached; ``programs`` has the
output of the benchmarks, each with a description of the machine when it began. Exit code 0: all are reached; 1: one is
not, or was not measured, or a benchmark has failed.

It takes about a quarter of an hour on two quiet cores. ``--long`` measures as often as each benchmark does by itself,
and also runs those that need longer than three minutes for their goals: together that takes about four hours.
``--write docs/performance.json`` saves it, and keeps the output there of programs that have not been run now; ``python
-m hack.performance_doc`` generates the pages and the picture from that.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
import timeit
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from bench import goals

_PROGRAMS: Final = (*dict.fromkeys(goal.program for goal in goals.GOALS), goals.PEERS)
_QUICK: Final = tuple(program for program in _PROGRAMS if program not in goals.LONG)
_SHORT: Final[Mapping[str, Sequence[str]]] = {
    "restart": ("--restarts=30", "--reruns=6", "--resets=3", "--row=5", "--lines=30"),
    "reruns": ("--rounds=30",),
    "gang": ("--rounds=6",),
    "hub": ("--rounds=10",),
    "jobset": ("--looks=10", "--failures=3"),
    "peers": ("--failures=3", "--exits=3", "--lines=10"),
}
"""Options with which all of them together take about a quarter of an hour."""

_LIMIT_SECONDS: Final = 2 * 3600.0
_CORES: Final = os.cpu_count()


def run(program: str, arguments: Sequence[str]) -> dict[str, Any] | str:
    """Run one benchmark; return its output, or in a line why it did not finish."""
    began, made_on = time.monotonic(), machine()
    name, *own = shlex.split(program)
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{name}", *own, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_LIMIT_SECONDS,
        )
        reported: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return f"not finished after {_LIMIT_SECONDS:.0f} s"
    except json.JSONDecodeError:
        return f"ended with {done.returncode} and no figures; its last output is on stderr"
    failed = {goals.EXIT_CODE: done.returncode} if done.returncode else {}
    return {**reported, **failed, "seconds": round(time.monotonic() - began), "machine": made_on}


def machine() -> dict[str, Any]:
    """Return a description of the machine, with the milliseconds that a million additions in Python take on it now.

    Machines of one kind, and one machine on different days, were seen to differ by a factor of two.
    """
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    additions = timeit.repeat("for each in numbers: total += each", "numbers, total = range(10**6), 0", number=1)
    return {
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": _CORES,
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "additions_ms": round(1000 * min(additions)),
        "load_before": round(os.getloadavg()[0], 2),
    }


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(_PROGRAMS), help="Only this benchmark; may be repeated.")
@click.option("--long", is_flag=True, help="Run all, and measure as often as each does by itself: about four hours.")
@click.option("--write", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON to this file.")
def main(only: tuple[str, ...], write: Path | None, *, long: bool) -> None:
    """Measure and print."""
    arguments = {} if long else _SHORT
    reported: dict[str, dict[str, Any] | str] = {}
    chosen = only or (_PROGRAMS if long else _QUICK)
    for program in chosen:
        click.echo(f"bench.{program} …", err=True)
        reported[program] = run(program, arguments.get(program, ()))
    numbers = [each for each in goals.results(reported) if each.goal.program in chosen]
    report = {
        "numbers": [each.figures() for each in numbers],
        "reached": _reached(numbers, reported),
        "programs": reported,
    }
    if write is not None:
        write.write_text(_text(merged(_saved(write), report)))
    click.echo(_text(report), nl=False)
    sys.exit(0 if report["reached"] else 1)


def merged(saved: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report with the saved output of programs that it has not run."""
    programs = {**saved.get("programs", {}), **report["programs"]}
    results = [*goals.results(programs)]
    return {
        "numbers": [each.figures() for each in results],
        "reached": _reached(results, programs),
        "programs": programs,
    }


def _reached(numbers: Iterable[goals.GoalResult], programs: Mapping[str, goals.Json | str]) -> bool:
    """Return whether all numbers are reached and no program has failed: that of the peers has no number of its own."""
    return all(each.reached for each in numbers) and not any(map(goals.failure, programs.values()))


def _saved(path: Path) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return saved


def _text(report: Mapping[str, Any]) -> str:
    return json.dumps(report, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
