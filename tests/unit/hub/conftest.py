"""Provide a hub client for each test."""

from pathlib import Path

import pytest

from kubemend.agent.clients.journal.store import Store
from tests.unit.hub.env import HubEnv


@pytest.fixture
async def env(tmp_path: Path, store: Store) -> HubEnv:
    """The dependencies of the hub client."""
    return HubEnv(directory=tmp_path, store=store)
