"""Process facts from a fake or real /proc."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.model.processes import ProcessOrigin
from kubemend.agent.sources import processes, thread_states
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import kernel_files


@pytest.fixture
def proc(tmp_path: Path) -> ProcFs:
    return ProcFs(root=tmp_path, cgroup_root=tmp_path / "cgroup")


def add_thread(proc: ProcFs, pid: int, tid: int, *, state: str, name: str = "python") -> None:
    task = proc.root / str(pid) / "task" / str(tid)
    task.mkdir(parents=True)
    (task / "stat").write_text(f"{tid} ({name}) {state} 1 1 1 0 -1 0 0\n")


def test_pids_in_the_kernel_log_are_those_of_the_initial_namespace(
    proc: ProcFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, device = proc.root / "kmsg", Path("/dev/null")
    file.write_text("")
    assert proc.has_pids_of(device), "nothing is known of it"
    namespace = proc.root / "1" / "ns" / "pid"
    namespace.parent.mkdir(parents=True)
    namespace.write_text("")
    assert (proc.has_pids_of(device), proc.has_pids_of(file)) == (False, True)
    monkeypatch.setattr(processes, "_INITIAL_PID_NAMESPACE", namespace.stat().st_ino)
    assert proc.has_pids_of(device)


def test_process_held_by_a_debugger_is_seen_behind_one_with_many_threads(
    proc: ProcFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with eight ranks has more threads than are read: the restart for a hang would end the debugging."""
    monkeypatch.setattr(thread_states, "_MOST_THREADS", 3)
    for tid in range(7, 12):
        add_thread(proc, 7, tid, state="S")
    add_thread(proc, 20, 20, state="t")

    found = thread_states.read(proc.root, [20, 7])

    assert [(thread.pid, thread.tid) for thread in found] == [(7, 7), (20, 20), (7, 8)]
    assert thread_states.are_stopped(proc.root, found)


def test_process_with_thread_in_state_d_is_stuck_despite_zombie_leader(
    proc: ProcFs,
) -> None:
    add_thread(proc, 7, 7, state="Z")
    add_thread(proc, 7, 8, state="D", name="odd) D (name")
    assert proc.is_stuck(7)


@pytest.mark.parametrize("state", ["R", "S", "T", "Z"])
def test_process_in_any_other_state_is_not_stuck(proc: ProcFs, state: str) -> None:
    add_thread(proc, 7, 7, state=state, name="a D process")
    assert not proc.is_stuck(7)


async def test_pid_that_a_thread_has_by_now_has_ended() -> None:
    with ThreadPoolExecutor(1) as threads:
        of_thread = threads.submit(threading.get_native_id).result()
        async with asyncio.timeout(30):
            await ProcFs(root=Path("/proc"), cgroup_root=Path("/sys/fs/cgroup")).ended(of_thread)


async def test_pid_that_another_process_has_by_now_has_ended() -> None:
    proc = ProcFs()
    with called(b"other") as pid:
        facts = proc.facts(pid)
        assert facts is not None
        async with asyncio.timeout(30):
            await proc.ended(pid, started=facts.started - 1.0)
        same = asyncio.create_task(proc.ended(pid, started=facts.started))
        done, _ = await asyncio.wait({same}, timeout=0.1)
        assert not done
    async with asyncio.timeout(30):
        await same


def test_ended_process_is_not_stuck(proc: ProcFs) -> None:
    assert not proc.is_stuck(7)


NAMED = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(15, os.fsencode(sys.argv[1])):
    sys.exit(1)
