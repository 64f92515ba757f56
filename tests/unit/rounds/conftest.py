"""Provide the environment of gang rounds."""

import pytest

from tests.environments.rounds import RoundEnv


@pytest.fixture
def env(round_env: RoundEnv) -> RoundEnv:
    """A member of gang rounds on the fake runtime."""
    return round_env
