"""``python -m tests.jobset [FILE...]``: one line for each scenario."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import Final

import structlog

from hack.devnode import apiserver, controlplane
from tests.jobset.player import playing, reading
from tests.jobset.player.checked import ScenarioError

_ALL: Final = Path(__file__).with_name("scenarios")


def main() -> int:
    """Run the command line; 1 when a scenario did not go as expected."""
    parser = argparse.ArgumentParser(prog="tests.jobset", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="scenarios (default: all)")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        scenarios = [reading.read(path) for path in args.files or sorted(_ALL.glob("*.yaml"))]
    except (ScenarioError, OSError) as error:
        sys.exit(str(error))
    if reason := apiserver.missing() or controlplane.missing():
        sys.exit(reason)
    outcomes = asyncio.run(playing.play_all(scenarios))
    for outcome in outcomes:
        print(outcome)  # noqa: T201
    return 0 if all(outcome.is_well for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
