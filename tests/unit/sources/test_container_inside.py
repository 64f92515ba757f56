"""A container inspected from the node: its file, whether it is able to beat, and its threads."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubemend.agent.health.state.heartbeat import Blank, Mark
from kubemend.agent.model.hangs import Thread
from kubemend.agent.sources import thread_states
from kubemend.agent.sources.container_inside import CannotInspectError, Inside
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import openat2
from tests.fakes.proc_tree import ProcTree, container_id

ME, PID = container_id(1), 100


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    tree = ProcTree(tmp_path)
    (tree.run(ME, pid=PID) / "tmp").mkdir()
    return tree


@pytest.fixture
def inside(tree: ProcTree) -> Iterator[Inside]:
    inside = enter(tree)
    yield inside
    inside.close()


def enter(tree: ProcTree) -> Inside:
    return Inside.of(PID, container_id=ME, processes=ProcFs(root=tree.proc, cgroup_root=tree.cgroups))


@pytest.fixture
def beat(tree: ProcTree) -> Path:
    """The file in the node's view; inside the container it is /tmp/beat."""
    return tree.roots[ME] / "tmp" / "beat"


def test_missing_file_is_absent(inside: Inside) -> None:
    assert inside.heartbeat_mark("/tmp/beat") is Blank.ABSENT
    assert inside.heartbeat_mark("/none/beat") is Blank.ABSENT


def test_touch_changes_the_mark_and_reading_does_not(inside: Inside, beat: Path) -> None:
    beat.touch()
    before = inside.heartbeat_mark("/tmp/beat")
    beat.read_bytes()
    assert inside.heartbeat_mark("/tmp/beat") == before
    os.utime(beat, ns=(0, 0))
    assert inside.heartbeat_mark("/tmp/beat") != before


def test_replaced_file_has_another_mark(inside: Inside, beat: Path) -> None:
    beat.touch()
    before = inside.heartbeat_mark("/tmp/beat")
    new = beat.with_name("new")
    new.touch()
    os.utime(new, ns=(beat.stat().st_atime_ns, beat.stat().st_mtime_ns))
    new.rename(beat)
    assert inside.heartbeat_mark("/tmp/beat") != before


def test_links_are_followed_within_the_container(inside: Inside, beat: Path) -> None:
    beat.touch()
    beat.with_name("link").symlink_to("/tmp/beat")
    assert isinstance(inside.heartbeat_mark("/tmp/link"), Mark)


def test_link_to_a_file_of_the_node_finds_nothing(inside: Inside, beat: Path, tmp_path: Path) -> None:
    (tmp_path / "nodes").touch()
    beat.symlink_to(tmp_path / "nodes")
    assert inside.heartbeat_mark("/tmp/beat") is Blank.ABSENT


def test_only_a_regular_file_beats(inside: Inside, beat: Path) -> None:
    os.mkfifo(beat)
    with pytest.raises(OSError, match="not a regular file"):
        inside.heartbeat_mark("/tmp/beat")
    with pytest.raises(OSError, match="not a regular file"):
        inside.heartbeat_mark("/tmp")


def test_frozen_container_is_paused(inside: Inside, tree: ProcTree, beat: Path) -> None:
    beat.touch()
    tree.freeze(ME)
    assert inside.heartbeat_mark("/tmp/beat") is Blank.PAUSED
    tree.freeze(ME, frozen=False)
    assert isinstance(inside.heartbeat_mark("/tmp/beat"), Mark)


@pytest.mark.parametrize("state", thread_states.STOPPED)
def test_container_with_stopped_main_process_is_paused(inside: Inside, tree: ProcTree, state: str) -> None:
    tree.thread(PID, state=state)
    assert inside.heartbeat_mark("/tmp/beat") is Blank.PAUSED


def test_ended_container_is_not_confused_with_another(inside: Inside, tree: ProcTree, beat: Path) -> None:
    beat.touch()
    tree.end(ME, pid=PID)
    tree.run(container_id(2), pid=PID)
    with pytest.raises(OSError):  # noqa: PT011 - the kernel chooses the errno
        inside.heartbeat_mark("/tmp/beat")


def test_process_of_another_container_is_refused(tree: ProcTree) -> None:
    other = container_id(2)
    tree.run(other, pid=PID + 1)
    (tree.proc / str(PID) / "cgroup").write_text(f"0::/kubepods/pod1/{other}\n")
    with pytest.raises(ProcessLookupError):
        enter(tree)


def test_missing_process_raises(tree: ProcTree) -> None:
    tree.end(ME, pid=PID)
    with pytest.raises(FileNotFoundError):
        enter(tree)


