"""Processes in /proc, which of them are killed, and the files in memory that they inherit."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.kubemend_run import Process, descendants, device_of, kill, memory_file, process_of, processes, resident

FORESTS = st.integers(2, 30).flatmap(
    lambda count: st.tuples(
        *(st.tuples(st.integers(1, max(1, pid - 1)), st.sampled_from("RSDZXT")) for pid in range(2, count))
    )
)


@given(FORESTS, st.sets(st.integers(2, 30), max_size=3))
def test_descendants_are_all_that_live_below_a_process(forest: tuple[tuple[int, str], ...], without: set[int]) -> None:
    found = {pid: Process(pid, parent, state, 0) for pid, (parent, state) in enumerate(forest, 2)}
    found[1] = Process(1, 0, "S", 0)

    def ancestors(pid: int) -> set[int]:
        return {pid} | (ancestors(found[pid].parent) if pid > 1 else set())

    below = descendants(found, 1, without)
    assert {each.pid for each in below} == {
        pid for pid in found if pid != 1 and without.isdisjoint(ancestors(pid)) and found[pid].state not in "ZX"
    }
    order = [each.pid for each in below]
    assert all(order.index(each.parent) < order.index(each.pid) for each in below if each.parent in order)


def test_this_process_is_found() -> None:
    own = processes()[os.getpid()]
    assert (own.parent, own) == (os.getppid(), process_of(os.getpid()))
    assert resident(os.getpid()) > 1 << 20


def test_a_name_with_brackets_and_spaces_is_no_field(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) R 1 (b) S 3 " + " ".join(str(each) for each in range(5, 40)))
    (tmp_path / "8").mkdir()
    assert processes(str(tmp_path)) == {7: Process(7, 3, "S", 22)}


@pytest.mark.parametrize("handles", [True, False], ids=["pidfd", "python-3.8"])
def test_only_the_process_that_was_seen_is_killed(handles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not handles:
        monkeypatch.delattr(os, "pidfd_open")
    child = subprocess.Popen(["sleep", "1000"])
    seen = process_of(child.pid)
    assert seen is not None
    kill(seen._replace(started=seen.started + 1))
    assert child.poll() is None
    kill(seen)
    assert child.wait() == -9
    kill(seen)


def test_a_device_that_is_open_or_mapped_is_found(tmp_path: Path) -> None:
    path = tmp_path / "nvidia0"
    path.write_text("x")
    assert device_of(os.getpid(), (str(path),)) == ""
    with path.open():
        assert device_of(os.getpid(), ("/dev/none", f"{tmp_path}/nvidia")) == str(path)
    assert device_of(os.getpid(), ()) == ""


@pytest.fixture(params=["own", "of the C library"])
def in_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Pythons of conda and uv are built for C libraries that are older than the call."""
    if request.param != "own":
        monkeypatch.delattr(os, "memfd_create")


@pytest.mark.usefixtures("in_memory")
def test_file_in_memory_has_its_content_and_is_not_inherited() -> None:
    file = memory_file("kubemend-test", b"content")
    try:
        assert Path(f"/proc/self/fd/{file}").readlink().name.startswith("memfd:kubemend-test")
        assert (os.pread(file, 100, 0), os.get_inheritable(file)) == (b"content", False)
    finally:
        os.close(file)


@pytest.mark.usefixtures("in_memory")
def test_file_in_memory_that_the_kernel_refuses_is_an_error_with_its_reason() -> None:
    with pytest.raises(OSError, match="Invalid argument: 'memfd_create'"):
        memory_file("n" * 250)
