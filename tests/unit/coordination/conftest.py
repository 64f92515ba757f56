"""An agent's end of the hub for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.history.store import Store
from tests.unit.coordination.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """Everything that the agent's end needs, with a store of its own."""
    store = await Store.open(tmp_path / "state.db")
    try:
        yield Rig(directory=tmp_path, store=store)
    finally:
        await store.close()
