"""The agent's first moments: it may be stopped in any of them, and is ready only when it knows its components."""

import asyncio
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.devnode import node, readyz
from tests.scenarios.test_missing_parts import started

pytestmark = pytest.mark.devnode

SECONDS = 60.0


async def exists(path: Path) -> None:
    """Wait until a starting agent has created a file."""
    async with asyncio.timeout(SECONDS):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stop_during_the_start_is_orderly(dev: node.DevNode, tmp_path: Path, number: signal.Signals) -> None:
    async with started(dev, tmp_path) as agent:
        await exists(tmp_path / "state" / "state.db")  # the first file that it creates
        agent.child.signal(number)
        assert await agent.child.wait(timeout=SECONDS) == 0
    assert '"agent.stopped"' in agent.log.read_text()


async def test_the_first_answer_to_readyz_names_every_part(dev: node.DevNode, tmp_path: Path) -> None:
    async with started(dev, tmp_path) as agent:
        async with asyncio.timeout(SECONDS):
            while not (first := await readyz.report(agent.metrics_address))["status"]:  # noqa: ASYNC110 - until it listens
                await asyncio.sleep(0.001)
        await readyz.until_ready(agent)
        assert set(first["parts"]) == set((await readyz.report(agent.metrics_address))["parts"])


async def test_control_socket_exists_while_the_agent_runs(dev: node.DevNode, tmp_path: Path) -> None:
    socket = tmp_path / "state" / "control.sock"
    async with started(dev, tmp_path) as agent:
        await readyz.until_ready(agent)
        assert socket.is_socket()
        assert socket.stat().st_mode & 0o777 == 0o600
    assert not socket.exists()


async def test_a_second_agent_of_the_same_state_is_refused_and_harms_nothing(dev: node.DevNode, tmp_path: Path) -> None:
    async with started(dev, tmp_path) as first:
        await readyz.until_ready(first)
        flags = {"state-dir": str(tmp_path / "state"), "metrics-address": "127.0.0.1:0"}
        async with dev.agent(*(f"--{key}={value}" for key, value in flags.items())) as second:
            assert await second.child.wait(timeout=SECONDS) == 3
            last = second.log.read_text().strip().splitlines()[-1]
            assert "control.sock" in last
            assert "--state-dir" in last
        await readyz.until_ready(first)
        assert (tmp_path / "state" / "control.sock").is_socket()


async def test_the_socket_of_an_agent_that_was_killed_is_taken_over(dev: node.DevNode, tmp_path: Path) -> None:
    state = f"--state-dir={tmp_path / 'state'}"
    async with dev.agent(state) as killed:
        await readyz.until_ready(killed)
        killed.child.signal(signal.SIGKILL)
        await killed.child.wait(timeout=SECONDS)
    assert (tmp_path / "state" / "control.sock").is_socket()
    async with dev.agent(state) as successor:
        await readyz.until_ready(successor)


def watch_of(agent: int) -> int:
    """Return the process that outlives an agent."""
    children = (listed.read_text().split() for listed in Path(f"/proc/{agent}/task").glob("*/children"))
    (found,) = (
        int(child)
        for family in children
        for child in family
        if b"agent.app.last_watch" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return found


def ends(pid: int, *, act: Callable[[], None]) -> bool:
    """Do something, and wait for the end of a process that is not our child."""
    process = os.pidfd_open(pid)
    try:
        act()
        poll = select.poll()
        poll.register(process, select.POLLIN)
        return bool(poll.poll(SECONDS * 1000))
    finally:
        os.close(process)


async def test_watcher_outlives_a_killed_agent_only_with_frozen_containers(dev: node.DevNode, tmp_path: Path) -> None:
    """Its release is tested on the runtime alone (tests/containerd/test_last_resort.py)."""
    async with dev.agent(f"--state-dir={tmp_path / 'state'}") as agent:
        await readyz.until_ready(agent)
        watch = watch_of(agent.child.pid)
        assert await asyncio.to_thread(ends, watch, act=lambda: agent.child.signal(signal.SIGKILL))
        await agent.child.wait(timeout=SECONDS)