def test_hidden_cgroups_raise_with_hint(tree: ProcTree) -> None:
    (tree.group(ME) / "cgroup.events").unlink()
    inside = enter(tree)
    with pytest.raises(CannotInspectError, match=r"frozen; run the agent privileged"):
        inside.heartbeat_mark("/tmp/beat")
    inside.close()


@pytest.mark.parametrize(("number", "what"), [(1, None), (38, "openat2")], ids=["EPERM", "ENOSYS"])
def test_old_kernel_is_distinguished_from_forbidden_file(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, number: int, what: str | None
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(openat2, "open_in_root", refuse)
    with pytest.raises(CannotInspectError if what else PermissionError, match=what or "not permitted"):
        inside.heartbeat_mark("/tmp/beat")


def test_forbidden_root_is_a_missing_capability(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CannotInspectError, match="CAP_SYS_PTRACE"):
        inside._open_root()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_look_leaves_no_file_open(inside: Inside, beat: Path) -> None:
    beat.touch()
    inside.heartbeat_mark("/tmp/beat")
    before = open_files()
    for _ in range(10):
        inside.heartbeat_mark("/tmp/beat")
        inside.heartbeat_mark("/tmp/none")
    assert open_files() == before


def test_most_informative_threads_come_first(inside: Inside, tree: ProcTree) -> None:
    tree.thread(PID, tid=PID + 1, state="D", name="nccl (watchdog)", waits_in="nv_ioctl")
    tree.thread(PID, tid=PID + 2, state="R", name="loader", waits_in="0")
    threads = inside.threads()
    found = thread_states.most_informative(tree.proc, threads)
    assert [thread.tid for thread in found] == [PID + 1, PID + 2, PID]
    assert found[0] == Thread(
        pid=PID,
        tid=PID + 1,
        name="nccl (watchdog)",
        state="D",
        waits_in="nv_ioctl",
        stack=("nv_ioctl", "do_syscall_64"),
    )
    assert thread_states.summary(threads, found) == "threads: 1 D, 1 R, 1 S; nccl (watchdog) (101) D in nv_ioctl"
    assert found[1].waits_in == "", "it runs"


@pytest.mark.parametrize("state", ["t", "T"])
def test_stopped_thread_is_found_among_many(inside: Inside, tree: ProcTree, state: str) -> None:
    assert not thread_states.are_stopped(tree.proc, inside.threads())
    tree.thread(PID, tid=PID + 1, state=state)
    assert thread_states.are_stopped(tree.proc, inside.threads())


@pytest.mark.parametrize("ends", [False, True])
def test_thread_that_is_stopped_for_moments_is_not_stopped(
    inside: Inside, tree: ProcTree, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """As those of the launcher's spare while it imports next to the program, or is dropped."""

    def resume(_: float) -> None:
        tree.thread(PID, tid=PID + 1, state="R")
        if ends:
            (tree.proc / str(PID) / "task" / str(PID + 1) / "stat").unlink()

    tree.thread(PID, tid=PID + 1, state="T")
    threads = inside.threads()
    monkeypatch.setattr("time.sleep", resume)
    assert not thread_states.are_stopped(tree.proc, threads)


def test_threads_that_end_during_the_read_are_omitted(tree: ProcTree) -> None:
    (tree.proc / str(PID) / "task" / str(PID) / "stat").unlink()
    assert thread_states.read(tree.proc, [PID, 4711]) == ()
    assert thread_states.summary((), ()) == "no process of it was found"


def test_full_reads_differ_when_a_thread_ran_or_moved(tree: ProcTree) -> None:
    processes = ProcFs(root=tree.proc, cgroup_root=tree.cgroups)
    tree.thread(PID, tid=PID + 1, state="D", waits_in="nv_ioctl")
    before = processes.threads([PID])
    assert processes.threads([PID]) == before
    stat = tree.proc / str(PID) / "task" / str(PID + 1) / "stat"
    stat.write_text(f"{PID + 1} (python) D {' 0' * 10} 5 7 0\n")  # utime and stime are the fields 14 and 15
    used = processes.threads([PID])
    assert [thread.used for thread in (*before, *used)] == [0, 0, 0, 12]
    tree.thread(PID, tid=PID + 1, state="D", waits_in="exit_mmap")
    assert processes.threads([PID]) not in (before, used)


def test_container_pids_returns_all_processes_of_the_container(tree: ProcTree) -> None:
    processes = ProcFs(root=tree.proc, cgroup_root=tree.cgroups)
    assert processes.container_pids(PID, of=ME) == {PID}
    assert processes.container_pids(PID + 99, of=ME) == frozenset()
    assert processes.container_pids(PID, of=container_id(2)) == frozenset(), "it has the PID of an ended process"
