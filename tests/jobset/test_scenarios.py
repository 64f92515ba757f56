"""Play JobSet scenarios in YAML, with the real API server, Job controller and garbage collector.

All scenarios play at once, in a namespace each, because one controller runs them all.
"""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.jobset.player import playing, reading
from tests.jobset.player.model import Scenario
from tests.jobset.player.playing import Outcome

SCENARIOS: Final[dict[str, Scenario]] = {
    path.stem: reading.read(path) for path in sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
}

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {each.scenario: each for each in asyncio.run(playing.play_all([*SCENARIOS.values()]))}


def test_scenarios_are_many() -> None:
    assert len(SCENARIOS) >= 100


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_goes_as_expected(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[name].is_well, str(outcomes[name])
