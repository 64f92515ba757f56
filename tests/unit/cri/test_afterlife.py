"""Connections outlive the process that opened them, for a while, and nothing else of it does."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.cri import afterlife

DEADLINE = 60.0
LONG = 3600.0  # the test ends what is held, not time

CALLER = """
import socket, sys
from pathlib import Path
from agent.cri.afterlife import Afterlife
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
held = Afterlife(cgroup_root=Path(sys.argv[2]), seconds=float(sys.argv[3]))
held.hold()
print(held._holder.pid, flush=True)
sys.stdin.readline()
held.let_go()
"""
LOCKER = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


class Service:
    """A service, and its ends of the connections that were made to it."""

    def __init__(self) -> None:
        self.callers: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.callers.put_nowait(reader)
        self._writers.append(writer)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service()
    async with await asyncio.start_unix_server(made.serve, path=tmp_path / "service.sock"):
        yield made
        made.close()


class Caller:
    """A process that is connected to the service, and whose connection is held."""

    def __init__(self, directory: Path, *, seconds: float) -> None:
        command = [sys.executable, "-c", CALLER, str(directory / "service.sock"), str(directory), str(seconds)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.holder = 0

    async def ready(self) -> None:
        assert self.process.stdout is not None
        self.holder = int(await asyncio.to_thread(self.process.stdout.readline))

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.holder, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def calling(directory: Path, *, seconds: float = LONG) -> Iterator[Caller]:
    caller = Caller(directory, seconds=seconds)
    try:
        yield caller
    finally:
        caller.end()


async def ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(DEADLINE):
        assert await reader.read() == b""


async def test_a_connection_outlives_the_kill_of_its_process(service: Service, tmp_path: Path) -> None:
    with calling(tmp_path) as caller:
        await caller.ready()
        connection = await service.callers.get()
        caller.process.kill()
        caller.process.wait(timeout=DEADLINE)
        assert not connection.at_eof()
        os.kill(caller.holder, 0)  # it lives
        os.kill(caller.holder, signal.SIGKILL)
        await ended(connection)


async def test_it_ends_by_itself_some_time_after_the_kill(service: Service, tmp_path: Path) -> None:
    with calling(tmp_path, seconds=0.1) as caller:
        await caller.ready()
        connection = await service.callers.get()
        caller.process.kill()
        await ended(connection)


async def test_an_end_in_peace_ends_the_connection(service: Service, tmp_path: Path) -> None:
    with calling(tmp_path) as caller:
        await caller.ready()
        connection = await service.callers.get()
        await asyncio.to_thread(caller.process.communicate, b"\n")
        await ended(connection)
        with pytest.raises(ProcessLookupError):
            os.kill(caller.holder, 0)


async def test_locks_on_files_are_kept(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops the process' locks on it (fcntl(2)): SQLite's would be gone."""
    file = tmp_path / "database"
    file.touch()
    with file.open("r+") as opened:
        fcntl.lockf(opened, fcntl.LOCK_EX)
        held = afterlife.Afterlife(cgroup_root=tmp_path)
        held.hold()
        held.let_go()
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LOCKER, str(file), stderr=asyncio.subprocess.DEVNULL
        )
        assert await other.wait() != 0, "another process could lock it, too"


async def test_the_holder_moves_to_the_root_of_the_hierarchy(tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    procs.touch()
    held = afterlife.Afterlife(cgroup_root=tmp_path)
    held.hold()
    assert held._holder is not None
    assert procs.read_text() == str(held._holder.pid)
    held.let_go()


async def test_each_new_connection_is_held_instead_of_what_was_before(service: Service, tmp_path: Path) -> None:
    held = afterlife.Afterlife(cgroup_root=tmp_path, seconds=LONG)
    new, holders = asyncio.Queue[None](), list[int]()

    async def connected() -> AsyncIterator[None]:
        while True:
            await new.get()
            yield
            assert held._holder is not None
            holders.append(held._holder.pid)
            new.task_done()

    work = asyncio.create_task(held.run(connected()))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "service.sock"))
        for _ in range(2):
            new.put_nowait(None)
            await new.join()
    first, second = holders
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    os.kill(second, 0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