print("named", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def called(name: bytes) -> Iterator[int]:
    """Run a process with that name (prctl(2), PR_SET_NAME); yield its pid."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", NAMED, name], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"named\n"
        yield child.pid
        child.stdin.close()


HOSTILE = ["x模型训练进程".encode()[:15], b"\xff\xfe", b"a\nb) D (", b"\x0bNSpid:\t9\t1", b"\r0::/x\x85\x1c"]


@pytest.mark.parametrize("name", HOSTILE)
def test_process_with_any_name_is_read(name: bytes) -> None:
    with called(name) as pid:
        facts = ProcFs().facts(pid)
        assert facts is not None
        assert 0 < facts.started <= time.clock_gettime(time.CLOCK_BOOTTIME)
        ProcFs().is_stuck(pid)
        (thread,) = thread_states.read(Path("/proc"), [pid])
        assert thread.name == kernel_files.text(name)
        assert str(thread).encode()


ME, OTHER = "a" * 64, "b" * 64


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_of_a_process_can_be_logged(name: bytes) -> None:
    with called(name) as pid:
        assert ProcFs().name(pid).encode()


@pytest.mark.parametrize("mark", ["\r", "\x0b", "\x1c", "\x85", "\u2028"])
def test_newline_in_cgroup_name_is_not_a_line(proc: ProcFs, mark: str) -> None:
    forged = f"1:name=systemd:/kubepods/pod1/{ME}/x{mark}0::/kubepods/pod2/{OTHER}\n"
    _write(proc, cgroup=f"{forged}0::/kubepods/pod1/{ME}/x\n".encode())
    facts = proc.facts(7)
    assert facts is not None
    assert facts.container == ME


def test_cpus_of_cgroup_with_invalid_unicode_are_found(proc: ProcFs) -> None:
    group = proc.cgroup_root / "pod1" / os.fsdecode(b"\xff")
    group.mkdir(parents=True)
    (group / "cpuset.cpus").write_text("0-3\n")
    _write(proc, cgroup=b"0::/pod1/\xff\n")
    assert proc.cpuset(7) == "0-3"


@given(cgroup=st.binary(), stat=st.binary())
def test_any_bytes_give_a_result_or_an_error(cgroup: bytes, stat: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        proc = ProcFs(root=Path(directory), cgroup_root=Path(directory))
        _write(proc, cgroup=cgroup, stat=stat)
        with contextlib.suppress(OSError):
            proc.facts(7)
        with contextlib.suppress(OSError):
            proc.is_stuck(7)
        proc.cpuset(7)
        Cgroup.of_process(7, proc=proc.root, mounted_at=proc.cgroup_root)


def _write(proc: ProcFs, *, cgroup: bytes, stat: bytes = b"7 (x) S" + b" 1" * 30) -> None:
    for directory in (proc.root / "7", proc.root / "7" / "task" / "7"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "stat").write_bytes(stat)
    (proc.root / "7" / "cgroup").write_bytes(cgroup)


SHIM = 50
TRAINER_GROUP = "/kubepods.slice/cri-containerd-" + "a" * 64 + ".scope"
PAUSE_GROUP = "/kubepods.slice/cri-containerd-" + "b" * 64 + ".scope"


def add_process(proc: ProcFs, pid: int, *, parent: int, ids: str, group: str = TRAINER_GROUP) -> None:
    """``ids`` is the kernel's NSpid: the process's pids from the agent's PID namespace down to its own."""
    directory = proc.root / str(pid)
    directory.mkdir()
    (directory / "cgroup").write_text(f"0::{group}\n")
    (directory / "stat").write_text(f"{pid} (python) S {parent} " + "0 " * 17 + "100 0\n")
    (directory / "status").write_text(f"Name:\tpython\nPid:\t{pid}\nPPid:\t{parent}\nNSpid:\t{ids}\nThreads:\t1\n")


def add_shim(proc: ProcFs) -> None:
    add_process(proc, 1, parent=0, ids="1", group="/init.scope")
    add_process(proc, SHIM, parent=1, ids=str(SHIM), group="/system.slice/containerd.service")


def test_worker_descends_from_its_containers_first_process(proc: ProcFs) -> None:
    add_shim(proc)
    add_process(proc, 100, parent=SHIM, ids="100 1")
    add_process(proc, 101, parent=100, ids="101 7")
    add_process(proc, 102, parent=101, ids="102 8")
    assert proc.origin(102) == ProcessOrigin(100, is_its_own=True)
    assert proc.origin(100) == ProcessOrigin(100, is_its_own=True)


def test_worker_on_crio_descends_from_the_first_process_not_from_its_conmon(proc: ProcFs) -> None:
    add_shim(proc)
    add_process(proc, 90, parent=1, ids="90", group="/kubepods/pod1a/crio-conmon-" + "a" * 64)
    add_process(proc, 100, parent=90, ids="100 1", group="/kubepods/pod1a/crio-" + "a" * 64)
    add_process(proc, 200, parent=90, ids="200 30", group="/kubepods/pod1a/crio-" + "a" * 64)  # kubectl exec
    assert proc.origin(100) == ProcessOrigin(100, is_its_own=True)
    assert proc.origin(200) == ProcessOrigin(200, is_its_own=False)


def test_added_process_does_not_descend_from_first(proc: ProcFs) -> None:
    add_shim(proc)
    add_process(proc, 100, parent=SHIM, ids="100 1")
    add_process(proc, 200, parent=SHIM, ids="200 30")  # kubectl exec
    add_process(proc, 201, parent=200, ids="201 31")
    assert proc.origin(201) == ProcessOrigin(200, is_its_own=False)


def test_namespace_of_an_exec_shell_has_no_first_process(proc: ProcFs) -> None:
    add_shim(proc)
    add_process(proc, 200, parent=SHIM, ids="200 30")
    add_process(proc, 201, parent=200, ids="201 31 1")  # unshare --pid --fork
    assert proc.origin(201) == ProcessOrigin(200, is_its_own=False)


def test_shared_pid_namespace_orphans_belong_to_pause_container(proc: ProcFs) -> None:
    add_shim(proc)
    add_process(proc, 90, parent=SHIM, ids="90 1", group=PAUSE_GROUP)
    add_process(proc, 100, parent=SHIM, ids="100 7")
    add_process(proc, 101, parent=90, ids="101 8")
    assert proc.origin(101) == ProcessOrigin(101, is_its_own=True)
    assert proc.origin(100) == ProcessOrigin(100, is_its_own=False), "the runtime knows that it is the first"


def test_host_pid_namespace_leaves_entrance_to_runtime(proc: ProcFs) -> None:
    add_shim(proc)
    add_process(proc, 100, parent=SHIM, ids="100")
    add_process(proc, 101, parent=100, ids="101")
    assert proc.origin(101) == ProcessOrigin(100, is_its_own=False)


def test_entrance_of_ended_or_deep_process_is_unknown(proc: ProcFs) -> None:
    add_shim(proc)
    add_process(proc, 100, parent=99, ids="100 1")
    assert proc.origin(100) is None, "its parent has ended"
    add_process(proc, 99, parent=1, ids="99")
    (proc.root / "99" / "stat").write_text("99 (sh) S")
    assert proc.origin(100) is None, "its parent cannot be read"
    assert proc.origin(4711) is None
    add_process(proc, 1000, parent=SHIM, ids="1000 1")
    for pid in range(1001, 1400):
        add_process(proc, pid, parent=pid - 1, ids=f"{pid} {pid - 999}")
    assert proc.origin(1399) is None


def test_process_is_alive_until_zombie_or_pid_reuse(proc: ProcFs) -> None:
    add_process(proc, 100, parent=SHIM, ids="100 1")
    add_thread(proc, 100, 100, state="S")
    process = proc.facts(100)
    assert process is not None
    assert proc.is_alive(process)
    assert not proc.is_alive(replace(process, started=process.started - 5)), "another one has its pid"
    (proc.root / "100/task/100/stat").write_text("100 (python) Z 1 1 1 0 -1 0 0\n")
    assert not proc.is_alive(process)


def _open_files(proc: Path, pid: int, *names: str) -> None:
    directory = proc / str(pid) / "fd"
    directory.mkdir(parents=True)
    for number, name in enumerate(names):
        (directory / str(number)).symlink_to(name)


def test_processes_with_device_files_open_are_found(tmp_path: Path) -> None:
    _open_files(tmp_path, 11, "/dev/null", "/dev/nvidia0", "socket:[1]")
    _open_files(tmp_path, 12, "/dev/nvidiactl")
    _open_files(tmp_path, 13, "/dev/null", "/data/nvidia0", "/tmp/dev/nvidia0")
    assert ProcFs(root=tmp_path).on_devices({11, 12, 13, 14}) == {11, 12}


def test_many_open_files_of_one_process_hide_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MOST_FILES", 3)
    monkeypatch.setattr(processes, "_MOST_FILES_IN_ALL", 8)
    for pid in (11, 12):
        _open_files(tmp_path, pid, *["/dev/null"] * 9)
    _open_files(tmp_path, 13, "/dev/null", "/dev/nvidia0")
    _open_files(tmp_path, 14, "/dev/nvidia0")
    assert ProcFs(root=tmp_path).on_devices({11, 12, 13, 14}) == {13}, "the limit for all ends the search"
