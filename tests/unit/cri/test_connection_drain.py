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

from kubemend.agent.clients.cri import connection_drain

DEADLINE = 60.0
LONG = 3600.0  # the test ends the connections, not the timeout

CALLER = """
import socket, sys
from pathlib import Path
from kubemend.agent.clients.cri.connection_drain import ConnectionDrain
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
held = ConnectionDrain(cgroup_root=Path(sys.argv[2]), seconds=float(sys.argv[3]))
held.hold()
print(held._holder.pid, flush=True)
sys.stdin.readline()
held.stop_keeping()
"""
LOCKER = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


class Service:
    """A service, and its ends of the connections to it."""

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
    """A process that is connected to the service, and whose connection is kept."""

    def __init__(self, directory: Path, *, seconds: float) -> None:
        command = [sys.executable, "-c", CALLER, str(directory / "service.sock"), str(directory), str(seconds)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.holder = 0

    async def ready(self) -> None:
        assert self.process.stdout is not None
        self.holder = int(await asyncio.to_thread(self.process.stdout.readline))

    def end(self) -> None:
        if self.holder:  # kill(2) with 0 would end the tests' own process group
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


async def test_connection_outlives_a_kill_of_its_process(service: Service, tmp_path: Path) -> None:
    with calling(tmp_path) as caller:
        await caller.ready()
        connection = await service.callers.get()
        caller.process.kill()
        caller.process.wait(timeout=DEADLINE)
        assert not connection.at_eof()
        os.kill(caller.holder, 0)  # it is alive
        os.kill(caller.holder, signal.SIGKILL)
        await ended(connection)


async def test_connection_ends_some_time_after_the_kill(service: Service, tmp_path: Path) -> None:
    with calling(tmp_path, seconds=0.1) as caller:
        await caller.ready()
        connection = await service.callers.get()
        caller.process.kill()
        await ended(connection)


async def test_orderly_end_closes_the_connection(service: Service, tmp_path: Path) -> None:
    with calling(tmp_path) as caller:
        await caller.ready()
        connection = await service.callers.get()
        await asyncio.to_thread(caller.process.communicate, b"\n")
        await ended(connection)
        with pytest.raises(ProcessLookupError):
            os.kill(caller.holder, 0)


async def test_file_locks_are_kept(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops the process's locks on it (fcntl(2)): SQLite's would be lost."""
    file = tmp_path / "database"
    file.touch()
    with file.open("r+") as opened:
        fcntl.lockf(opened, fcntl.LOCK_EX)
        held = connection_drain.ConnectionDrain(cgroup_root=tmp_path)
        held.hold()
        held.stop_keeping()
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LOCKER, str(file), stderr=asyncio.subprocess.DEVNULL
        )
        assert await other.wait() != 0, "another process could lock it, too"


async def test_helper_moves_to_the_root_cgroup(tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    procs.touch()
    held = connection_drain.ConnectionDrain(cgroup_root=tmp_path)
    held.hold()
    assert held._holder is not None
    assert procs.read_text() == str(held._holder.pid)
    held.stop_keeping()


async def test_new_connection_replaces_the_kept_one(service: Service, tmp_path: Path) -> None:
    held = connection_drain.ConnectionDrain(cgroup_root=tmp_path, seconds=LONG)
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
