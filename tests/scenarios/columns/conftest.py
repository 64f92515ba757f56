"""A node with an agent for each scenario."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack.devnode import node
from tests.scenarios.columns.board import Board


@pytest.fixture
async def board(dev: node.DevNode, tmp_path: Path) -> AsyncIterator[Board]:
    """The node with an agent that is ready."""
    async with Board.on(dev, state=tmp_path / "state") as made:
        yield made
