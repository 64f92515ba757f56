"""Which containers a runtime was asked to stop, by its executions."""

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kubemend.agent.actuator import stop_requests
from kubemend.agent.actuator.hold import fanotify, oci_runtimes
from kubemend.agent.actuator.stop_requests import StopRequests
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import aio
from tests import eventually

ID = "0123456789abcdef" * 4
SECONDS = 60.0


@pytest.mark.parametrize(
    "command",
    [
        ["runc", "--root", "/run/runc/k8s.io", "--log-format", "json", "kill", ID, "15"],
        ["/usr/sbin/runc", "kill", "--all", ID, "15"],
        ["/usr/sbin/runc", "kill", ID, "9"],
        ["crun", "kill", ID, "SIGTERM"],
        ["runc", "kill", ID, "3"],
    ],
)
def test_stop_signal_names_the_container(command: list[str]) -> None:
    assert stop_requests.stopped_container(command) == ID


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["kill", ID, "15"],
        ["runc", "start", ID],
        ["runc", "kill"],
        ["runc", "kill", ID],
        ["runc", "kill", "x", "15"],
        ["runc", "kill", "a" * 1000, "15"],
        ["runc", "kill", ID, "\ufffd"],
        ["runc", "exec", "--process", "/tmp/p", ID],
        ["runc", "kill", "--all", ID, "9"],  # containerd's, after the container has ended by itself
        ["crun", "kill", "-a", ID, "KILL"],
    ],
)
def test_other_commands_name_no_container(command: list[str]) -> None:
    assert stop_requests.stopped_container(command) is None


@contextlib.asynccontextmanager
async def runtime_with(
    program: Path, monkeypatch: pytest.MonkeyPatch, *, proc: Path = Path("/proc")
) -> AsyncIterator["asyncio.Queue[ContainerId | None]"]:
    """Follow a runtime that this process is, and that finds its OCI runtime there. None: a command was not read."""
    found: asyncio.Queue[ContainerId | None] = asyncio.Queue()
    monkeypatch.setattr(oci_runtimes, "find", lambda _, named: (program,))
    path = program.parent / "cri.sock"
    marked = asyncio.Event()
    mark = fanotify.report_file

    def noted(group: int, file: Path) -> None:
        mark(group, file)
        marked.set()

    monkeypatch.setattr(fanotify, "report_file", noted)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        work = StopRequests(
            socket_path=str(path), proc=proc, stopped=found.put_nowait, unread=lambda: found.put_nowait(None)
        ).run()
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
            following = aio.spawn_eternal(tasks, work, name="following")
            await marked.wait()
            yield found
            following.cancel()
    await eventually.true(lambda: "stop requests" not in {each.name for each in threading.enumerate()})


@pytest.mark.skipif(os.geteuid() != 0, reason="fanotify needs CAP_SYS_ADMIN")
async def test_executions_are_followed_and_only_kills_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = shutil.which("tail")
    assert tail is not None
    program = tmp_path / "runc"
    shutil.copy(tail, program)
    async with runtime_with(program, monkeypatch) as found:
        (reading,) = (each.native_id for each in threading.enumerate() if each.name == "stop requests")
        assert reading is not None
        # tail reports the missing files, and follows /dev/null: both can be read until they have been, in order.
        children = [
            await asyncio.create_subprocess_exec(
                program, "-f", "/dev/null", word, ID, "15", stderr=asyncio.subprocess.DEVNULL
            )
            for word in ("start", "kill")
        ]
        try:
            assert await found.get() == ID
            assert os.sched_getscheduler(reading) == os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, "it would lose races"
        finally:
            for child in children:
                child.kill()
                await child.wait()
        assert found.empty()


@pytest.mark.skipif(os.geteuid() != 0, reason="fanotify needs CAP_SYS_ADMIN")
async def test_a_process_that_ends_before_its_command_is_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = shutil.which("true")
    assert true is not None
    program = tmp_path / "runc"
    shutil.copy(true, program)
    async with runtime_with(program, monkeypatch, proc=tmp_path / "no-such-process") as found:
        child = await asyncio.create_subprocess_exec(program)
        assert await found.get() is None
        await child.wait()


async def test_unavailable_fanotify_does_not_stop_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = asyncio.Event()

    def refused() -> int:
        tried.set()
        raise PermissionError(1, "Operation not permitted", "fanotify_init")

    monkeypatch.setattr(fanotify, "new_listener", refused)
    path = tmp_path / "cri.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        work = StopRequests(socket_path=str(path), proc=Path("/proc"), stopped=lambda _: None).run()
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
            following = aio.spawn_eternal(tasks, work, name="following")
            await tried.wait()
            assert not following.done()
            following.cancel()


async def test_reader_that_fails_is_ended_by_its_own_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is closed before may be another file's by then: eight bytes would be written to that."""

    def full(_: int) -> Iterator[int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(fanotify, "notified", full)
    group = os.eventfd(1)
    reader = stop_requests._Reader(group, proc=tmp_path, stopped=lambda _: None, unread=lambda: None)
    thread = threading.Thread(target=reader.run)
    thread.start()
    async with asyncio.timeout(SECONDS):
        await asyncio.wait({reader.failed})
    assert reader.failed.exception() is not None
    await asyncio.to_thread(thread.join, 0.2)
    assert thread.is_alive()
    reader.end()
    await asyncio.to_thread(thread.join, SECONDS)
    assert not thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(group)
