"""Processes that are started, recorded, recognised and ended."""

import asyncio
import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from hack.devnode import processes

Start = Callable[..., processes.Child]
SECONDS = 60.0


@pytest.fixture
async def start(tmp_path: pathlib.Path) -> AsyncIterator[Start]:
    """Start a program with its files in a folder of the test's own; kills it at the end."""
    started: list[processes.Child] = []

    def _start(*command: str) -> processes.Child:
        child = processes.Child.start(command, name="it", log=tmp_path / "log", pid_file=tmp_path / "pids" / "it")
        started.append(child)
        return child

    yield _start
    for child in started:
        await child.stop(grace=0)


async def test_output_and_exit_status_are_kept(start: Start, tmp_path: pathlib.Path) -> None:
    child = start("sh", "-c", "echo out; echo err >&2; exit 7")
    assert await child.wait(timeout=SECONDS) == 7
    assert (tmp_path / "log").read_text() == "out\nerr\n"


async def test_sigterm_ends_it_and_its_pid_file_goes(start: Start, tmp_path: pathlib.Path) -> None:
    child = start("sleep", "1000")
    assert processes.read_pid_file(tmp_path / "pids" / "it") == processes.ProcessId.of(child.pid)
    assert await child.stop(grace=SECONDS) == -signal.SIGTERM
    assert not (tmp_path / "pids" / "it").exists()


async def test_program_that_ignores_sigterm_is_killed(start: Start, tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "ready")
    child = start("sh", "-c", f"trap '' TERM; echo > {tmp_path}/ready; exec sleep 1000")
    await asyncio.to_thread((tmp_path / "ready").read_bytes)
    assert await child.stop(grace=0.05) == -signal.SIGKILL


async def test_paused_process_is_stopped_and_can_be_ended(start: Start) -> None:
    child = start("sleep", "1000")
    child.pause()
    assert _state(child.pid) == "T"
    assert await child.stop(grace=SECONDS) == -signal.SIGTERM


async def test_waiting_has_a_deadline(start: Start) -> None:
    with pytest.raises(processes.ProcessError, match="still runs"):
        await start("sleep", "1000").wait(timeout=0.01)


async def test_a_later_process_with_the_same_pid_is_not_the_same(start: Start, tmp_path: pathlib.Path) -> None:
    child = start("sleep", "1000")
    identity = processes.ProcessId.of(child.pid)
    assert identity is not None
    earlier = processes.ProcessId(pid=identity.pid, start_ticks=identity.start_ticks - 1)
    assert not earlier.alive()
    earlier.signal(signal.SIGKILL)
    assert await earlier.ended(timeout=SECONDS)
    assert identity.alive()
    (tmp_path / "stale").write_text(f"{earlier.pid} {earlier.start_ticks}\n")
    assert processes.read_pid_file(tmp_path / "stale") is None


async def test_children_are_those_that_run(start: Start) -> None:
    runs, ended = start("sleep", "1000"), start("true")
    await ended.wait(timeout=SECONDS)
    assert {runs.pid} <= {each.pid for each in processes.children()}
    assert ended.pid not in {each.pid for each in processes.children()}


async def test_children_of_other_threads_are_listed(start: Start) -> None:
    child = await asyncio.to_thread(start, "sleep", "1000")
    assert processes.ProcessId.of(child.pid) in set(processes.children())


@pytest.mark.parametrize("text", ["", "12"])
def test_truncated_pid_file_names_no_process(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "cut").write_text(text)
    assert processes.read_pid_file(tmp_path / "cut") is None


def test_missing_program_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(processes.ProcessError, match=r"cannot start it \(/no/such\)"):
        processes.Child.start(("/no/such",), name="it", log=tmp_path / "log", pid_file=tmp_path / "pid")


def _state(pid: int) -> str:
    """Return the letter of /proc/<pid>/stat: ``T`` is stopped."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


_HOLDS = """
import asyncio
from hack.devnode import processes

async def hold():
    try:
        print("holds", flush=True)
        await asyncio.Event().wait()
    finally:
        print("ends", flush=True)

processes.end_on_sigterm()
asyncio.run(hold())
"""


@pytest.mark.parametrize("before", ["", "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"])
async def test_end_on_sigterm_ends_a_program_in_order(before: str) -> None:
    """Also one that a shell has started in the background, which ignores SIGINT."""
    command = (sys.executable, "-c", f"{before}\n{_HOLDS}")
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"holds\n"
    child.terminate()
    out, errors = await child.communicate()
    assert out == b"ends\n", errors


def test_end_on_sigterm_leaves_a_handler_of_the_programs_own() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        processes.end_on_sigterm()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
