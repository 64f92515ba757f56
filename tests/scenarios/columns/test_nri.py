"""Every strategy restarts pods on a node with NRI, whose plugin adjusts a successor as it did its predecessor."""

from collections.abc import Iterator

import pytest

from hack.devnode import node
from hack.devnode.runtime_config import RuntimeOptions
from kubemend.agent.model.workloads import ContainerId
from tests import eventually
from tests.devnode import nri
from tests.scenarios import dev_nodes
from tests.scenarios.columns.board import ALONE, STRATEGIES, Board

pytestmark = [pytest.mark.devnode, pytest.mark.long]


@pytest.fixture(scope="module")
def dev() -> Iterator[node.DevNode]:
    """A node with NRI, as containerd 2.x has it by default."""
    nri.ensure()
    with dev_nodes.running("nri", options=node.Options(runtime=RuntimeOptions(nri=True))) as made:
        yield made


async def adjustments(board: Board, container: ContainerId) -> tuple[int, list[str]]:
    """Return how often a container's process has the plugin's variable, and its limits of open files."""
    process = await board.process(container)
    variables = (process / "environ").read_text().split("\0")
    (limit,) = [line for line in (process / "limits").read_text().splitlines() if line.startswith("Max open files")]
    return variables.count(nri.VARIABLE), limit.split()[3:5]


async def test_what_an_nri_plugin_adjusts_is_adjusted_again_by_every_restart(board: Board) -> None:
    wanted = (1, [str(nri.OPEN_FILES)] * 2)
    async with nri.plugin(board.dev.layout) as log:
        await eventually.true(lambda: nri.REGISTERED in log.read_text())
        async with board.pod("adjusted", ALONE) as first:
            assert await adjustments(board, first.running[0]) == wanted
            seen = first
            for strategy in STRATEGIES:
                seen = await board.restarted("adjusted", strategy, seen)
                assert await adjustments(board, seen.running[0]) == wanted, strategy
                assert not board.overlapped(seen), strategy
