"""Provide a hub client for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubemend.agent.clients.journal.store import Store
from tests.unit.hub.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """The dependencies of the hub client, with a store of its own."""
    store = await Store.open(tmp_path / "state.db")
    try:
        yield Rig(directory=tmp_path, store=store)
    finally:
        await store.close()
