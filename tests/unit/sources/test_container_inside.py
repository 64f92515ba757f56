"""What the node sees of a container: its file, whether it can beat at all, and what its threads do."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.health.heartbeat import Blank, Mark
from agent.model.hangs import Thread
from agent.sources import thread_states
from agent.sources.container_inside import CannotLookInsideError, Inside
from agent.sources.processes import ProcFs
from common import rooted
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
    """The file as the node sees it; inside the container it is /tmp/beat."""
    return tree.roots[ME] / "tmp" / "beat"


def test_a_file_that_is_not_there_is_absent(inside: Inside) -> None:
    assert inside.look("/tmp/beat") is Blank.ABSENT
    assert inside.look("/none/beat") is Blank.ABSENT


def test_a_touch_changes_the_mark_and_reading_does_not(inside: Inside, beat: Path) -> None:
    beat.touch()
    before = inside.look("/tmp/beat")
    beat.read_bytes()
    assert inside.look("/tmp/beat") == before
    os.utime(beat, ns=(0, 0))
    assert inside.look("/tmp/beat") != before


def test_a_replaced_file_has_another_mark(inside: Inside, beat: Path) -> None:
    beat.touch()
    before = inside.look("/tmp/beat")
    new = beat.with_name("new")
    new.touch()
    os.utime(new, ns=(beat.stat().st_atime_ns, beat.stat().st_mtime_ns))
    new.rename(beat)
    assert inside.look("/tmp/beat") != before


def test_links_are_followed_as_the_container_sees_them(inside: Inside, beat: Path) -> None:
    beat.touch()
    beat.with_name("link").symlink_to("/tmp/beat")
    assert isinstance(inside.look("/tmp/link"), Mark)


def test_a_link_that_names_a_file_of_the_nodes_finds_nothing(inside: Inside, beat: Path, tmp_path: Path) -> None:
    (tmp_path / "nodes").touch()
    beat.symlink_to(tmp_path / "nodes")
    assert inside.look("/tmp/beat") is Blank.ABSENT


def test_only_a_regular_file_beats(inside: Inside, beat: Path) -> None:
    os.mkfifo(beat)
    with pytest.raises(OSError, match="not a regular file"):
        inside.look("/tmp/beat")
    with pytest.raises(OSError, match="not a regular file"):
        inside.look("/tmp")


def test_a_frozen_container_is_paused(inside: Inside, tree: ProcTree, beat: Path) -> None:
    beat.touch()
    tree.freeze(ME)
    assert inside.look("/tmp/beat") is Blank.PAUSED
    tree.freeze(ME, frozen=False)
    assert isinstance(inside.look("/tmp/beat"), Mark)


@pytest.mark.parametrize("state", thread_states.STOPPED)
def test_a_container_whose_main_process_was_stopped_is_paused(inside: Inside, tree: ProcTree, state: str) -> None:
    tree.thread(PID, state=state)
    assert inside.look("/tmp/beat") is Blank.PAUSED


def test_a_container_that_has_ended_is_not_looked_at_for_another(inside: Inside, tree: ProcTree, beat: Path) -> None:
    beat.touch()
    tree.end(ME, pid=PID)
    tree.run(container_id(2), pid=PID)
    with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's to say
        inside.look("/tmp/beat")


def test_a_process_of_another_container_is_not_entered(tree: ProcTree) -> None:
    other = container_id(2)
    tree.run(other, pid=PID + 1)
    (tree.proc / str(PID) / "cgroup").write_text(f"0::/kubepods/pod1/{other}\n")
    with pytest.raises(ProcessLookupError):
        enter(tree)


def test_no_process_is_no_container(tree: ProcTree) -> None:
    tree.end(ME, pid=PID)
    with pytest.raises(FileNotFoundError):
        enter(tree)


def test_where_cgroups_cannot_be_seen_nothing_can_be_told(tree: ProcTree) -> None:
    (tree.group(ME) / "cgroup.events").unlink()
    inside = enter(tree)
    with pytest.raises(CannotLookInsideError, match=r"frozen; run the agent privileged"):
        inside.look("/tmp/beat")
    inside.close()


@pytest.mark.parametrize(("number", "what"), [(1, None), (38, "openat2")], ids=["EPERM", "ENOSYS"])
def test_a_kernel_that_is_too_old_is_told_from_a_file_that_is_forbidden(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, number: int, what: str | None
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(rooted, "open_in", refuse)
    with pytest.raises(CannotLookInsideError if what else PermissionError, match=what or "not permitted"):
        inside.look("/tmp/beat")


def test_a_root_that_may_not_be_entered_is_the_agents_own_lack(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CannotLookInsideError, match="CAP_SYS_PTRACE"):
        inside._open_root()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_kept_open_by_a_look(inside: Inside, beat: Path) -> None:
    beat.touch()
    inside.look("/tmp/beat")
    before = open_files()
    for _ in range(10):
        inside.look("/tmp/beat")
        inside.look("/tmp/none")
    assert open_files() == before


def test_the_threads_that_say_most_come_first(inside: Inside, tree: ProcTree) -> None:
    tree.thread(PID, tid=PID + 1, state="D", name="nccl (watchdog)", waits_in="nv_ioctl")
    tree.thread(PID, tid=PID + 2, state="R", name="loader", waits_in="0")
    threads = inside.threads()
    telling = thread_states.telling(tree.proc, threads)
    assert [thread.tid for thread in telling] == [PID + 1, PID + 2, PID]
    assert telling[0] == Thread(
        pid=PID,
        tid=PID + 1,
        name="nccl (watchdog)",
        state="D",
        waits_in="nv_ioctl",
        stack=("nv_ioctl", "do_syscall_64"),
    )
    assert thread_states.summary(threads, telling) == "threads: 1 D, 1 R, 1 S; nccl (watchdog) (101) D in nv_ioctl"
    assert telling[1].waits_in == "", "it runs"


def test_a_thread_that_somebody_stopped_is_seen_among_many(inside: Inside, tree: ProcTree) -> None:
    assert not thread_states.are_stopped(inside.threads())
    tree.thread(PID, tid=PID + 1, state="t")
    assert thread_states.are_stopped(inside.threads())


def test_threads_that_end_meanwhile_are_left_out(tree: ProcTree) -> None:
    (tree.proc / str(PID) / "task" / str(PID) / "stat").unlink()
    assert thread_states.look(tree.proc, [PID, 4711]) == ()
    assert thread_states.summary((), ()) == "no process of it was found"


def test_two_looks_in_full_differ_when_a_thread_has_used_time_or_waits_elsewhere(tree: ProcTree) -> None:
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


def test_all_processes_of_a_container_are_beside_its_first(tree: ProcTree) -> None:
    processes = ProcFs(root=tree.proc, cgroup_root=tree.cgroups)
    assert processes.beside(PID) == {PID}
    assert processes.beside(PID + 99) == frozenset()
