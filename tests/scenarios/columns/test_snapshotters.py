"""Restarts on nodes whose containers' roots are no overlays, and so cannot be held: no successor is started early."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.faults import disks
from hack.devnode import node
from hack.devnode.runtime_config import RuntimeOptions
from kubemend.agent.restart.intents import Strategy
from tests.scenarios import dev_nodes
from tests.scenarios.columns.board import ALONE, STRATEGIES, Board

pytestmark = [pytest.mark.devnode, pytest.mark.long]


@pytest.fixture(scope="module", params=["native", "btrfs"])
def dev(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[node.DevNode]:
    """A node with that snapshotter: a container's root is a directory, or a subvolume, of a file system of others."""
    with contextlib.ExitStack() as stack:
        runtime = RuntimeOptions(snapshotter=request.param)
        if request.param == "btrfs":
            disk = stack.enter_context(disks.btrfs(tmp_path_factory.mktemp("disk") / "btrfs"))
            runtime = replace(runtime, snapshots=disk)
        yield stack.enter_context(dev_nodes.running(request.param, options=node.Options(runtime=runtime)))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.value)
async def test_a_container_without_an_overlay_is_restarted_by_every_strategy(board: Board, strategy: Strategy) -> None:
    name = f"copied-{strategy.value}"
    async with board.pod(name, ALONE) as before:
        after = await board.restarted(name, strategy, before)
        assert not board.overlapped(after)


async def test_a_lone_container_that_no_exit_may_end_is_refused_with_its_roots_kind(board: Board) -> None:
    async with board.pod("lone", spec={"restartPolicy": "Never"}) as before:
        refused = (await board.asked("lone", Strategy.SWAP))[-1]
        assert (refused["ok"], refused["reason"]) == (False, "NothingElseRuns")
        assert "not an overlay" in refused["detail"]
        assert (await board.see("lone")).running == before.running
