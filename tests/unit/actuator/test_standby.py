"""No successor is started next to an old container where it cannot be held: two would run side by side."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from kubemend.agent.actuator.hold import cgroups, exec_hold, fanotify
from kubemend.agent.actuator.hold.cgroups import Cgroup, Mark
from kubemend.agent.actuator.hold.exec_hold import ExecHolds, Hold, HoldError, Timeouts
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.model.workloads import ContainerId
from tests.fakes.proc_tree import ProcTree, container_id

OLD, PID = container_id(1), 100


class Holds:
    """Stand in for the holds at the first instruction; ``overlay``: the old container's root is one."""

    at_most = 60.0

    def __init__(self, *, overlay: bool) -> None:
        self._overlay = overlay

    async def runtime_process(self) -> Path:
        return Path("/proc/1")

    async def could_have_held(self, of: ContainerId, **_: Path) -> bool:
        assert of == OLD
        return self._overlay


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    made = ProcTree(tmp_path)
    made.run(OLD, pid=PID)
    (made.group(OLD) / "cgroup.freeze").write_text("0")
    return made


def standbys(tree: ProcTree, *, overlay: bool) -> Standbys:
    return Standbys(holds=cast("ExecHolds", Holds(overlay=overlay)), proc=tree.proc, cgroup_root=tree.cgroups)


async def test_container_whose_root_is_an_overlay_gets_a_standby(tree: ProcTree) -> None:
    assert await standbys(tree, overlay=True).check_old(PID, of=OLD) == Path("/proc/1")


async def test_container_whose_root_is_no_overlay_gets_none(tree: ProcTree) -> None:
    with pytest.raises(HoldError, match="would run next to it"):
        await standbys(tree, overlay=False).check_old(PID, of=OLD)


def test_container_that_cannot_be_thawed_is_reported_and_stays_marked(tree: ProcTree) -> None:
    """The next agent finds by the mark that it is frozen."""
    made = standbys(tree, overlay=True)
    made.freeze(PID, of=OLD)
    marked = Cgroup(tree.group(OLD)).mark
    (tree.group(OLD) / "cgroup.freeze").unlink()
    (tree.group(OLD) / "cgroup.freeze").mkdir()
    with pytest.raises(HoldError, match=r"cannot thaw .*: Is a directory"):
        made.thaw(PID, of=OLD)
    assert marked is None or Mark.parse(marked).state == cgroups.REPLACED
    assert Cgroup(tree.group(OLD)).mark == marked


async def test_container_whose_cgroup_cannot_be_read_is_neither_frozen_nor_thawed(tree: ProcTree) -> None:
    (tree.proc / str(PID) / "cgroup").unlink()
    (tree.proc / str(PID) / "cgroup").mkdir()
    made = standbys(tree, overlay=True)
    with pytest.raises(HoldError, match="cannot be read: Is a directory"):
        made.freeze(PID, of=OLD)
    with pytest.raises(HoldError, match="cannot be read: Is a directory"):
        made.thaw(PID, of=OLD)
    assert not await made.is_frozen(PID, of=OLD)


class Roots:
    """Stand in for the watcher of mounts."""

    def forget(self, container_id: ContainerId) -> None:
        assert container_id == OLD


class Crio:
    """Stand in for a runtime that has mounted the roots of created containers."""

    async def root_of(self, container_id: ContainerId) -> str:
        assert container_id == OLD
        return "/proc"


async def test_hold_of_a_start_that_is_called_off_while_the_root_is_marked_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold the next try's container for eleven minutes, whatever that one's hold allows."""
    (tmp_path / "mountinfo").write_text("2 1 0:3 / /proc rw - overlay none rw\n")
    (tmp_path / "root").symlink_to("/")
    group, begun, may_end, flushed = os.eventfd(0), threading.Event(), threading.Event(), threading.Event()

    def mark(*_: object) -> None:
        begun.set()
        may_end.wait(60.0)

    monkeypatch.setattr(exec_hold, "_new_group", lambda: group)
    monkeypatch.setattr(fanotify, "mark", mark)
    monkeypatch.setattr(fanotify, "flush", lambda _: flushed.set())
    arming = asyncio.create_task(ExecHolds(socket_path="", proc=tmp_path, roots=Crio()).arm(OLD, runtime=tmp_path))
    assert await asyncio.to_thread(begun.wait, 60.0)
    arming.cancel()
    await asyncio.wait({arming})
    assert not flushed.is_set(), "the group is closed while a thread marks with it"
    may_end.set()
    assert await asyncio.to_thread(flushed.wait, 60.0)


@pytest.mark.parametrize("is_mounted", [True, False])
async def test_only_a_root_that_is_still_mounted_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mounted: bool
) -> None:
    """A start that fails unmounts it again: the mark would be on the node's own file system, and all its programs."""
    marked: list[Path] = []
    monkeypatch.setattr(exec_hold, "_new_group", lambda: os.eventfd(0))
    monkeypatch.setattr(fanotify, "mark", lambda _, root: marked.append(root.resolve()))
    monkeypatch.setattr(fanotify, "flush", lambda _: None)
    with ThreadPoolExecutor(1) as threads:
        hold = Hold(OLD, proc=tmp_path, roots=Roots(), threads=threads, timeouts=Timeouts())  # type: ignore[arg-type]
        root = Path("/proc") if is_mounted else tmp_path
        hold.mark(root)
        hold.release()
        await asyncio.get_running_loop().run_in_executor(threads, int)  # it is closed in the one after that
    assert marked == ([root] if is_mounted else [])
