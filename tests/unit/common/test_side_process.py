"""Calls that hang cost one side process, and nothing blocks on it."""

import asyncio
import contextlib
import functools
import operator
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubemend.common import side_process
from kubemend.common.side_process import ProcessEndedError, SideProcess
from tests.fakes import hanging_fs

PATIENCE = 60.0
MOST_PODS = 256
"""Pods of a large node."""
getpid = os.getpid


@pytest.fixture
async def calls(tmp_path: Path) -> AsyncIterator[SideProcess]:
    async with SideProcess("under test", cgroup_root=tmp_path) as made:
        yield made


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """An open for reading hangs until another process opens it for writing."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def comes_back(fifo: Path) -> None:
    os.close(os.open(fifo, os.O_WRONLY))


async def hang(calls: SideProcess, fifo: Path, *, owner: str = "me") -> None:
    """Make a call that hangs, and abandon it once it is out."""
    await calls.call(getpid, owner=owner, timeout=PATIENCE)
    with pytest.raises(TimeoutError):
        await calls.call(functools.partial(os.open, fifo, os.O_RDONLY), owner=owner, timeout=0.01)


async def test_calls_are_made_in_one_other_process(calls: SideProcess) -> None:
    first, second = [await calls.call(getpid, owner=owner, timeout=PATIENCE) for owner in "ab"]
    assert first == second != os.getpid()


async def test_what_a_call_raises_is_raised(calls: SideProcess) -> None:
    with pytest.raises(ZeroDivisionError):
        await calls.call(functools.partial(operator.truediv, 1, 0), owner="me", timeout=PATIENCE)
    with pytest.raises(FileNotFoundError) as raised:
        await calls.call(functools.partial(os.stat, "/none"), owner="me", timeout=PATIENCE)
    assert raised.value.filename == "/none"


async def test_unpicklable_result_is_an_error(calls: SideProcess) -> None:
    with pytest.raises(TypeError, match="pickle"):
        await calls.call(functools.partial(os.scandir, "/"), owner="me", timeout=PATIENCE)


class AwkwardError(Exception):
    """Cannot be restored from its pickle."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def fail_awkwardly() -> None:
    raise AwkwardError("so", "what")


async def test_unrestorable_error_is_reported_as_text(calls: SideProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", str(Path(__file__).parents[3])
    )  # for this module: the process knows the installed ones
    with pytest.raises(RuntimeError, match="so what"):
        await calls.call(fail_awkwardly, owner="me", timeout=PATIENCE)


async def test_work_that_cannot_be_sent_takes_no_place(tmp_path: Path) -> None:
    async with SideProcess("under test", cgroup_root=tmp_path, most_out=1) as calls:
        for _ in range(3):
            with pytest.raises((AttributeError, pickle.PicklingError)):
                await calls.call(lambda: None, owner="me", timeout=PATIENCE)
        await calls.call(getpid, owner="me", timeout=PATIENCE)


async def test_large_answers_and_many_calls_side_by_side_come_back(calls: SideProcess) -> None:
    works = [
        calls.call(functools.partial(operator.mul, b"x", 100_000 + n), owner=str(n), timeout=600) for n in range(50)
    ]
    assert [len(answer) for answer in await asyncio.gather(*works)] == list(range(100_000, 100_050))
    assert await calls.call(functools.partial(len, b"x" * 5_000_000), owner="me", timeout=600) == 5_000_000


async def test_hanging_call_blocks_only_its_own_pod(calls: SideProcess, fifo: Path) -> None:
    await hang(calls, fifo)
    with pytest.raises(TimeoutError, match="has not returned"):
        await calls.call(getpid, owner="me", timeout=PATIENCE)
    await calls.call(getpid, owner="another", timeout=PATIENCE)
    comes_back(fifo)
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(TimeoutError):
                await calls.call(getpid, owner="me", timeout=PATIENCE)
                return
            await asyncio.sleep(0.01)  # it is on its way


async def test_answer_that_arrives_with_the_timeout_leaves_room_for_the_next_call(calls: SideProcess) -> None:
    """The event loop was blocked for longer than the timeout, so that it finds both at once."""
    await calls.call(getpid, owner="me", timeout=PATIENCE)
    call = asyncio.create_task(
        calls.call(functools.partial(os.open, "/dev/null", os.O_RDONLY), owner="me", timeout=0.5)
    )
    await asyncio.sleep(0)
    time.sleep(1.0)  # noqa: ASYNC251 - blocks the loop
    with pytest.raises(TimeoutError):
        await call
    assert await calls.call(getpid, owner="me", timeout=PATIENCE) != os.getpid()


