"""Provide a hub client for each test."""

from pathlib import Path

import pytest

from kubemend.agent.clients.journal.store import Store
from tests.unit.hub.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path, store: Store) -> Rig:
    """The dependencies of the hub client."""
    return Rig(directory=tmp_path, store=store)
