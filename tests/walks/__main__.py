"""Print how many modules each walk goes through: ``python -m tests.walks [--modules] [--json]``."""

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from tests.walks import actions
from tests.walks.recording import Recorder, recording


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.walks", description=__doc__)
    parser.add_argument("--modules", action="store_true", help="name the modules, too; a + is before those not passed")
    parser.add_argument("--json", action="store_true", help="print the names of all modules as JSON")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    walks = {name: asyncio.run(recorded(name)) for name in actions.WALKS}
    if args.json:
        kinds = {
            name: {"passes": w.passes, "opens": sorted(w.opens), "runs": sorted(w.runs)} for name, w in walks.items()
        }
        print(json.dumps(kinds, indent=1))  # noqa: T201
        return 0
    print("| walk | passes | opens | runs |\n|---|---|---|---|")  # noqa: T201
    for name, walk in walks.items():
        print(f"| {name} | {len(walk.passes)} | {len(walk.opens)} | {len(walk.runs)} |")  # noqa: T201
    for name, walk in walks.items() if args.modules else ():
        asked = sorted(walk.opens.difference(walk.passes))
        print("", name, *walk.passes, *(f"+ {module}" for module in asked), sep="\n")  # noqa: T201
    return 0


async def recorded(name: str) -> Recorder:
    """Run one walk; return the record."""
    with TemporaryDirectory() as directory, recording() as recorder:
        await actions.WALKS[name](recorder, Path(directory))
    return recorder


if __name__ == "__main__":
    sys.exit(main())
