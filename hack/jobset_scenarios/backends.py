"""Plays scenarios, each on the backend that is asked for."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hack.devnode import realkube
from hack.devnode.api import standin
from hack.jobset_scenarios import playing
from hack.jobset_scenarios.live import LiveController, LiveStage
from hack.jobset_scenarios.memory import MemoryStage
from hack.jobset_scenarios.model import BackendName, RestartController, Scenario
from hack.jobset_scenarios.playing import Outcome

_SIDE_BY_SIDE: Final = 16


def missing(backend: BackendName) -> str:
    """Return why a backend cannot be had on this machine, or ""."""
    return realkube.missing() if backend is BackendName.REAL else ""


async def play_all(scenarios: Sequence[Scenario], backend: BackendName) -> list[Outcome]:
    """Play those that the backend can play; beside a server several at a time."""
    able = [each for each in scenarios if backend in each.backends]
    if backend is BackendName.MEMORY:
        return [await in_memory(each) for each in able]
    with tempfile.TemporaryDirectory(prefix="jobset-scenarios-") as directory:
        async with _server(backend, Path(directory)) as server, LiveController(kubeconfig=server.kubeconfig) as live:
            return await _beside(live, able)


async def in_memory(scenario: Scenario) -> Outcome:
    """Play one in memory."""
    stage = MemoryStage()
    await stage.prepare()
    return await playing.play(scenario, stage, namespace=scenario.name)


def _server(backend: BackendName, directory: Path) -> standin.StandIn | realkube.RealKube:
    if backend is BackendName.STAND_IN:
        return standin.StandIn(kubeconfig=directory / "kubeconfig")
    return realkube.RealKube(directory)


async def _beside(live: LiveController, scenarios: Sequence[Scenario]) -> list[Outcome]:
    """Play those last, and one after another, that replace the controller: with it go events that it has not told."""
    side_by_side = asyncio.Semaphore(_SIDE_BY_SIDE)
    alone = asyncio.Semaphore(1)

    async def one(scenario: Scenario, room: asyncio.Semaphore) -> Outcome:
        async with room:
            return await playing.play(scenario, LiveStage(live, namespace=scenario.name), namespace=scenario.name)

    outcomes: dict[str, Outcome] = {}
    for replaces, room in ((False, side_by_side), (True, alone)):
        chosen = [each for each in scenarios if _replaces_controller(each) is replaces]
        for outcome in await asyncio.gather(*(one(each, room) for each in chosen)):
            outcomes[outcome.scenario] = outcome
    return [outcomes[each.name] for each in scenarios]


def _replaces_controller(scenario: Scenario) -> bool:
    return any(isinstance(step.action, RestartController) for step in scenario.steps)
