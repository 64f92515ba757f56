"""Provide the environments as fixtures."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubemend.agent.clients.journal.store import Store
from tests.environments import restarts, rounds, runtime
from tests.environments.restarts import RestartEnv
from tests.environments.rounds import RoundEnv
from tests.environments.runtime import CriEnv


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An agent's state file."""
    opened = await Store.open(tmp_path / "state.db")
    yield opened
    await opened.close()


@pytest.fixture
async def cri_env(tmp_path: Path) -> AsyncIterator[CriEnv]:
    """The fake runtime, and a pod whose one container runs as attempt 0."""
    async with runtime.cri_env_in(tmp_path) as made:
        yield made


@pytest.fixture
async def env(cri_env: CriEnv, tmp_path: Path) -> AsyncIterator[RestartEnv]:
    """Restarts of a pod on the fake runtime."""
    async with restarts.restarts_on(cri_env, tmp_path) as made:
        yield made


@pytest.fixture
async def round_env(cri_env: CriEnv, tmp_path: Path) -> AsyncIterator[RoundEnv]:
    """A member of gang rounds on the fake runtime."""
    async with rounds.round_on(cri_env, tmp_path) as made:
        yield made
