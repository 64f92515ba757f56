"""A node with an agent for each scenario."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from hack.devnode import node
from tests.scenarios.columns.board import Board


@pytest.fixture
def agent_flags() -> Sequence[str]:
    """Further flags of the agent; a module may have its own."""
    return ()


@pytest.fixture
async def board(dev: node.DevNode, tmp_path: Path, agent_flags: Sequence[str]) -> AsyncIterator[Board]:
    """The node with an agent that is ready."""
    async with Board.on(dev, *agent_flags, state=tmp_path / "state") as made:
        yield made
