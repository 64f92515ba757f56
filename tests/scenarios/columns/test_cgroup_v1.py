"""Restarts on a node without a cgroup v2 hierarchy, whose containers the agent cannot freeze."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kubemend.agent.restart.intents import Strategy
from tests.scenarios.columns.board import ALONE, Board

pytestmark = pytest.mark.devnode

SYSFS = Path("/sys")


@pytest.fixture
def agent_flags(tmp_path: Path) -> Sequence[str]:
    """Show the agent this machine's sysfs without the hierarchies of version 2."""
    shown = tmp_path / "sys"
    groups = shown / "fs" / "cgroup"
    groups.mkdir(parents=True)
    (shown / "bus").symlink_to(SYSFS / "bus")
    for hierarchy in (SYSFS / "fs" / "cgroup").iterdir():
        if hierarchy.is_dir() and not (hierarchy / "cgroup.controllers").exists():
            (groups / hierarchy.name).symlink_to(hierarchy)
    return (f"--sysfs={shown}",)


async def test_without_cgroup_v2_the_hint_is_logged_and_only_pods_that_need_a_hold_are_refused(board: Board) -> None:
    lines = board.dev.layout.log_file("agent").read_text().splitlines()
    events = [json.loads(line) for line in lines if '"standby.unavailable"' in line]
    (reason,) = [event["error"] for event in events]
    assert "no cgroup version 2 hierarchy" in reason
    assert "mount one" in reason, "the hint"
    async with board.pod("version-1", ALONE) as before:
        after = await board.restarted("version-1", Strategy.SWAP, before)
        assert not board.overlapped(after)
    async with board.pod("lone-version-1", spec={"restartPolicy": "Never"}) as before:
        refused = (await board.asked("lone-version-1", Strategy.SWAP))[-1]
        assert (refused["ok"], refused["reason"]) == (False, "NothingElseRuns")
        assert "restartPolicy Always" in refused["detail"], "the hint"
        assert (await board.see("lone-version-1")).running == before.running
