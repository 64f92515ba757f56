"""Provide a node whose kubelet follows the machine's shutdown, with an agent whose calls can be held."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from hack.devnode import leftovers, node
from hack.devnode.criproxy import CriProxy
from hack.devnode.layout import NodeLayout
from tests import machine
from tests.scenarios.columns.board import Board
from tests.scenarios.matrix.shutdown.stage import Stage

SHUTS_DOWN: Final[dict[str, Any]] = {
    # Off by default (0 s). Long enough for each group that a scenario, not the time, decides when a pod ends.
    "shutdownGracePeriod": "240s",
    "shutdownGracePeriodCriticalPods": "120s",
}
"""KubeletConfiguration: kubelet ends pods in two groups before the machine goes down."""


@pytest.fixture(scope="package")
def dev() -> Iterator[node.DevNode]:
    """The node. A scenario cancels the shutdown that it begins, and deletes its pods."""
    machine.must_run_containers()
    node.setup()
    options = node.Options(gpus=0, kubelet_config=SHUTS_DOWN, system_bus=True)
    made = node.DevNode(NodeLayout.named(f"shutdown-{os.getpid()}"), options=options)
    asyncio.run(made.start())
    try:
        yield made
    finally:
        asyncio.run(made.stop())
        assert leftovers.find(made.layout) == []
        made.layout.root.with_name(f".{made.layout.root.name}.lock").unlink(missing_ok=True)


@pytest.fixture
async def stage(dev: node.DevNode, tmp_path: Path) -> AsyncIterator[Stage]:
    """The stage, with an agent that is ready."""
    state, socket = tmp_path / "state", tmp_path / "cri.sock"
    async with (
        CriProxy(upstream=dev.layout.containerd_socket, socket=socket) as proxy,
        Board.on(dev, f"--cri-endpoint={socket}", state=state) as board,
        Stage.on(board, proxy) as made,
    ):
        yield made
