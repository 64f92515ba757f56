"""A container's processes are killed together, also by kernels without an operation for that."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubemend.agent.actuator import context
from kubemend.agent.actuator.hold import cgroups, exec_hold
from kubemend.agent.actuator.hold.cgroups import Cgroup

DEADLINE = 60.0


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    child = subprocess.Popen(["sleep", "3600"])
    yield child
    child.kill()
    child.wait(timeout=DEADLINE)


@pytest.fixture
def group(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> Cgroup:
    """A cgroup of plain files, as in Linux before 5.14."""
    (tmp_path / "cgroup.freeze").write_text("0")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    (tmp_path / "cgroup.procs").write_text(f"{sleeper.pid}\n")
    return Cgroup(tmp_path)


def test_without_cgroup_kill_processes_are_frozen_and_killed_singly(
    group: Cgroup, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    real, stood_still = signal.pidfd_send_signal, []

    def send(process: int, number: int) -> None:
        stood_still.append(group.frozen)
        real(process, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send)
    monkeypatch.setattr(Path, "write_text", _only_what_exists(Path.write_text))
    group.kill()
    assert sleeper.wait(timeout=DEADLINE) == -signal.SIGKILL
    assert stood_still
    assert all(stood_still)


def test_cgroup_kill_is_the_only_write(group: Cgroup, sleeper: "subprocess.Popen[bytes]") -> None:
    (group.path / "cgroup.kill").write_text("")
    group.kill()
    assert (group.path / "cgroup.kill").read_text() == "1"
    assert sleeper.poll() is None


def test_cgroup_that_is_removed_between_the_opening_and_the_write_needs_no_freeze(
    group: Cgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed(path: Path, text: str) -> int:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(path))

    monkeypatch.setattr(Path, "write_text", removed)
    group.freeze()


def test_missing_cgroup_needs_no_kill(group: Cgroup) -> None:
    Cgroup(group.path / "gone").kill()


@pytest.mark.parametrize(("events", "ended"), [("populated 0\nfrozen 1\n", True), ("populated 1\nfrozen 0\n", False)])
def test_cgroup_without_processes_has_ended(group: Cgroup, events: str, ended: bool) -> None:
    (group.path / "cgroup.events").write_text(events)
    assert group.wait_ended(timeout=0.0) is ended


def test_removed_cgroup_has_ended(group: Cgroup) -> None:
    assert Cgroup(group.path / "gone").wait_ended(timeout=0.0)


def test_mark_that_cannot_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, whole = (f"cri-containerd-{digit * 64}.scope" for digit in "ab")
    for name in (broken, whole):
        (tmp_path / name).mkdir()

    def mark(path: Path, _: str) -> bytes:
        if path.name == broken:
            raise OSError(errno.EIO, "broken")
        return b"held uid-1 node"

    monkeypatch.setattr(os, "getxattr", mark)
    assert [group.path.name for _, group, _ in cgroups.marked(tmp_path)] == [whole]


def test_hold_outlasts_the_waits_of_a_restart() -> None:
    assert exec_hold.Timeouts().at_most > context.LONGEST


def _only_what_exists(write: object) -> object:
    """Refuse new files: files of a cgroup are the kernel's."""

    def written(path: Path, text: str) -> int:
        if not path.exists():
            raise FileNotFoundError(path)
        return write(path, text)  # type: ignore[operator, no-any-return]

    return written
