"""On CRI-O a container's first process is killed before the stop: only that process, and only if it is in it."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubemend.agent.clients.cri import kills
from kubemend.agent.model.workloads import ContainerId

CONTAINER, ANOTHER = ContainerId("a" * 64), ContainerId("b" * 64)


@pytest.fixture
async def child() -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that handles SIGTERM and says so."""
    program = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print(1, flush=True); signal.pause()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


def in_container(proc: Path, pid: int, container: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod1/crio-{container}.scope\n")


async def test_process_of_the_container_is_killed(child: asyncio.subprocess.Process, tmp_path: Path) -> None:
    in_container(tmp_path, child.pid, CONTAINER)
    kills.kill(CONTAINER, child.pid, proc=tmp_path)
    assert await child.wait() == -signal.SIGKILL


async def test_process_that_has_the_pid_now_is_not_killed(child: asyncio.subprocess.Process, tmp_path: Path) -> None:
    in_container(tmp_path, child.pid, ANOTHER)
    kills.kill(CONTAINER, child.pid, proc=tmp_path)
    child.terminate()
    assert await child.wait() == 0, "it lived to handle the next signal"


async def test_process_that_has_ended_is_no_error(child: asyncio.subprocess.Process, tmp_path: Path) -> None:
    child.kill()
    await child.wait()
    kills.kill(CONTAINER, child.pid, proc=tmp_path)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EPERM, errno.ENOSYS])
async def test_process_that_may_live_and_cannot_be_killed_is_an_error(
    child: asyncio.subprocess.Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    in_container(tmp_path, child.pid, CONTAINER)

    def refused(_: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(OSError, match=os.strerror(code)):
        kills.kill(CONTAINER, child.pid, proc=tmp_path)


def test_thread_that_has_the_pid_now_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> int:
        raise OSError(errno.EINVAL, "a thread")

    monkeypatch.setattr(os, "pidfd_open", refused)
    kills.kill(CONTAINER, 4242, proc=tmp_path)


async def test_processes_that_a_container_has_left_are_killed_and_no_others(
    child: asyncio.subprocess.Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "_TRIES", 1)  # they stay in this directory
    in_container(tmp_path, os.getpid(), ANOTHER)
    in_container(tmp_path, child.pid, CONTAINER)
    kills.kill_left(CONTAINER, proc=tmp_path)
    assert await child.wait() == -signal.SIGKILL