async def test_hanging_calls_are_limited(tmp_path: Path, fifo: Path) -> None:
    async with SideProcess("under test", cgroup_root=tmp_path, most_out=2) as calls:
        await hang(calls, fifo, owner="a")
        await hang(calls, fifo, owner="b")
        with pytest.raises(TimeoutError):
            await calls.call(getpid, owner="c", timeout=0.01)
        comes_back(fifo)
        await calls.call(getpid, owner="c", timeout=PATIENCE)


async def test_hanging_calls_of_all_pods_of_a_node_leave_room_for_another(calls: SideProcess, fifo: Path) -> None:
    look = functools.partial(os.open, fifo, os.O_RDONLY)
    hanging = [asyncio.create_task(calls.call(look, owner=str(n), timeout=PATIENCE)) for n in range(MOST_PODS)]
    await asyncio.create_task(calls.call(getpid, owner="another", timeout=PATIENCE))  # begins after those
    assert not any(each.done() for each in hanging)
    writer = os.open(fifo, os.O_RDWR)  # also for those that begin to read only now
    await asyncio.gather(*hanging)
    os.close(writer)


async def test_ended_process_fails_its_calls_and_is_replaced(calls: SideProcess, fifo: Path) -> None:
    pid = await calls.call(getpid, owner="me", timeout=PATIENCE)
    out = asyncio.create_task(calls.call(functools.partial(os.open, fifo, os.O_RDONLY), owner="me", timeout=PATIENCE))
    await calls.call(getpid, owner="another", timeout=PATIENCE)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ProcessEndedError, match="has ended"):
        await out
    assert await calls.call(getpid, owner="me", timeout=PATIENCE) != pid


async def test_failed_start_is_an_error(calls: SideProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/none")
    for _ in range(3):
        with pytest.raises(ProcessEndedError, match="cannot start"):
            await calls.call(getpid, owner="me", timeout=PATIENCE)


async def test_abandoned_processes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_process, "MOST_LEFT_BEHIND", 1)
    (tmp_path / "cgroup.procs").touch()
    with hanging_fs.mounted(tmp_path / "mnt") as file_system:
        async with SideProcess("under test", cgroup_root=tmp_path) as calls:
            pid = await calls.call(getpid, owner="me", timeout=PATIENCE)
            look = functools.partial(os.stat, tmp_path / "mnt" / "x")
            hanging = asyncio.create_task(calls.call(look, owner="me", timeout=PATIENCE))
            assert await asyncio.to_thread(file_system.asked.wait, PATIENCE)
            hanging.cancel()
            await asyncio.wait([hanging])
        (left,) = side_process._left_behind
        assert left.pid == pid
        assert (tmp_path / "cgroup.procs").read_text() == str(pid), "the parent's cgroup can be removed"
        async with SideProcess("the next", cgroup_root=tmp_path) as calls:
            with pytest.raises(ProcessEndedError, match="1 processes that read"):
                await calls.call(getpid, owner="me", timeout=PATIENCE)
    await asyncio.to_thread(left.wait, PATIENCE)
    async with SideProcess("the next", cgroup_root=tmp_path) as calls:
        await calls.call(getpid, owner="me", timeout=PATIENCE)


LIKE_AN_AGENT = """
import asyncio, functools, os, sys
from pathlib import Path
from kubemend.common import process
from kubemend.common.side_process import SideProcess

async def main():
    stop = process.stop_signal()
    async with SideProcess("under test", cgroup_root=Path("/none")) as calls:
        pid = await calls.call(os.getpid, owner="me", timeout=60)
        try:
            await calls.call(functools.partial(os.stat, sys.argv[1]), owner="me", timeout=1)
        except TimeoutError:
            print(pid, flush=True)
        await stop.wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_hanging_file_system_does_not_block_the_agents_end(tmp_path: Path, number: signal.Signals) -> None:
    with hanging_fs.mounted(tmp_path / "mnt") as file_system:
        argv = [sys.executable, "-c", LIKE_AN_AGENT, str(tmp_path / "mnt" / "x")]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:
            assert agent.stdout is not None
            left = os.pidfd_open(int(agent.stdout.readline()))
            assert file_system.asked.wait(PATIENCE)
            agent.send_signal(number)
            assert agent.wait(PATIENCE) == (0 if number is signal.SIGTERM else -number)
        assert not hanging_fs.has_ended(left, within=0)
    assert hanging_fs.has_ended(left, within=PATIENCE), "it ends as soon as it can"
    os.close(left)
