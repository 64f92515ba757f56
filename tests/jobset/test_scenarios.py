"""Every scenario of ``scenarios/``: with the decisions alone, and with the whole controller beside both API servers."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from hack.jobset_scenarios import backends, reading
from hack.jobset_scenarios.model import BackendName, Scenario
from hack.jobset_scenarios.playing import Outcome

SCENARIOS: Final[dict[str, Scenario]] = {
    path.stem: reading.read(path) for path in sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
}
Outcomes = dict[str, Outcome]


def able(backend: BackendName) -> list[str]:
    return [name for name, scenario in SCENARIOS.items() if backend in scenario.backends]


@pytest.fixture(scope="module")
def beside_the_stand_in() -> Outcomes:
    """All of them have played side by side, for one controller runs them all."""
    return played(BackendName.STAND_IN)


@pytest.fixture(scope="module")
def beside_the_real_one() -> Outcomes:
    if why := backends.missing(BackendName.REAL):
        pytest.skip(why)
    return played(BackendName.REAL)


def played(backend: BackendName) -> Outcomes:
    outcomes = asyncio.run(backends.play_all([*SCENARIOS.values()], backend))
    return {outcome.scenario: outcome for outcome in outcomes}


def test_scenarios_are_many_and_most_play_everywhere() -> None:
    assert len(SCENARIOS) >= 100
    assert len(set(able(BackendName.MEMORY)) & set(able(BackendName.STAND_IN)) & set(able(BackendName.REAL))) >= 90


@pytest.mark.parametrize("name", able(BackendName.MEMORY))
async def test_in_memory(name: str) -> None:
    outcome = await backends.in_memory(SCENARIOS[name])
    assert outcome.is_well, str(outcome)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", able(BackendName.STAND_IN))
def test_beside_the_stand_in(name: str, beside_the_stand_in: Outcomes) -> None:
    assert beside_the_stand_in[name].is_well, str(beside_the_stand_in[name])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", able(BackendName.REAL))
def test_beside_a_real_api_server(name: str, beside_the_real_one: Outcomes) -> None:
    assert beside_the_real_one[name].is_well, str(beside_the_real_one[name])
