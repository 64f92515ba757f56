"""No successor is started next to an old container where it cannot be held: two would run side by side."""

import asyncio
import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from kubemend.agent.actuator.hold import cgroups, exec_hold, fanotify
from kubemend.agent.actuator.hold.cgroups import Cgroup, Mark
from kubemend.agent.actuator.hold.exec_hold import ExecHolds, Hold, HoldError, Timeouts
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.model.workloads import ContainerId
from tests import eventually
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


class Kernel:
    """Stand in for fanotify: processes ask to execute, and are answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.group = os.eventfd(0, os.EFD_NONBLOCK)
        self.answers: list[tuple[int, str]] = []
        self._asking: list[fanotify.PermissionEvent] = []
        monkeypatch.setattr(exec_hold, "_new_group", lambda: self.group)
        monkeypatch.setattr(fanotify, "flush", lambda _: None)
        monkeypatch.setattr(fanotify, "permission_events", self._events)
        for name in ("allow", "deny"):
            monkeypatch.setattr(fanotify, name, lambda _, file, name=name: self.answers.append((file, name)))

    async def ask(self, pid: int) -> None:
        """Have a process ask; its number stands for the file as well."""
        self._asking.append(fanotify.PermissionEvent(file=pid, pid=pid))
        os.eventfd_write(self.group, 1)
        await eventually.true(lambda: not self._asking)

    def _events(self, group: int) -> list[fanotify.PermissionEvent]:
        os.eventfd_read(group)
        asking, self._asking = self._asking, []
        return asking


async def test_processes_that_wait_for_a_release_are_limited_and_the_dead_are_forgotten(
    tree: ProcTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes of a container that is held for minutes time out, and are killed; people run programs in it."""
    monkeypatch.setattr(exec_hold, "MOST_WAITING", 3)
    kernel = Kernel(monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        hold = Hold(OLD, proc=tree.proc, roots=Roots(), threads=threads, timeouts=Timeouts())  # type: ignore[arg-type]
        await kernel.ask(PID)
        assert await hold.engaged()
        for pid in range(201, 211):
            process = shutil.copytree(tree.proc / str(PID), tree.proc / str(pid), symlinks=True)
            await kernel.ask(pid)
            if pid <= 205:
                shutil.rmtree(process)
        assert kernel.answers == [
            (201, "allow"), (202, "allow"), (203, "allow"), (204, "allow"), (205, "allow"),
            (208, "deny"), (209, "deny"), (210, "deny"),
        ]  # fmt: skip
        assert hold.asker == PID
        hold.release()
        await asyncio.get_running_loop().run_in_executor(threads, int)
    assert {file for file, answer in kernel.answers if answer == "allow"} == {*range(201, 208), PID}


async def test_hold_survives_a_lack_of_descriptors(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses the execution then."""
    kernel = Kernel(monkeypatch)

    def full(group: int) -> None:
        os.eventfd_read(group)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with ThreadPoolExecutor(1) as threads:
        hold = Hold(OLD, proc=tree.proc, roots=Roots(), threads=threads, timeouts=Timeouts())  # type: ignore[arg-type]
        await kernel.ask(PID)
        assert await hold.engaged()
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr(fanotify, "permission_events", full)
            os.eventfd_write(kernel.group, 1)
            await eventually.true(lambda: [each["event"] for each in logs] == ["hold.not_read"])
        hold.release()
        await asyncio.get_running_loop().run_in_executor(threads, int)
    assert kernel.answers == [(PID, "allow")]
